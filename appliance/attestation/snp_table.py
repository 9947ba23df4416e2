"""A report with its certificates behind it, as an extended guest request gives it.

Source: AMD publication 56421, "SEV-ES Guest-Hypervisor Communication Block Standardization", MSG_REPORT_REQ: entries
of GUID, offset and length (little endian, offsets from the start of the table), closed by an entry of zeros.
"""

from __future__ import annotations

import uuid

from appliance.attestation.cursor import Cursor
from appliance.attestation.snp_abi import REPORT_BYTES
from appliance.errors import MalformedEvidenceError

MAX_ENTRIES = 32
CERTIFICATES = {
    "63da758d-e664-4564-adc5-f4b93be8accd": "VCEK", "a8074bc2-a25a-483e-aae6-39c045a0b8a1": "VLEK",
    "4ab7b379-bbac-4fe4-a02f-05aef327c782": "ASK", "c0b406a4-a803-4952-9743-3fb6014cd0ae": "ARK"}


def split(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """The report, and the certificates of the table behind it by name. Raises MalformedEvidenceError."""
    report, table = data[:REPORT_BYTES], data[REPORT_BYTES:]
    found: dict[str, bytes] = {}
    if not any(table):
        return report, found
    cursor = Cursor(table, "SEV-SNP certificate table", "little")
    for _ in range(MAX_ENTRIES):
        guid = str(uuid.UUID(bytes=cursor.take(16, "GUID")))
        offset, size = cursor.number(4, "offset"), cursor.number(4, "length")
        if not offset and not size:
            return report, found
        if offset + size > len(table):
            raise MalformedEvidenceError(f"SEV-SNP certificate table: the entry {guid} is outside of the table")
        found[CERTIFICATES.get(guid, guid)] = table[offset:offset + size]
    raise MalformedEvidenceError(f"SEV-SNP certificate table: more than {MAX_ENTRIES} entries")
