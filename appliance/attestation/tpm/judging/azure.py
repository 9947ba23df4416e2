"""The content of NV index 0x01400001 of an Azure confidential VM's vTPM: a hardware report and
runtime data.

Source: Microsoft, "Guest attestation for confidential VMs" (hardware report, runtime data). All
integers are little endian. The firmware below the guest puts SHA-256 of the runtime data, which
names the vTPM's attestation key, into the hardware report's report data: that is what ties a vTPM
to the hardware. This module reads bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from appliance.attestation.tpm.container import AZURE_MAGIC
from appliance.codec import strict
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

MAGIC = AZURE_MAGIC
HARDWARE_BYTES = 1184      # an SEV-SNP report, or a TDREPORT of 1,024 bytes and zeros
_RUNTIME_AT = 32 + HARDWARE_BYTES + 16  # header, hardware report; size, version, report type and hash type
SNP, TDX = 2, 4            # report types
SHA256 = 1                 # hash types
AK_NAME = "HCLAkPub"


@dataclass(frozen=True)
class HclReport:
    """A parsed report: `kind` is SNP or TDX, `runtime` the bytes that the hardware report binds."""

    kind: int
    hardware: bytes
    runtime: bytes
    keys: tuple[dict[str, Any], ...]  # JSON Web Keys, RFC 7517

    def attestation_key(self) -> tuple[int, int] | None:
        """Modulus and exponent of the vTPM's attestation key, if the runtime data names one."""
        for key in self.keys:
            if key.get("kid") == AK_NAME and key.get("kty") == "RSA":
                return _number(key.get("n")), _number(key.get("e"))
        return None


def _number(text: object) -> int:
    if not isinstance(text, str) or not text.isascii():
        raise MalformedEvidenceError("Azure report: a number of its attestation key is absent")
    try:
        return int.from_bytes(strict.base64url(text), "big")
    except ValueError:
        raise MalformedEvidenceError("Azure report: a number of its attestation key is not base64url") from None


def split(data: bytes) -> tuple[bytes, bytes]:
    """The report at the front of `data`, and what follows it, which nothing signs; zeros count as
    its padding.

    Only the lengths are read. Raises MalformedEvidenceError where the report is cut.
    """
    cursor = Cursor(data, "Azure report", "little")
    cursor.take(_RUNTIME_AT, "header and hardware report")
    cursor.sized(4, "runtime data")
    tail = data[cursor.at:]
    return (data[:cursor.at], tail) if any(tail) else (data, b"")


def parse(data: bytes) -> HclReport:
    """Read a report; zeros may follow it. Raises MalformedEvidenceError or
    UnsupportedEvidenceError."""
    cursor = Cursor(data, "Azure report", "little")
    if cursor.take(4, "magic") != MAGIC:
        raise MalformedEvidenceError("Azure report: the magic is another")
    cursor.take(28, "header")
    hardware = cursor.take(HARDWARE_BYTES, "hardware report")
    cursor.take(8, "size and version")
    kind, hashing = cursor.number(4, "report type"), cursor.number(4, "hash type")
    if kind not in (SNP, TDX) or hashing != SHA256:
        raise UnsupportedEvidenceError(f"Azure report: report type {kind} or hash type {hashing} is not known")
    runtime = cursor.sized(4, "runtime data")
    if any(cursor.take(cursor.left, "padding")):
        raise MalformedEvidenceError("Azure report: something follows the runtime data")
    try:
        keys = json.loads(runtime)["keys"]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise MalformedEvidenceError("Azure report: the runtime data is not JSON with keys") from None
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise MalformedEvidenceError("Azure report: the runtime data's keys are not objects")
    return HclReport(kind, hardware, runtime, tuple(keys))
