"""Rows of measurements for Google's machines: launch values by its signed endorsement, and the
registers of the boot by the image's own files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from appliance.attestation import keyfile
from appliance.attestation.case import event_log
from appliance.attestation.google import endorsement, launches
from appliance.attestation.google.endorsement import LaunchEndorsement, TdxLaunch
from appliance.attestation.measured.events import BootEvent, rtmrs
from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.second import WHOLE, SnpRow, TdxRow
from appliance.attestation.x509 import walks
from appliance.errors import ImageError
from appliance.imaging.google import log
from appliance.imaging.predict import firmware as predict_firmware
from appliance.imaging.predict import tdx
from appliance.imaging.predict.firmware import Firmware
from appliance.policy import inputfile

FORMS = (1, 2)  # separators in RTMR 1: every public log that was at hand has one; two are reported
FROM_LOG = "RTMR 0: boot variables, ACPI tables and the separator are as one machine's log had them"


@dataclass(frozen=True)
class GoogleMachines:
    """The document of Google's endorsement. RTMR 0 takes the firmware's file, the event log of a
    machine, and sizes of memory in GiB as well."""

    document: Path
    at: datetime
    firmware: Path | None = None
    log: Path | None = None
    ram_gib: tuple[int, ...] = ()
    root: str = endorsement.ROOT


def rows(options: GoogleMachines, boot: Sequence[BootEvent]) -> tuple[tuple[TdxRow, ...], tuple[SnpRow, ...]]:
    """Return the rows of an image on Google's machines. Raises ImageError, AttestationError."""
    said, file = _endorsement(options), None
    if options.firmware is not None:
        file = _firmware(options.firmware, said)
    elif options.log is not None or options.ram_gib:
        raise ImageError("RTMR 0 is computed from the firmware and the log of a machine",
                         hint="give all three: --gce-firmware FILE.fd --gce-log CCEL --gce-ram GIB")
    return tuple(_tdx(said, file, options, boot)), _snp(said)


def _endorsement(options: GoogleMachines) -> LaunchEndorsement:
    beside = options.document.with_name(endorsement.ROOT_FILE)
    found = walks.load(keyfile.read(beside, "root"), beside.name) if beside.exists() else []
    return endorsement.read(_read(options.document, endorsement.MAX_BYTES), at=options.at, certificates=found,
                            root=options.root)


def _firmware(path: Path, said: LaunchEndorsement) -> Firmware:
    data = _read(path, predict_firmware.MAX_BYTES)
    found = hashlib.sha384(data).hexdigest()
    if found != said.firmware_sha384.hex():
        raise ImageError(f"firmware {path}: SHA-384 {found}, the endorsement is of {said.firmware_sha384.hex()}",
                         code="image-firmware", hint="fetch the file of this digest from Google's bucket")
    return predict_firmware.parse(data, f"firmware {path}")


def _tdx(said: LaunchEndorsement, file: Firmware | None, options: GoogleMachines,
         boot: Sequence[BootEvent]) -> Iterator[TdxRow]:
    computed = None if file is None else tdx.mrtd(file, "page")
    for launch in said.tdx:
        for ram, zeroth in _registers(file, options, launch):
            for form in FORMS:
                _, first, second, third = rtmrs(boot, form)
                yield TdxRow(
                    source="gce-endorsement", covers=WHOLE, svn=said.tdx_svn, firmware_sha256=None,
                    firmware_sha384=said.firmware_sha384.hex(), page_order="page" if launch.mrtd == computed else None,
                    ram_gib=ram, early_accept=launch.early_accept if ram else None, mrtd=launch.mrtd.hex(),
                    rtmr=(None if zeroth is None else zeroth.hex(), first.hex(), second.hex(), third.hex()),
                    unverified=(*launches.UNVERIFIED, *((FROM_LOG,) if zeroth else ())))


def _registers(file: Firmware | None, options: GoogleMachines,
               launch: TdxLaunch) -> Iterator[tuple[int | None, bytes | None]]:
    """Yield each size of memory with its RTMR 0, or the endorsed one without."""
    if file is None or options.log is None or not options.ram_gib:
        yield launch.ram_gib, None
        return
    events = event_log.parse(_read(options.log, event_log.MAX_LOG_BYTES))
    for ram in options.ram_gib:
        if launch.ram_gib in (None, ram):
            yield ram, log.rtmr0(events, file, ram)


def _snp(said: LaunchEndorsement) -> tuple[SnpRow, ...]:
    if (most := max(said.snp, default=0)) > MAX_VCPUS:
        raise ImageError(f"the endorsement has a launch of {most} processors, and measurements have at most "
                         f"{MAX_VCPUS}", hint="take the endorsement of another firmware")
    return launches.snp_rows(said)


def _read(path: Path, most: int) -> bytes:
    try:
        data = inputfile.read(path, most + 1)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}") from None
    if len(data) > most:
        raise ImageError(f"{path}: more than {most} bytes")
    return data
