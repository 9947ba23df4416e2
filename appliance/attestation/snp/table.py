"""A report with its certificates behind it, as an extended guest request gives it.

Source: AMD publication 56421, "SEV-ES Guest-Hypervisor Communication Block Standardization",
MSG_REPORT_REQ: entries of GUID, offset and length (little endian, offsets from the start of the
table), closed by an entry of zeros.
"""

from __future__ import annotations

import uuid

from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

MAX_ENTRIES = 32
CERTIFICATES = {
    "63da758d-e664-4564-adc5-f4b93be8accd": "VCEK", "a8074bc2-a25a-483e-aae6-39c045a0b8a1": "VLEK",
    "4ab7b379-bbac-4fe4-a02f-05aef327c782": "ASK", "c0b406a4-a803-4952-9743-3fb6014cd0ae": "ARK",
    "92f81bc3-5811-4d3d-97ff-d19f88dc67ea": "CRL"}  # this one by virtee's sev and snphost, which write such tables


def split(data: bytes) -> tuple[bytes, dict[str, bytes], bytes]:
    """The report, the certificates of the table behind it by name (DER or PEM), and what is
    neither.

    Nothing signs what follows a report, so bytes that are not a table are left for the caller to
    name. Zeros are padding. Raises MalformedEvidenceError where the report is cut.
    """
    if len(data) < REPORT_BYTES:
        raise MalformedEvidenceError(f"SEV-SNP report: {len(data)} bytes, expected {REPORT_BYTES}")
    report, table = data[:REPORT_BYTES], data[REPORT_BYTES:]
    if not any(table):
        return report, {}, b""
    try:
        found = _certificates(table)
    except MalformedEvidenceError:
        found = {}
    return report, found, b"" if found else table


def _certificates(table: bytes) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    cursor = Cursor(table, "SEV-SNP certificate table", "little")
    for _ in range(MAX_ENTRIES):
        guid = str(uuid.UUID(bytes=cursor.take(16, "GUID")))
        offset, size = cursor.number(4, "offset"), cursor.number(4, "length")
        if not offset and not size:
            return found
        if offset + size > len(table):
            raise MalformedEvidenceError(f"SEV-SNP certificate table: the entry {guid} is outside of the table")
        found[CERTIFICATES.get(guid, guid)] = table[offset:offset + size]
    raise MalformedEvidenceError(f"SEV-SNP certificate table: more than {MAX_ENTRIES} entries")
