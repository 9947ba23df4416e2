"""Read what a linked ELF library offers, needs, and asks of the loader, to check it before it is
used.

ELF-64, little endian: System V ABI, chapters 4 and 5; every offset below is from there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from appliance.errors import FormatError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")  # type, flags, offset, vaddr, paddr, filesz, memsz, align
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, addr, offset, size, link, info, align, entsize
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_DYNAMIC = struct.Struct("<qQ")

_PT_GNU_STACK, _PT_GNU_RELRO = 0x6474E551, 0x6474E552
_PF_X, _PF_W = 1, 2
_SHT_DYNAMIC, _SHT_DYNSYM = 6, 11
_DT_NEEDED, _DT_INIT, _DT_TEXTREL, _DT_INIT_ARRAY, _DT_FLAGS = 1, 12, 22, 25, 30
_DF_TEXTREL, _DF_BIND_NOW = 4, 8


@dataclass(frozen=True)
class SharedObject:
    """Dynamic symbols and load properties of a library."""

    defined: frozenset[str]
    undefined: frozenset[str]
    writable_code: bool  # a segment both writable and executable, an executable stack, or relocated code
    runs_at_load: bool  # has initialisers
    needs_libraries: bool
    binds_now: bool  # all symbols are resolved at load, and the table is then read-only


def parse(data: bytes) -> SharedObject:
    """Parse a linked library. Raises FormatError if it is not a 64-bit little-endian ELF file."""
    try:
        return _parse(data)
    except (struct.error, IndexError, ValueError) as error:
        raise FormatError(f"not a linked ELF-64 library: {error}") from error


def _parse(data: bytes) -> SharedObject:
    head = _HEADER.unpack_from(data)
    if head[0][:6] != b"\x7fELF\x02\x01":
        raise FormatError("not a 64-bit little-endian ELF file")
    segments = [_SEGMENT.unpack_from(data, head[5] + i * _SEGMENT.size) for i in range(head[10])]
    sections = [_SECTION.unpack_from(data, head[6] + i * _SECTION.size) for i in range(head[12])]
    defined, undefined = _symbols(data, sections)
    dynamic = _dynamic(data, sections)
    stack = [flags for kind, flags, *_ in segments if kind == _PT_GNU_STACK]
    flags = dynamic.get(_DT_FLAGS, 0)
    mixed = any(segment[1] & _PF_X and segment[1] & _PF_W for segment in segments)
    return SharedObject(
        defined=defined, undefined=undefined,
        writable_code=mixed or not stack or any(f & _PF_X for f in stack) or _DT_TEXTREL in dynamic
        or bool(flags & _DF_TEXTREL),
        runs_at_load=_DT_INIT in dynamic or _DT_INIT_ARRAY in dynamic,
        needs_libraries=_DT_NEEDED in dynamic,
        binds_now=bool(flags & _DF_BIND_NOW) and any(segment[0] == _PT_GNU_RELRO for segment in segments),
    )


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> tuple[frozenset[str], frozenset[str]]:
    defined: set[str] = set()
    undefined: set[str] = set()
    for section in sections:
        if section[1] != _SHT_DYNSYM:
            continue
        names = sections[section[6]][4]
        for offset in range(section[4] + _SYMBOL.size, section[4] + section[5], _SYMBOL.size):  # the first is null
            name, _, _, where, _, _ = _SYMBOL.unpack_from(data, offset)
            text = data[names + name:data.index(0, names + name)].decode()
            (defined if where else undefined).add(text)
    return frozenset(defined), frozenset(undefined)


def _dynamic(data: bytes, sections: list[tuple[int, ...]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for section in sections:
        if section[1] == _SHT_DYNAMIC:
            for offset in range(section[4], section[4] + section[5], _DYNAMIC.size):
                tag, value = _DYNAMIC.unpack_from(data, offset)
                if tag:
                    found[tag] = value
    return found
