"""Reads an IGVM file of version 1. A header that loaders understand differently is refused by name.

The CRC-32 covers both headers and no content: it finds accidents. The launch digest covers what is
measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from appliance.errors import ImageError
from appliance.imaging.igvm import headers
from appliance.imaging.igvm.headers import (
    FIXED,
    PAGE,
    PREFIX,
    Directive,
    GuestPolicy,
    IgvmFile,
    PageData,
    ParameterArea,
    ParameterInsert,
    Platform,
    ProcessorState,
    Unmeasured,
)

MAX_BYTES, MAX_HEADER_BYTES = 1 << 28, 1 << 24
MAX_AREA_BYTES = 1 << 24
MAX_PAGES = 1 << 16  # of all headers together: a small file asks for no more memory than a guest has
_CHECKSUM_AT = 20
_PLATFORMS, _INITIALIZATION, _DIRECTIVES = 0, 1, 3  # a type's upper byte


def parse(data: bytes, what: str = "IGVM file") -> IgvmFile:
    """Return the file in `data`. Raises ImageError, naming `what`."""
    return _Reader(data, what).file()


class _Reader:
    """One file, while its headers are read."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data, self._what = data, what
        self._end = self._checked()
        self._contents: dict[int, bytes] = {}  # by offset: headers may share one
        self._pages = 0

    def _bad(self, why: str) -> ImageError:
        return ImageError(f"{self._what}: {why}", code="image-igvm",
                          hint="write one: appliance image export DIR --igvm OVMF.amdsev.fd -o FILE")

    def _checked(self) -> int:
        """Check the fixed header, and return where the headers end and content begins."""
        if not FIXED.size <= len(self._data) <= MAX_BYTES:
            raise self._bad(f"{len(self._data)} bytes, expected {FIXED.size} to {MAX_BYTES}")
        magic, version, start, size, total, checksum = FIXED.unpack_from(self._data)
        if magic != headers.MAGIC:
            raise self._bad("it does not begin with IGVM")
        if version != headers.VERSION:
            raise self._bad(f"format version {version}, and only version {headers.VERSION} is read")
        if start != FIXED.size or size % 8 or not 0 < size <= MAX_HEADER_BYTES or start + size > len(self._data):
            raise self._bad(f"headers of {size} bytes at {start}, expected a multiple of 8 at {FIXED.size}")
        if total != len(self._data):
            raise self._bad(f"{len(self._data)} bytes, and its header says {total}")
        found = zlib.crc32(self._data[:_CHECKSUM_AT] + bytes(4) + self._data[start:start + size])
        if found != checksum:
            raise self._bad(f"its headers have CRC-32 {found:08x}, and it says {checksum:08x}")
        return FIXED.size + int(size)

    def file(self) -> IgvmFile:
        """Read all headers, and the content that they name."""
        platforms: list[Platform] = []
        policies: list[GuestPolicy] = []
        directives: list[Directive] = []
        section = _PLATFORMS
        for kind, record in self._records():
            if kind >> 8 < section:
                raise self._bad(f"a header of type {kind:#x} behind those of a later section")
            section = kind >> 8
            if section == _PLATFORMS:
                platforms.append(self._platform(record, platforms))
            elif section == _INITIALIZATION:
                policies.append(self._policy(record, platforms))
            else:
                directives.append(self._directive(kind, record, platforms))
        if not platforms:
            raise self._bad("it names no platform")
        return IgvmFile(tuple(platforms), tuple(policies), tuple(directives))

    def _records(self) -> Iterator[tuple[int, bytes]]:
        """Yield each header's type and record."""
        at = FIXED.size
        while at < self._end:
            kind, size = PREFIX.unpack_from(self._data, at)
            self._count(1)
            if kind not in headers.RECORDS:
                raise self._bad(f"a header of type {kind:#x}, by which QEMU starts no guest")
            at += PREFIX.size
            padded = -(-size // 8) * 8
            if size != headers.RECORDS[kind].size or at + padded > self._end:
                raise self._bad(f"a header of type {kind:#x} with {size} bytes, expected {headers.RECORDS[kind].size}")
            if any(self._data[at + size:at + padded]):
                raise self._bad(f"a header of type {kind:#x} is not padded with zeros")
            yield kind, self._data[at:at + size]
            at += padded

    def _platform(self, record: bytes, before: list[Platform]) -> Platform:
        mask, vtl, kind, version, boundary = headers.RECORDS[headers.SUPPORTED_PLATFORM].unpack(record)
        if mask.bit_count() != 1 or any(mask == each.mask or kind == each.kind for each in before):
            raise self._bad("a platform stands twice, or has not one bit of its own")
        return Platform(mask, kind, version, vtl, boundary)

    def _policy(self, record: bytes, platforms: list[Platform]) -> GuestPolicy:
        policy, mask, reserved = headers.RECORDS[headers.GUEST_POLICY].unpack(record)
        self._known(mask, platforms)
        self._zero(reserved)
        return GuestPolicy(mask, policy)

    def _directive(self, kind: int, record: bytes, platforms: list[Platform]) -> Directive:
        fields = headers.RECORDS[kind].unpack(record)
        if kind == headers.PAGE_DATA:
            return self._page(fields, platforms)
        if kind == headers.PROCESSOR:
            return self._processor(fields, platforms)
        if kind == headers.PARAMETER_AREA:
            return self._area(fields)
        if kind == headers.PARAMETER_INSERT:
            self._known(fields[1], platforms)
            return ParameterInsert(self._address(fields[0]), *fields[1:])
        if kind == headers.SNP_ID_BLOCK:
            self._known(fields[0], platforms)
        return Unmeasured(kind, record)

    def _page(self, fields: tuple[Any, ...], platforms: list[Platform]) -> PageData:
        gpa, mask, offset, flags, kind, reserved = fields
        self._known(mask, platforms)
        self._zero(reserved)
        if flags not in (0, headers.UNMEASURED_FLAG):
            raise self._bad(f"a page with flags {flags:#x}: loaders measure large and shared pages differently")
        if kind > headers.CPUID_XF or (kind != headers.NORMAL and (flags or offset)):
            raise self._bad(f"a page of type {kind}, or one of CPUID or secrets with flags or content of its own")
        content = self._content(offset) if offset else None
        return PageData(self._address(gpa), mask, kind, bool(flags), content)

    def _processor(self, fields: tuple[Any, ...], platforms: list[Platform]) -> ProcessorState:
        gpa, mask, offset, index, reserved = fields
        self._known(mask, platforms)
        self._zero(reserved)
        return ProcessorState(self._address(gpa), mask, index, self._content(offset))

    def _area(self, fields: tuple[Any, ...]) -> ParameterArea:
        size, index, offset = fields
        if not 0 < size <= MAX_AREA_BYTES or size % PAGE or offset:
            raise self._bad(f"a parameter area of {size} bytes, expected whole pages without content")
        self._count(size // PAGE)
        return ParameterArea(index, size)

    def _count(self, pages: int) -> None:
        self._pages += pages
        if self._pages > MAX_PAGES:
            raise self._bad(f"more than {MAX_PAGES} headers and pages of parameter areas")

    def _content(self, offset: int) -> bytes:
        if not self._end <= offset <= len(self._data) - PAGE:
            raise self._bad(f"content of a page at {offset}, outside of the file's content")
        if offset not in self._contents:
            self._contents[offset] = self._data[offset:offset + PAGE]
            if len(self._contents) * PAGE > len(self._data) - self._end:
                raise self._bad(f"content of a page at {offset}, which is that of others in part")
        return self._contents[offset]

    def _address(self, gpa: int) -> int:
        if gpa % PAGE or gpa >= 1 << 52:
            raise self._bad(f"an address {gpa:#x} that is not that of a page")
        return int(gpa)

    def _known(self, mask: int, platforms: list[Platform]) -> None:
        if not mask or mask & ~sum(each.mask for each in platforms):
            raise self._bad(f"a header for {mask:#x}, which is not a platform of the file")

    def _zero(self, reserved: int) -> None:
        if reserved:
            raise self._bad("a reserved field that is not zero")
