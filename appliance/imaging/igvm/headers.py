"""The headers of an IGVM file, as far as a launch of QEMU's has them.

Source: microsoft/igvm, `igvm_defs`; QEMU, `backends/igvm.c` for what is taken there. Little endian.
A header is its type (u32), the length of its record (u32), and the record, padded with zeros to 8
bytes. Offsets count from the file's first byte.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAGIC, VERSION = b"IGVM", 1
FIXED = struct.Struct("<4sIIIII")  # magic, version, offset and size of headers, file size, CRC-32 of both headers
PREFIX = struct.Struct("<II")
PAGE = 4096
SEV_SNP, PLATFORM_VERSION = 2, 1

SUPPORTED_PLATFORM, GUEST_POLICY = 0x001, 0x101
PARAMETER_AREA, PAGE_DATA, PARAMETER_INSERT, PROCESSOR = 0x301, 0x302, 0x303, 0x304
REQUIRED_MEMORY, SNP_ID_BLOCK = 0x305, 0x30B
# Type: the layout of its record. Parameters (number of virtual CPUs, MADT, memory map, environment)
# are an area's index and a place in it.
RECORDS = {
    SUPPORTED_PLATFORM: struct.Struct("<IBBHQ"), GUEST_POLICY: struct.Struct("<QII"),
    PARAMETER_AREA: struct.Struct("<QII"), PAGE_DATA: struct.Struct("<QIIIHH"), PARAMETER_INSERT: struct.Struct("<QII"),
    PROCESSOR: struct.Struct("<QIIHH"), REQUIRED_MEMORY: struct.Struct("<QIIII"), SNP_ID_BLOCK: struct.Struct("<I692s"),
    **dict.fromkeys((0x307, 0x309, 0x30C, 0x313), struct.Struct("<II")),
}
UNMEASURED_FLAG = 2
NORMAL, SECRETS, CPUID, CPUID_XF = range(4)  # types of page data


@dataclass(frozen=True)
class Platform:
    """A platform that the file is for; `mask` is the bit by which further headers name it."""

    mask: int
    kind: int
    version: int = PLATFORM_VERSION
    highest_vtl: int = 0
    boundary: int = 0


@dataclass(frozen=True)
class GuestPolicy:
    """The policy of a guest, which the launch is given beside the pages."""

    mask: int
    policy: int


@dataclass(frozen=True)
class PageData:
    """A page of the guest. Without content it is zeros."""

    gpa: int
    mask: int
    kind: int = NORMAL
    unmeasured: bool = False
    content: bytes | None = None


@dataclass(frozen=True)
class ProcessorState:
    """A virtual CPU's first state: on SEV-SNP its save area, of a page."""

    gpa: int
    mask: int
    index: int
    content: bytes


@dataclass(frozen=True)
class ParameterArea:
    """Pages that the host fills in; they come into the guest by a ParameterInsert."""

    index: int
    size: int


@dataclass(frozen=True)
class ParameterInsert:
    """The place of a parameter area in the guest."""

    gpa: int
    mask: int
    index: int


@dataclass(frozen=True)
class Unmeasured:
    """A directive without a part in the launch digest: a parameter, required memory, an ID block.
    """

    kind: int
    record: bytes


Directive = PageData | ProcessorState | ParameterArea | ParameterInsert | Unmeasured


@dataclass(frozen=True)
class IgvmFile:
    """A file in its three sections."""

    platforms: tuple[Platform, ...]
    policies: tuple[GuestPolicy, ...]
    directives: tuple[Directive, ...]
