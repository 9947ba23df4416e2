"""A unified kernel image: sections appended to systemd's EFI stub (systemd-stub(7), "Microsoft PE
Format").

The stub finds its parts by section name. Its own bytes and order are kept, so that a predictor sees
what firmware sees. The first section behind it is the gate (image/gate/gate.c), where the program
begins.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from appliance.errors import ImageError

_PE_OFFSET_AT = 0x3C
_COFF = 24  # bytes of signature and COFF header
_SECTION = struct.Struct("<8sIIIIIIHHI")  # name, size, address, raw size, raw offset, 3 unused, 2 unused, flags
_INITIALISED_READABLE, _CODE = 0x40000040, 0x60000020
# offsets in the optional header
_CODE_SIZE, _INITIALISED_SIZE, _ENTRY = 4, 8, 16
_SECTION_ALIGN, _FILE_ALIGN, _IMAGE_SIZE, _HEADERS_SIZE = 32, 36, 56, 60
GATE = ".gate"


@dataclass(frozen=True)
class Place:
    """Addresses relative to the program's: where the section behind a stub begins, and the stub's
    first instruction."""

    address: int
    entry: int


def place(stub: bytes) -> Place:
    """Where the gate of this stub goes. Raises ImageError if it is not a PE32+ file."""
    with _headers(stub) as pe:
        known, section_align, _ = _sections(stub, pe)
        return Place(_up(_end(known), section_align), struct.unpack_from("<I", stub, pe + _COFF + _ENTRY)[0])


def assemble(stub: bytes, gate: bytes, sections: Iterable[tuple[str, bytes]]) -> bytes:
    """Return the stub with a gate and these sections behind its own; the gate's first byte is the
    program's first instruction.

    Raises ImageError if the stub is not a PE32+ file, or its header is full.
    """
    image = bytearray(stub)
    with _headers(stub) as pe:
        _append(image, pe, GATE, gate, _CODE)
        struct.pack_into("<I", image, pe + _COFF + _ENTRY, place(stub).address)
        for name, data in sections:
            _append(image, pe, name, data, _INITIALISED_READABLE)
    return bytes(image)


@contextlib.contextmanager
def _headers(stub: bytes) -> Iterator[int]:
    """Yield the offset of the PE header. A header that is cut off raises ImageError."""
    try:
        pe = struct.unpack_from("<I", stub, _PE_OFFSET_AT)[0]
        if stub[pe:pe + 4] != b"PE\0\0" or struct.unpack_from("<H", stub, pe + _COFF)[0] != 0x20B:
            raise ImageError("the boot stub is not a PE32+ file")
        yield pe
    except struct.error as error:
        raise ImageError(f"the boot stub is cut off: {error}") from None


def _sections(image: bytes | bytearray, pe: int) -> tuple[list[tuple[int, ...]], int, int]:
    """Return the section table, and the alignment of sections in memory and in the file."""
    count, optional_size = struct.unpack_from("<H", image, pe + 6)[0], struct.unpack_from("<H", image, pe + 20)[0]
    table = pe + _COFF + optional_size
    section_align, file_align = struct.unpack_from("<II", image, pe + _COFF + _SECTION_ALIGN)
    return ([_SECTION.unpack_from(image, table + _SECTION.size * index) for index in range(count)],
            section_align, file_align)


def _end(known: list[tuple[int, ...]]) -> int:
    return max(section[2] + section[1] for section in known)


def _append(image: bytearray, pe: int, name: str, data: bytes, flags: int) -> None:
    known, section_align, file_align = _sections(image, pe)
    optional = pe + _COFF
    entry = optional + struct.unpack_from("<H", image, pe + 20)[0] + _SECTION.size * len(known)
    if entry + _SECTION.size > min(section[4] for section in known if section[4]):
        raise ImageError(f"no room in the boot stub's header for section {name}")
    address = _up(_end(known), section_align)
    raw_size = _up(len(data), file_align)
    image += bytes(-len(image) % file_align)
    offset = len(image)
    image += data + bytes(raw_size - len(data))
    _SECTION.pack_into(image, entry, name.encode(), len(data), address, raw_size, offset, 0, 0, 0, 0,
                       flags)
    struct.pack_into("<H", image, pe + 6, len(known) + 1)
    headers = struct.unpack_from("<I", image, optional + _HEADERS_SIZE)[0]
    struct.pack_into("<I", image, optional + _HEADERS_SIZE, max(headers, _up(entry + _SECTION.size, file_align)))
    struct.pack_into("<I", image, optional + _IMAGE_SIZE, _up(address + len(data), section_align))
    total = optional + (_CODE_SIZE if flags == _CODE else _INITIALISED_SIZE)
    struct.pack_into("<I", image, total, struct.unpack_from("<I", image, total)[0] + raw_size)


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
