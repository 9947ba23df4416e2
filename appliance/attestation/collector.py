"""The collecting half of a platform: how its reports are asked for, and the fields that a boot
reads in them.

Each platform's module for it has one `COLLECTOR`; `appliance/platforms.py` names that module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from appliance import platforms
from appliance.attestation.evidence import Provider
from appliance.errors import AttestationError

REPORTS = Path("/sys/kernel/config/tsm/report")
EVENT_LOG = Path("/sys/kernel/security/tpm0/binary_bios_measurements")
COLLATERAL = Path("/dev/appliance-collateral")  # the host's documents, which go with evidence


@dataclass(frozen=True)
class Interfaces:
    """Where this machine's interfaces are. A process that gives up its rights must keep read and
    write access to `reports`, and opens the others before it does. `root`: the SHA-256 of a root in
    place of the vendor's, for tests."""

    reports: Path = REPORTS
    tpm: Path = Path(platforms.TPM.device or "")
    nitro: Path = Path(platforms.NITRO.device or "")
    event_log: Path = EVENT_LOG
    collateral: Path = COLLATERAL
    root: str | None = None


MACHINE = Interfaces()
Opener = Callable[[Interfaces, bytes], Provider]


@dataclass(frozen=True)
class LaunchField:
    """The field of a report that tells what the platform was launched with.

    `value` is what it must hold for a policy digest of 48 bytes. `read` gives report data and field
    of a report that this machine made just now, at a time and by a root (None: the vendor's).
    Raises AttestationError.
    """

    name: str
    value: Callable[[bytes], bytes]
    read: Callable[[bytes, datetime, str | None], tuple[bytes, bytes]]


def _no_certificates(_table: bytes) -> tuple[bytes, ...]:
    return ()


def _unread(_report: bytes) -> bytes:
    raise AttestationError("configfs-tsm: reports of this platform do not come through it", code="tsm-provider")


@dataclass(frozen=True)
class Collector:
    """The collecting half of a platform.

    `open` gives the machine's provider; the 32 bytes are what a simulated platform claims to have
    been launched with. None: the platform is asked through configfs-tsm. `reported` gives the
    report data in such a report, `certificates` those in the blob beside it. `launch` is None where
    a report has no such field, or one that tells nothing. `measurement` gives the launch
    measurement in a report, None where it has none. `shortened` gives a long report without what a
    certificate has no room for, None where none is long.
    """

    open: Opener | None = None
    reported: Callable[[bytes], bytes] = _unread
    certificates: Callable[[bytes], tuple[bytes, ...]] = _no_certificates
    launch: LaunchField | None = None
    measurement: Callable[[bytes], bytes] | None = None
    shortened: Callable[[bytes], bytes] | None = None
