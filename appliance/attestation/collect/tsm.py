"""Reports through the kernel's one interface for several platforms, configfs-tsm.

Source: Linux, Documentation/ABI/testing/configfs-tsm-report (kernel 6.7 and later). A folder is
made, 64 bytes are written to `inblob`, and `outblob` is read; `generation` counts every write, so a
reader knows whether the report is of its own input. `auxblob` holds the certificate table of an
extended SNP report, if the host gave one.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from pathlib import Path

from appliance import platforms
from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.collector import REPORTS
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.errors import AttestationError

PLATFORMS = {each.tsm: each.name for each in platforms.PLATFORMS if each.tsm is not None}  # by the kernel's name
_ATTEMPTS = 3


class TsmProvider(Provider):
    """One folder of configfs-tsm, kept for as long as the provider lives; safe to call from several
    threads.

    Raises AttestationError if the kernel has no such interface, or has it for another kind of
    machine.
    """

    def __init__(self, reports: Path = REPORTS) -> None:
        self._lock = threading.Lock()
        self._folder = reports / f"appliance-{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(mode=0o700)
        except OSError as error:
            raise _error(self._folder, error) from None
        try:
            self._kernel_name = self._text("provider")
            self._platform = PLATFORMS.get(self._kernel_name, "")
            if not self._platform:
                raise AttestationError(f"configfs-tsm: provider {self._kernel_name[:32]!r} is not known",
                                       code="tsm-provider", hint=f"known: {', '.join(PLATFORMS)}")
            self._raise_privilege_level()
        except AttestationError:
            self.close()
            raise

    @property
    def platform(self) -> str:
        """The one of the kernel's driver."""
        return self._platform

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report over just these 64 bytes, and the certificates that the host gave with it."""
        if len(report_data) != 64:
            raise ValueError("report data is 64 bytes")
        half = COLLECTORS[self._platform]
        with self._lock:
            for _ in range(_ATTEMPTS):
                before = self._generation()
                self._write("inblob", report_data)
                report, table = self._read("outblob"), self._optional("auxblob")
                if self._text("provider") != self._kernel_name:
                    raise AttestationError("configfs-tsm: the provider changed", code="tsm-provider")
                if self._generation() == before + 1 and half.reported(report) == report_data:
                    return ReportWithCollateral(report, half.certificates(table))
        raise AttestationError("configfs-tsm: each report was of other input than ours", code="tsm-race",
                               hint="something else on this machine writes to the appliance's folder")

    def close(self) -> None:
        """Remove the folder."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _raise_privilege_level(self) -> None:
        """Below an SVSM the guest may only ask at its own level or above, and has to say so (SNP
        alone has this)."""
        floor = self._optional("privlevel_floor").strip()
        if floor.isdigit() and int(floor) > 0:
            self._write("privlevel", floor)

    def _generation(self) -> int:
        text = self._text("generation")
        if not text.isdigit():
            raise AttestationError("configfs-tsm: generation is not a number", code="tsm-provider")
        return int(text)

    def _text(self, name: str) -> str:
        return self._read(name).decode("ascii", "replace").strip()

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise _error(self._folder / name, error) from None

    def _optional(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return b""

    def _write(self, name: str, data: bytes) -> None:
        try:
            with (self._folder / name).open("wb", buffering=0) as file:
                file.write(data)
        except OSError as error:
            raise _error(self._folder / name, error) from None


def _error(path: Path, error: OSError) -> AttestationError:
    return AttestationError(f"configfs-tsm: {path}: {error.strerror}", code="tsm-absent",
                            hint="the guest's kernel needs TSM_REPORTS and the driver of its platform, and the "
                            "appliance access to /sys/kernel/config/tsm")
