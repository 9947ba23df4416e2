"""Writes an IGVM file of version 1. The same headers give the same bytes: content stands in the
order of the headers that name it, each page once."""

from __future__ import annotations

import zlib

from appliance.imaging.igvm import headers
from appliance.imaging.igvm.headers import (
    FIXED,
    PREFIX,
    RECORDS,
    Directive,
    GuestPolicy,
    IgvmFile,
    PageData,
    ParameterArea,
    ParameterInsert,
    Platform,
    ProcessorState,
)


def write(file: IgvmFile) -> bytes:
    """Return the bytes of a file."""
    everything = (*file.platforms, *file.policies, *file.directives)
    start = FIXED.size + sum(len(_header(each, 0)) for each in everything)
    contents: dict[bytes, int] = {}
    for each in file.directives:
        content = _content(each)
        if content is not None:
            contents.setdefault(content, start + headers.PAGE * len(contents))
    variable = b"".join(_header(each, contents.get(_content(each) or b"", 0)) for each in everything)
    total = start + headers.PAGE * len(contents)
    checksum = zlib.crc32(_fixed(len(variable), total, 0) + variable)
    return b"".join((_fixed(len(variable), total, checksum), variable, *contents))


def _fixed(size: int, total: int, checksum: int) -> bytes:
    return FIXED.pack(headers.MAGIC, headers.VERSION, FIXED.size, size, total, checksum)


def _content(header: Platform | GuestPolicy | Directive) -> bytes | None:
    return header.content if isinstance(header, PageData | ProcessorState) else None


def _header(header: Platform | GuestPolicy | Directive, offset: int) -> bytes:
    """A header with its type and padding; `offset` is that of its content."""
    kind, record = _record(header, offset)
    return PREFIX.pack(kind, len(record)) + record + bytes(-len(record) % 8)


def _record(header: Platform | GuestPolicy | Directive, offset: int) -> tuple[int, bytes]:
    if isinstance(header, PageData):
        flags = headers.UNMEASURED_FLAG if header.unmeasured else 0
        return _packed(headers.PAGE_DATA, header.gpa, header.mask, offset, flags, header.kind, 0)
    if isinstance(header, ProcessorState):
        return _packed(headers.PROCESSOR, header.gpa, header.mask, offset, header.index, 0)
    if isinstance(header, Platform):
        return _packed(headers.SUPPORTED_PLATFORM, header.mask, header.highest_vtl, header.kind, header.version,
                       header.boundary)
    if isinstance(header, GuestPolicy):
        return _packed(headers.GUEST_POLICY, header.policy, header.mask, 0)
    if isinstance(header, ParameterArea):
        return _packed(headers.PARAMETER_AREA, header.size, header.index, 0)
    if isinstance(header, ParameterInsert):
        return _packed(headers.PARAMETER_INSERT, header.gpa, header.mask, header.index)
    return header.kind, header.record


def _packed(kind: int, *fields: int) -> tuple[int, bytes]:
    return kind, RECORDS[kind].pack(*fields)
