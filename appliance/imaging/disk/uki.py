"""A unified kernel image: sections appended to systemd's EFI stub (systemd-stub(7), "Microsoft PE
Format").

The stub finds its parts by section name. Its own bytes and order are kept, so that a predictor sees
what firmware sees.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from appliance.errors import ImageError

_PE_OFFSET_AT = 0x3C
_COFF = 24  # bytes of signature and COFF header
_SECTION = struct.Struct("<8sIIIIIIHHI")  # name, size, address, raw size, raw offset, 3 unused, 2 unused, flags
_INITIALISED_READABLE = 0x40000040
# offsets in the optional header
_INITIALISED_SIZE, _SECTION_ALIGN, _FILE_ALIGN, _IMAGE_SIZE, _HEADERS_SIZE = 8, 32, 36, 56, 60


def assemble(stub: bytes, sections: Iterable[tuple[str, bytes]]) -> bytes:
    """The stub with these sections behind its own. ImageError when it is not a PE32+ file or its
    header is full."""
    image = bytearray(stub)
    try:
        pe = struct.unpack_from("<I", image, _PE_OFFSET_AT)[0]
        if image[pe:pe + 4] != b"PE\0\0" or struct.unpack_from("<H", image, pe + _COFF)[0] != 0x20B:
            raise ImageError("the boot stub is not a PE32+ file")
        for name, data in sections:
            _append(image, pe, name, data)
    except struct.error as error:
        raise ImageError(f"the boot stub is cut off: {error}") from None
    return bytes(image)


def _append(image: bytearray, pe: int, name: str, data: bytes) -> None:
    count, optional_size = struct.unpack_from("<H", image, pe + 6)[0], struct.unpack_from("<H", image, pe + 20)[0]
    optional = pe + _COFF
    table = optional + optional_size
    section_align, file_align = struct.unpack_from("<II", image, optional + _SECTION_ALIGN)
    known = [_SECTION.unpack_from(image, table + _SECTION.size * index) for index in range(count)]
    entry = table + _SECTION.size * count
    if entry + _SECTION.size > min(section[4] for section in known if section[4]):
        raise ImageError(f"no room in the boot stub's header for section {name}")
    address = _up(max(section[2] + section[1] for section in known), section_align)
    raw_size = _up(len(data), file_align)
    image += bytes(-len(image) % file_align)
    offset = len(image)
    image += data + bytes(raw_size - len(data))
    _SECTION.pack_into(image, entry, name.encode(), len(data), address, raw_size, offset, 0, 0, 0, 0,
                       _INITIALISED_READABLE)
    struct.pack_into("<H", image, pe + 6, count + 1)
    headers = struct.unpack_from("<I", image, optional + _HEADERS_SIZE)[0]
    struct.pack_into("<I", image, optional + _HEADERS_SIZE, max(headers, _up(entry + _SECTION.size, file_align)))
    struct.pack_into("<I", image, optional + _IMAGE_SIZE, _up(address + len(data), section_align))
    initialised = struct.unpack_from("<I", image, optional + _INITIALISED_SIZE)[0]
    struct.pack_into("<I", image, optional + _INITIALISED_SIZE, initialised + raw_size)


def _up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
