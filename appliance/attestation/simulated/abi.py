"""The bytes of a simulated report. SIMULATED: PROVES NOTHING.

Shaped like a hardware report so that each rule of verification is exercised, signed by a key that
anybody could have made. Layout in docs/formats/report-data.md, "Simulated reports". This module
reads and writes bytes; it checks no signature and judges no claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.errors import MalformedEvidenceError

MAGIC = b"SIMULATED - PROVES NOTHING".ljust(32, b"\x00")
VERSION = 1
# offset, size in bytes
MAGIC_AT = (0, 32)
VERSION_AT = (32, 4)         # unsigned, little endian
REPORT_DATA_AT = (36, 64)
HOST_DATA_AT = (100, 32)
PUBLIC_KEY_AT = (132, 32)    # raw Ed25519
SIGNATURE_AT = (164, 64)     # Ed25519 over bytes 0..163
SIGNED_BYTES = 164
REPORT_BYTES = 228


@dataclass(frozen=True)
class SimulatedReport:
    """A parsed report; `signed` are the bytes that `signature` covers."""

    report_data: bytes  # 64 bytes
    host_data: bytes    # 32 bytes
    public_key: bytes   # 32 bytes
    signature: bytes    # 64 bytes
    signed: bytes       # 164 bytes


def _cut(report: bytes, place: tuple[int, int]) -> bytes:
    return report[place[0]:place[0] + place[1]]


def parse(report: bytes) -> SimulatedReport:
    """Read a report. Raises MalformedEvidenceError on any other length, magic or version."""
    if len(report) != REPORT_BYTES:
        raise MalformedEvidenceError(f"simulated report: {len(report)} bytes, expected {REPORT_BYTES}")
    if _cut(report, MAGIC_AT) != MAGIC:
        raise MalformedEvidenceError("simulated report: the magic is another")
    version = int.from_bytes(_cut(report, VERSION_AT), "little")
    if version != VERSION:
        raise MalformedEvidenceError(f"simulated report: version {version} is unknown, expected {VERSION}")
    return SimulatedReport(
        report_data=_cut(report, REPORT_DATA_AT), host_data=_cut(report, HOST_DATA_AT),
        public_key=_cut(report, PUBLIC_KEY_AT), signature=_cut(report, SIGNATURE_AT),
        signed=report[:SIGNED_BYTES])


def unsigned(report_data: bytes, host_data: bytes, public_key: bytes) -> bytes:
    """The first 164 bytes of a report, which its signature covers."""
    if (len(report_data), len(host_data), len(public_key)) != (64, 32, 32):
        raise ValueError("report data, host data and public key are 64, 32 and 32 bytes")
    return MAGIC + VERSION.to_bytes(4, "little") + report_data + host_data + public_key
