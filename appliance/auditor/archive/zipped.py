"""ZIP archives in one form (PKWARE APPNOTE 6.3.9): the same members give the same bytes.

Any tool opens them. This reader takes no other form: entries follow each other from the first byte
on, the directory repeats them, and nothing stands between, before or behind. So no name stands
twice, no entry hides in another, and an altered byte is found where it is. Entries are deflated, or
stored where that is no larger. There is no ZIP64, no encryption, no comment, no extra field and no
time of a file.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from appliance.codec.printable import plain
from appliance.errors import AuditError

MAX_ENTRIES, MAX_NAME_BYTES = 4096, 128
MAX_BYTES = 1 << 30  # of the archive
STORED, DEFLATED = 0, 8
_VERSION, _DATE = 20, 0x21  # 2.0; the first of January 1980
_LEVEL = 6
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")


@dataclass(frozen=True)
class Entry:
    """One entry as it stands in an archive. `size`: of its content; `packed`: its bytes there."""

    name: str
    method: int
    crc: int
    size: int
    packed: bytes

    def content(self) -> bytes:
        """Return the content. Raises AuditError if it is not of the length and the CRC that are
        said."""
        if self.method == STORED:
            found, whole = self.packed, True
        else:
            inflate = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                found = inflate.decompress(self.packed, self.size + 1)
            except zlib.error:
                raise damaged(self.name, "it cannot be inflated") from None
            whole = inflate.eof and not inflate.unused_data
        if not whole or len(found) != self.size or zlib.crc32(found) != self.crc:
            raise damaged(self.name, "its content is not what its header says")
        return found


def damaged(name: str, what: str) -> AuditError:
    """Return the error about one entry, which it names."""
    return AuditError(f"pack: {plain(name, MAX_NAME_BYTES)}: {what}", code="pack-altered",
                      hint="take the pack as it was written")


def stored(name: str, content: bytes) -> Entry:
    """Return an entry of this content as it is."""
    return Entry(name, STORED, zlib.crc32(content), len(content), content)


def entry(name: str, content: bytes) -> Entry:
    """Return an entry of this content, deflated where that is shorter."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = deflate.compress(content) + deflate.flush()
    if len(packed) >= len(content):
        return stored(name, content)
    return Entry(name, DEFLATED, zlib.crc32(content), len(content), packed)


def written(entries: list[Entry]) -> bytes:
    """Return the archive of these entries, in this order."""
    parts, directory, at = list[bytes](), list[bytes](), 0
    for each in entries:
        parts += [_header(each), each.packed]
        directory.append(_listed(each, at))
        at += len(parts[-2]) + len(each.packed)
    return b"".join([*parts, *directory, _end(len(entries), sum(map(len, directory)), at)])


def read(data: bytes, most: Callable[[str], int]) -> Mapping[str, Entry]:
    """Return the entries by name, none of them inflated. Raises AuditError for any other form, and
    for an entry of more content than `most` says of its name."""
    count, place = _opened(data)
    found: dict[str, Entry] = {}
    at, start = 0, place
    for number in range(count):
        if at == start:
            raise damaged("the archive's end", "it counts more entries than there are")
        each, listed = _entry(data, number, at, place, start)
        if each.name in found:
            raise damaged(each.name, "it stands twice")
        if each.size > most(each.name):
            raise damaged(each.name, f"{each.size} bytes, at most {most(each.name)} are taken")
        found[each.name] = each
        at, place = at + len(_header(each)) + len(each.packed), place + listed
    if at != start or data[place:] != _end(count, place - start, start):
        raise damaged("the archive's end", "it is not what the entries need")
    return found


def _opened(data: bytes) -> tuple[int, int]:
    """How many entries there are, and where the directory begins."""
    if len(data) > MAX_BYTES:
        raise damaged("the archive", f"{len(data)} bytes, at most {MAX_BYTES} are read")
    try:
        signature, *_, count, _, place, _ = _END.unpack(data[-_END.size:])
    except struct.error:
        signature, count, place = b"", 0, 0
    if signature != b"PK\5\6" or not 0 < count <= MAX_ENTRIES or place > len(data) - _END.size:
        raise damaged("the archive's end", "not the end of a pack")
    return count, place


def _entry(data: bytes, number: int, at: int, place: int, start: int) -> tuple[Entry, int]:
    """Return the entry at `at`, and the length of its line in the directory, which begins at
    `start`."""
    told = _Names.at(data, number, at, place)
    try:
        _, _, _, _, method, _, _, crc, packed, size, length, *_ = _CENTRAL.unpack_from(data, place)
        name = data[place + _CENTRAL.size:place + _CENTRAL.size + length].decode("ascii")
    except (struct.error, UnicodeDecodeError):
        raise damaged(told, "its line in the directory is not in form") from None
    begins = at + _LOCAL.size + length
    if method not in (STORED, DEFLATED) or length > MAX_NAME_BYTES or begins + packed > start or (
            method == STORED and packed != size):
        raise damaged(told, "its line in the directory is not in form")
    found = Entry(name, method, crc, size, data[begins:begins + packed])
    if data[place:place + _CENTRAL.size + length] != _listed(found, at) or data[at:begins] != _header(found):
        raise damaged(told, "its header and its line in the directory are not one")
    return found, _CENTRAL.size + length


class _Names:
    """Words for an entry whose header or line in the directory may be altered: one of its names is
    whole."""

    @staticmethod
    def at(data: bytes, number: int, at: int, place: int) -> str:
        """Both names that an entry has, once if they are one."""
        found = dict.fromkeys(_Names._read(data, at, _LOCAL.size, 26) + _Names._read(data, place, _CENTRAL.size, 28))
        return " or ".join(found) or f"entry {number}"

    @staticmethod
    def _read(data: bytes, at: int, header: int, length_at: int) -> list[str]:
        length = int.from_bytes(data[at + length_at:at + length_at + 2], "little")
        name = data[at + header:at + header + min(length, MAX_NAME_BYTES)]
        return [plain(name.decode("ascii", "replace"))] if name else []


def _header(each: Entry) -> bytes:
    name = each.name.encode("ascii")
    return _LOCAL.pack(b"PK\3\4", _VERSION, 0, each.method, 0, _DATE, each.crc, len(each.packed), each.size, len(name),
                       0) + name


def _listed(each: Entry, at: int) -> bytes:
    name = each.name.encode("ascii")
    return _CENTRAL.pack(b"PK\1\2", _VERSION, _VERSION, 0, each.method, 0, _DATE, each.crc, len(each.packed), each.size,
                         len(name), 0, 0, 0, 0, 0, at) + name


def _end(count: int, size: int, at: int) -> bytes:
    return _END.pack(b"PK\5\6", 0, 0, count, count, size, at, 0)
