"""TPM evidence in one piece: quote, signature, key, PCR values, event log. The format:
docs/formats/tpm-evidence.md.

    magic      8 bytes: "TPMEVID" and the version, 1; 2 with a TD quote
    records    number (1 byte), length (4 bytes, big endian), content; in ascending order of number, each at most once

This module reads and writes bytes; it checks no signature and judges no claim.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

from appliance.attestation.tpm import abi
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

MAGIC, VERSIONS = b"TPMEVID", (1, 2)
DOMAIN = b"appliance/tpm-quote/v1\n"
_RECORDS = ("quote", "signature", "key", "pcrs", "log", "key_certificate", "ek_certificate", "azure_report",
            "td_quote")
_RECORDS_OF = {1: 8, 2: 9}  # how many of them a version has
_REQUIRED = 4
AZURE_MAGIC = b"HCLA"  # as `azure_report` begins
MAX_LOG_BYTES = 1 << 18
# record -> bytes at most
_LIMITS = {"quote": 4096, "signature": 1024, "key": 1024, "pcrs": 24 * 64 * 3, "log": MAX_LOG_BYTES,
           "key_certificate": 8192, "ek_certificate": 8192, "azure_report": 1 << 14,
           "td_quote": 1 << 14}


@dataclass(frozen=True)
class TpmEvidence:
    """The records. `pcrs`: the quoted values in the order of the quote; None for what is not there.
    """

    quote: bytes                            # TPMS_ATTEST
    signature: bytes                        # TPMT_SIGNATURE
    key: bytes                              # TPM2B_PUBLIC of the attestation key
    pcrs: bytes
    log: bytes | None = None                # TCG event log, crypto-agile
    key_certificate: bytes | None = None    # DER
    ek_certificate: bytes | None = None     # DER
    azure_report: bytes | None = None       # as NV index 0x01400001 holds it
    td_quote: bytes | None = None           # of the TDREPORT in it, where it has one

    def to_bytes(self) -> bytes:
        """The container."""
        out = MAGIC + bytes((1 if self.td_quote is None else 2,))
        for number, name in enumerate(_RECORDS, start=1):
            content: bytes | None = getattr(self, name)
            if content is not None:
                out += struct.pack(">BI", number, len(content)) + content
        return out

    def values(self) -> dict[str, dict[int, bytes]]:
        """PCR values by bank and number, as the quote selects them. Raises MalformedEvidenceError.
        """
        cursor = Cursor(self.pcrs, "TPM evidence, PCR values", "big")
        found: dict[str, dict[int, bytes]] = {}
        for selection in abi.parse_quote(self.quote).selections:
            size = hashlib.new(selection.bank).digest_size
            if selection.bank in found:
                raise MalformedEvidenceError(f"TPM evidence: the quote selects {selection.bank} twice")
            found[selection.bank] = {number: cursor.take(size, f"PCR {number}") for number in selection.pcrs}
        cursor.end()
        return found

    def without_log(self) -> TpmEvidence:
        """The same without its event log, where room is short."""
        return replace(self, log=None)


def parse(data: bytes) -> TpmEvidence:
    """Read a container. Raises MalformedEvidenceError, or UnsupportedEvidenceError on another
    version."""
    cursor = Cursor(data, "TPM evidence", "big")
    if cursor.take(len(MAGIC), "magic") != MAGIC:
        raise MalformedEvidenceError("TPM evidence: the magic is another")
    version = cursor.number(1, "version")
    if version not in VERSIONS:
        raise UnsupportedEvidenceError(f"TPM evidence: version {version} is not known, expected 1 or 2")
    found: dict[str, bytes] = {}
    last = 0
    while cursor.left:
        number = cursor.number(1, "record number")
        if not last < number <= _RECORDS_OF[version]:
            raise MalformedEvidenceError(f"TPM evidence: record {number} after record {last}")
        last, name = number, _RECORDS[number - 1]
        found[name] = cursor.sized(4, name)
        if not 0 < len(found[name]) <= _LIMITS[name]:
            raise MalformedEvidenceError(f"TPM evidence: {name} has {len(found[name])} bytes, 1 to {_LIMITS[name]}")
    absent = [name for name in (*_RECORDS[:_REQUIRED], *(["td_quote"] if version == 2 else [])) if name not in found]
    if absent:
        raise MalformedEvidenceError(f"TPM evidence: {absent[0]} is absent")
    return TpmEvidence(**found)


def qualifying_data(report_data: bytes) -> bytes:
    """The quote's extraData for 64 bytes of report data: 32 bytes, since a TPM need not take more
    than 34."""
    return hashlib.sha256(DOMAIN + report_data).digest()
