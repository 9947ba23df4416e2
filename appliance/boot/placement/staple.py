"""Documents that the host hands over on a disk, passed on with evidence: a client then needs no
service of the vendor's.

The disk is an archive as a launch disk is, and the host may write it anew at any time. Its
documents are not believed here, or looked at: clients check signatures up to pinned roots, and
times. Spec: docs/reference/collateral.md.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.attestation.evidence import MAX_COLLATERAL, Provider, ReportWithCollateral, TpmEndorsement
from appliance.boot.placement import launchdisk
from appliance.codec.regularfile import open_file
from appliance.errors import BootError

MAX_BYTES: Final = 1 << 20  # of the disk that are read
MAX_DOCUMENT, MAX_DOCUMENTS = 1 << 17, 1 << 18  # bytes of one, and of all that are passed on
AGAIN: Final = 60.0  # seconds until the disk is read again


class StapledProvider(Provider):
    """A provider whose reports come with the host's documents. `descriptor` is of the disk, which
    stays open: a sandbox that closes behind the boot leaves it readable."""

    def __init__(self, provider: Provider, descriptor: int) -> None:
        self._provider, self._descriptor = provider, descriptor
        self._lock = threading.Lock()
        self._documents: tuple[bytes, ...] = ()
        self._due = 0.0

    @property
    def platform(self) -> str:
        """The platform of the reports."""
        return self._provider.platform

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report, its own collateral, and then the host's documents, as far as there is room."""
        found = self._provider.collect(report_data)
        return ReportWithCollateral(found.report, (*found.collateral, *self._passed_on())[:MAX_COLLATERAL])

    def endorsement(self) -> TpmEndorsement | None:
        """The endorsement of a TPM."""
        return self._provider.endorsement()

    def activate(self, challenge: bytes) -> bytes:
        """A TPM's answer to a challenge."""
        return self._provider.activate(challenge)

    def close(self) -> None:
        """Let go of the platform's interfaces and of the disk."""
        self._provider.close()
        os.close(self._descriptor)

    def _passed_on(self) -> tuple[bytes, ...]:
        with self._lock:
            if time.monotonic() >= self._due:
                self._documents = tuple(_documents(_read(self._descriptor)))
                self._due = time.monotonic() + AGAIN
            return self._documents


def stapled(provider: Provider, disk: Path) -> Provider:
    """Return a provider whose reports come with the documents of a disk; without one, the same."""
    try:
        descriptor, _ = open_file(disk, disk=True)
    except OSError:
        return provider
    return StapledProvider(provider, descriptor)


def _read(descriptor: int) -> bytes:
    """Return the first bytes of a disk as they are now, and not as the kernel kept them."""
    found = b""
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        while len(found) < MAX_BYTES and (more := os.pread(descriptor, MAX_BYTES - len(found), len(found))):
            found += more
    except OSError:
        return b""
    return found


def _documents(data: bytes) -> Iterator[bytes]:
    """Yield the documents in an archive, up to the place where it is not in form."""
    room = MAX_DOCUMENTS
    try:
        for _, content in launchdisk.entries(data):
            if 0 < len(content) <= min(room, MAX_DOCUMENT):
                room -= len(content)
                yield content
    except BootError:
        return
