"""IGVM files by the format's own description (microsoft/igvm, igvm_defs), written and walked apart from the product's
code."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence

from sevsnpmeasure.gctx import GCTX

PLATFORM, POLICY, AREA, PAGE, INSERT, PROCESSOR, VP_COUNT = 0x1, 0x101, 0x301, 0x302, 0x303, 0x304, 0x307
VMSA_GPA = 0xFFFFFFFFF000
Header = tuple[int, bytes, bytes]  # type, record with 0 for the offset of its content, content


def platform(mask: int = 1, kind: int = 2) -> Header:
    """A platform: SEV-SNP has 2."""
    return PLATFORM, struct.pack("<IBBHQ", mask, 0, kind, 1, 0), b""


def policy(value: int = 0x30000, mask: int = 1) -> Header:
    """A guest policy."""
    return POLICY, struct.pack("<QII", value, mask, 0), b""


def page(gpa: int, content: bytes = b"", *, kind: int = 0, flags: int = 0, mask: int = 1) -> Header:
    """A page: 0 normal, 1 secrets, 2 CPUID."""
    return PAGE, struct.pack("<QIIIHH", gpa, mask, 0, flags, kind, 0), content


def processor(index: int, content: bytes, *, gpa: int = VMSA_GPA, mask: int = 1) -> Header:
    """A virtual CPU's state."""
    return PROCESSOR, struct.pack("<QIIHH", gpa, mask, 0, index, 0), content


def area(index: int, size: int) -> Header:
    """A parameter area."""
    return AREA, struct.pack("<QII", size, index, 0), b""


def insert(index: int, gpa: int, mask: int = 1) -> Header:
    """The place of an area."""
    return INSERT, struct.pack("<QII", gpa, mask, index), b""


def save_area(features: int = 1) -> bytes:
    """A virtual CPU's page with SEV_FEATURES only."""
    return bytes(0x3B0) + struct.pack("<Q", features) + bytes(4096 - 0x3B8)


def build(headers: Sequence[Header], **fixed: int) -> bytes:
    """The file; `fixed` changes a field of the fixed header, whose checksum is right all the same."""
    start = 24 + sum(8 + -(-len(record) // 8) * 8 for _, record, _ in headers)
    variable, contents = b"", b""
    for kind, record, content in headers:
        if content:
            place = bytearray(record)
            struct.pack_into("<I", place, 12, start + len(contents))
            record, contents = bytes(place), contents + content
        variable += struct.pack("<II", kind, len(record)) + record + bytes(-len(record) % 8)
    values = {"version": 1, "offset": 24, "size": len(variable), "total": start + len(contents), **fixed}
    return sealed(struct.pack("<4sIIII", b"IGVM", *values.values()) + bytes(4) + variable, contents)


def sealed(head: bytes, contents: bytes = b"") -> bytes:
    """Headers with their checksum, and content behind them."""
    return head[:20] + struct.pack("<I", zlib.crc32(head[:20] + bytes(4) + head[24:])) + head[24:] + contents


def walk(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each header's type and record."""
    at, end = 24, 24 + struct.unpack_from("<I", data, 12)[0]
    while at < end:
        kind, size = struct.unpack_from("<II", data, at)
        yield kind, data[at + 8:at + 8 + size]
        at += 8 + -(-size // 8) * 8


def digest(data: bytes, *, zeros: bool = False) -> bytes:
    """The launch digest of a file for one platform, by sev-snp-measure. `zeros`: pages without content are of the type
    ZERO, as in QEMU's own layout."""
    context = GCTX()
    for kind, record in walk(data):
        if kind == PAGE:
            gpa, _, offset, flags, what, _ = struct.unpack("<QIIIHH", record)
            if what in (1, 2):
                (context.update_secrets_page if what == 1 else context.update_cpuid_page)(gpa)
            elif flags & 2:
                context.update_unmeasured_pages(gpa, 4096)
            elif offset or not zeros:
                context.update_normal_pages(gpa, data[offset:offset + 4096] if offset else bytes(4096))
            else:
                context.update_zero_pages(gpa, 4096)
        elif kind == PROCESSOR:
            offset, = struct.unpack_from("<I", record, 12)
            context.update_vmsa_page(data[offset:offset + 4096])
    return context.ld()
