"""Golden values: PCR 0 and PCR 7 as a machine showed them, since no file gives them.

They move with firmware, memory and number of CPUs, so they are recorded for each shape of machine,
by whoever trusts the machine while it is recorded. The record is a small file of canonical JSON,
which `predict` takes in.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pydantic import ValidationError

from appliance.attestation.binding import describe
from appliance.attestation.case import event_log, reading
from appliance.attestation.measured.first import GOLDEN_PCRS, Golden
from appliance.attestation.tpm import container
from appliance.attestation.tpm.judging import verify
from appliance.codec.canonical import canonical
from appliance.errors import ApplianceError, ImageError
from appliance.imaging.predict import machine as predict_machine
from appliance.imaging.qemu import run
from appliance.imaging.qemu.machine import FIRMWARE
from appliance.policy import inputfile

FORMAT = "appliance/golden/v1"
MAX_BYTES = 1 << 21


def record(machine: str, firmware: Path, source: Path) -> Golden:
    """Golden values out of `source`: an event log, or the appliance's own TPM evidence. Raises
    ImageError."""
    values = _values(source)
    absent = [number for number in GOLDEN_PCRS if number not in values]
    if absent:
        raise ImageError(f"{source}: shows no SHA-256 value of PCR {absent[0]}")
    return of(machine, _sha256(firmware), values)


def started(machine: str, shape: run.Options) -> Golden:
    """Golden values of a QEMU machine, which is started once with a software TPM. Raises
    ImageError."""
    return of(machine, _sha256(FIRMWARE[0]), predict_machine.registers(shape))


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ImageError(f"firmware {path}: {error.strerror}") from None


def of(machine: str, firmware_sha256: str, values: dict[int, bytes]) -> Golden:
    """Golden values from registers. Raises ImageError on a machine's name that is none."""
    try:
        return Golden(machine=machine, firmware_sha256=firmware_sha256,
                      pcrs={str(number): values[number].hex() for number in GOLDEN_PCRS})
    except ValidationError as error:
        raise ImageError(f"golden values: {describe(error)}",
                         hint="a machine's name is letters, digits, dot, hyphen, underscore, plus") from None


def _values(source: Path) -> dict[int, bytes]:
    """SHA-256 registers by number."""
    data = _read(source)
    try:
        if data[:1] == b"{":
            parts = container.parse(reading.parse(data).report_bytes())
            claims = verify.verify(parts.quote, parts.signature, verify.load_key(parts.key),
                                       pcrs=parts.values(), log=parts.log)
            return dict(claims.pcrs.get("sha256", {}))
        return event_log.replay(event_log.parse(data), "sha256")
    except ApplianceError as error:
        raise ImageError(f"{source}: {error.summary}",
                         hint="give TPM evidence of the machine, or its event log: "
                         "/sys/kernel/security/tpm0/binary_bios_measurements") from None


def to_json(golden: Golden) -> bytes:
    """Return the file's bytes."""
    return canonical({"format": FORMAT, **golden.model_dump(mode="json")})


def load(path: Path) -> Golden:
    """Read what `to_json` wrote. Raises ImageError."""
    data = _read(path, f"make it first: appliance image record DIR --machine NAME -o {path}")
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or value.pop("format", None) != FORMAT:
            raise ImageError(f"{path}: not golden values of format {FORMAT}")
        found = Golden.model_validate(value)
    except ValidationError as error:
        raise ImageError(f"{path}: {describe(error)}") from None
    except (ValueError, RecursionError):
        raise ImageError(f"{path}: not JSON") from None
    if to_json(found) != data:
        raise ImageError(f"{path}: not in canonical form, or a key stands twice")
    return found


def _read(path: Path, hint: str | None = None) -> bytes:
    try:
        return inputfile.read(path, MAX_BYTES)
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint=hint) from None

