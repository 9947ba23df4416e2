"""OVMF files of two pages and a table at the end, as the real ones lay it out."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence

FOOTER = "96b582de-1fb2-45f7-baea-a366c55a082d"
SEV_RESET = "00f771de-1a7e-4fcb-890e-68c77e2fb44e"
SEV_HASHES = "7255371f-3a3b-4b04-927b-1da6efa8d454"
SEV_METADATA = "dc886566-984a-4798-a75e-5585a7bf67cc"
TDX_METADATA = "e47a6535-984a-4798-865e-4685a7bf8ec2"
SNP_SECTIONS = ((0x800000, 0x9000, 1), (0x80D000, 0x1000, 2), (0x80E000, 0x1000, 3), (0x80F000, 0x1000, 4),
                (0x810000, 0x1000, 0x10))
TDX_SECTIONS = ((0, 0x4000, 0xFFFFC000, 0x4000, 0, 1), (0, 0, 0x809000, 0x2000, 2, 0), (0, 0, 0x800000, 0x1000, 3, 0))
SIZE = 0x4000
METADATA_AT, TDVF_AT = 0x1000, 0x1800


def firmware(*, snp: Sequence[tuple[int, ...]] | None = SNP_SECTIONS, hashes: int = 0x810C00,
             tdx: Sequence[tuple[int, ...]] | None = TDX_SECTIONS, reset: int = 0x80B004,
             footer: str = FOOTER) -> bytes:
    """A file with these metadata; None leaves an entry out."""
    data = bytearray(b"\xf4" * SIZE)
    entries = [(SEV_RESET, struct.pack("<I", reset)), (SEV_HASHES, struct.pack("<II", hashes, 0x400))]
    for name, magic, at, sections, layout in (
            (SEV_METADATA, b"ASEV", METADATA_AT, snp, "<3I"), (TDX_METADATA, b"TDVF", TDVF_AT, tdx, "<2I2Q2I")):
        if sections is not None:
            body = b"".join(struct.pack(layout, *section) for section in sections)
            head = struct.pack("<4sIII", magic, 16 + len(body), 1, len(sections))
            data[at:at + 16 + len(body)] = head + body
            entries.append((name, struct.pack("<I", SIZE - at)))
    table = b"".join(content + struct.pack("<H", len(content) + 18) + uuid.UUID(guid).bytes_le
                     for guid, content in reversed(entries))
    table += struct.pack("<H", len(table) + 18) + uuid.UUID(footer).bytes_le
    data[SIZE - 32 - len(table):SIZE - 32] = table
    return bytes(data)
