"""PE32+ files as firmware measures them: sections, and the Authenticode digest.

Sources: Microsoft "PE Format" (offsets below are of PE32+) and "Windows Authenticode Portable
Executable Signature Format", "Calculating the PE Image Hash"; firmware computes the same for PCR 4
(TCG PC Client profile, 3.3.4.5).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from appliance.errors import ImageError

PE_OFFSET_AT = 0x3C              # u32 in the DOS header: where "PE\0\0" is
COFF_BYTES = 24                  # signature and COFF header
SECTION_BYTES = 40
PE32_PLUS = 0x20B
ENTRY_POINT, SIZE_OF_HEADERS, CHECKSUM, DIRECTORIES, FIRST_DIRECTORY = 16, 60, 64, 108, 112  # in the optional header
CERTIFICATES = 4                 # number of the directory entry that signatures hang on; 8 bytes each
MAX_SECTIONS = 96


@dataclass(frozen=True)
class Section:
    """One section: `size` bytes in memory at `address`, of which `raw_size` are in the file at
    `raw_at`."""

    name: str
    size: int
    address: int
    raw_size: int
    raw_at: int


@dataclass(frozen=True)
class Pe:
    """A PE32+ file; `headers` is SizeOfHeaders, `checksum_at` and `certificates_at` are file
    offsets, `entry` is the address of the first instruction."""

    data: bytes
    sections: tuple[Section, ...]
    entry: int
    headers: int
    checksum_at: int
    certificates_at: int | None
    certificates_size: int

    def content(self, name: str) -> bytes | None:
        """Return a section as the loader puts it into memory without its padding, or None if there
        is none."""
        for each in self.sections:
            if each.name == name:
                return self.data[each.raw_at:each.raw_at + min(each.size, each.raw_size)]
        return None

    def authenticode(self, algorithm: str) -> bytes:
        """Return the digest: the file without checksum, certificate entry and certificates,
        sections in file order."""
        digest = hashlib.new(algorithm)
        digest.update(self.data[:self.checksum_at])
        at = self.checksum_at + 4
        if self.certificates_at is not None:
            digest.update(self.data[at:self.certificates_at])
            at = self.certificates_at + 8
        digest.update(self.data[at:self.headers])
        hashed = self.headers
        for each in sorted(self.sections, key=lambda section: section.raw_at):
            if each.raw_size:
                digest.update(self.data[each.raw_at:each.raw_at + each.raw_size])
                hashed += each.raw_size
        digest.update(self.data[hashed:len(self.data) - self.certificates_size])
        return digest.digest()


def parse(data: bytes, what: str) -> Pe:
    """Return the headers of a PE32+ file. Raises ImageError, naming `what`."""
    try:
        return _parse(data, what)
    except struct.error:
        raise ImageError(f"{what}: no PE file, or cut off in its headers") from None


def _parse(data: bytes, what: str) -> Pe:
    (start,) = struct.unpack_from("<I", data, PE_OFFSET_AT)
    if data[:2] != b"MZ" or data[start:start + 4] != b"PE\x00\x00":
        raise ImageError(f"{what}: no PE file", hint="expected an EFI program, such as a kernel or a unified image")
    count, optional_size = struct.unpack_from("<H12xH", data, start + 6)
    optional = start + COFF_BYTES
    (magic,) = struct.unpack_from("<H", data, optional)
    if magic != PE32_PLUS or not optional_size >= FIRST_DIRECTORY:
        raise ImageError(f"{what}: not a PE32+ program", hint="only 64-bit EFI programs are measured")
    (first,) = struct.unpack_from("<I", data, optional + ENTRY_POINT)
    (headers,) = struct.unpack_from("<I", data, optional + SIZE_OF_HEADERS)
    (directories,) = struct.unpack_from("<I", data, optional + DIRECTORIES)
    table = optional + optional_size
    if not 1 <= count <= MAX_SECTIONS or not table + count * SECTION_BYTES <= headers <= len(data):
        raise ImageError(f"{what}: {count} sections in headers of {headers} bytes, in a file of {len(data)}")
    if FIRST_DIRECTORY + 8 * directories > optional_size:
        raise ImageError(f"{what}: {directories} directory entries do not fit into {optional_size} bytes")
    entry, size = None, 0
    if directories > CERTIFICATES:
        entry = optional + FIRST_DIRECTORY + 8 * CERTIFICATES
        where, size = struct.unpack_from("<II", data, entry)
        if size and where + size != len(data):
            raise ImageError(f"{what}: its certificates are not at its end")
    sections = _sections(data, table, count, headers, what)
    if sum(each.raw_size for each in sections) + headers > len(data) - size:
        raise ImageError(f"{what}: its sections overlap, or reach into its certificates")
    return Pe(data, sections, first, headers, optional + CHECKSUM, entry, size)


def _sections(data: bytes, table: int, count: int, headers: int, what: str) -> tuple[Section, ...]:
    found: list[Section] = []
    for number in range(count):
        raw_name, size, address, raw_size, raw_at = struct.unpack_from("<8s4I", data, table + number * SECTION_BYTES)
        name = raw_name.rstrip(b"\x00").decode("latin-1")
        if raw_size and not headers <= raw_at <= len(data) - raw_size:
            raise ImageError(f"{what}: section {name!r} lies outside of the file")
        if any(each.name == name for each in found):
            raise ImageError(f"{what}: section {name!r} stands twice")
        found.append(Section(name, size, address, raw_size, raw_at))
    return tuple(found)
