"""The statement of OVMF firmware at its end: the GUIDed table, and in it the SEV-SNP and TDX launch
metadata.

Sources: edk2 `OvmfPkg/ResetVector` (table and OvmfSevMetadata.asm); Intel "TDX Virtual Firmware
Design Guide", section 11 (TDVF descriptor). The table is read from its end, 32 bytes before the end
of the file, towards lower addresses: data, u16 size of the whole entry, GUID. Little endian
throughout.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from appliance.errors import ImageError

TABLE_END, ENTRY_HEAD = 32, 18       # bytes before the end of the file; size and GUID of an entry
FOUR_GIB, PAGE = 1 << 32, 4096
MAX_BYTES, MAX_SECTIONS = 1 << 26, 64
FOOTER = uuid.UUID("96b582de-1fb2-45f7-baea-a366c55a082d")
SEV_RESET = uuid.UUID("00f771de-1a7e-4fcb-890e-68c77e2fb44e")
SEV_HASHES = uuid.UUID("7255371f-3a3b-4b04-927b-1da6efa8d454")
SEV_METADATA = uuid.UUID("dc886566-984a-4798-a75e-5585a7bf67cc")
TDX_METADATA = uuid.UUID("e47a6535-984a-4798-865e-4685a7bf8ec2")
TDX_BFV, TDX_CFV, TDX_PERM_MEM = 0, 1, 4
TDX_EXTEND, TDX_PAGE_AUG = 1, 2      # attributes of a TDVF section


@dataclass(frozen=True)
class SnpSection:
    """Guest memory that the VMM prepares: `size` bytes at `gpa`, a multiple of pages."""

    gpa: int
    size: int
    kind: int


@dataclass(frozen=True)
class TdxSection:
    """A TDVF section: `raw_size` bytes of the file at `raw_at`, in `size` bytes of memory at `gpa`.
    """

    raw_at: int
    raw_size: int
    gpa: int
    size: int
    kind: int
    attributes: int


@dataclass(frozen=True)
class Firmware:
    """A firmware file. `table` maps GUIDs to the data of their entries."""

    data: bytes
    what: str
    table: Mapping[uuid.UUID, bytes]

    def _metadata(self, entry: uuid.UUID, magic: bytes, layout: str) -> list[tuple[int, ...]]:
        """Return the records behind an offset from the end: magic, u32 size, u32 version 1, u32
        count, then `layout` each."""
        if len(self.table.get(entry, b"")) != 4:
            return []
        at = len(self.data) - int.from_bytes(self.table[entry], "little")
        record = struct.calcsize(layout)
        if not 0 <= at <= len(self.data) - 16:
            raise ImageError(f"{self.what}: the metadata {magic.decode()} lie outside of the file")
        found, size, version, count = struct.unpack_from("<4sIII", self.data, at)
        if found != magic or version != 1 or not count <= MAX_SECTIONS or size < 16 + count * record:
            raise ImageError(f"{self.what}: metadata {magic.decode()} of an unknown form")
        if at + 16 + count * record > len(self.data):
            raise ImageError(f"{self.what}: the metadata {magic.decode()} are cut off")
        return [struct.unpack_from(layout, self.data, at + 16 + number * record) for number in range(count)]

    @cached_property
    def snp(self) -> tuple[SnpSection, ...]:
        """The sections of an SEV-SNP launch; empty if the firmware knows none."""
        sections = [SnpSection(*record) for record in self._metadata(SEV_METADATA, b"ASEV", "<3I")]
        if any(each.gpa % PAGE or each.size % PAGE for each in sections):
            raise ImageError(f"{self.what}: SEV-SNP sections that are not whole pages")
        return tuple(sections)

    @cached_property
    def tdx(self) -> tuple[TdxSection, ...]:
        """The sections of a TDX launch; empty if the firmware knows none."""
        sections = [TdxSection(*record) for record in self._metadata(TDX_METADATA, b"TDVF", "<2I2Q2I")]
        for each in sections:
            if each.gpa % PAGE or each.size % PAGE or each.raw_at + each.raw_size > len(self.data) or (
                    each.raw_size > each.size) or each.size > MAX_BYTES:
                raise ImageError(f"{self.what}: a TDX section that is not whole pages, or not within the file")
        return tuple(sections)

    @property
    def hashes_gpa(self) -> int | None:
        """Where the table of kernel hashes goes, or None: then nothing that is passed with -kernel
        is measured."""
        entry = self.table.get(SEV_HASHES, b"")
        return int.from_bytes(entry[:4], "little") or None

    @property
    def reset_eip(self) -> int | None:
        """Where virtual CPUs but the first begin."""
        entry = self.table.get(SEV_RESET, b"")
        return int.from_bytes(entry[:4], "little") or None


def parse(data: bytes, what: str = "firmware") -> Firmware:
    """Return the firmware in `data`; a file without a table has an empty one. Raises ImageError,
    naming `what`."""
    if not 2 * PAGE <= len(data) <= MAX_BYTES or len(data) % PAGE:
        raise ImageError(f"{what}: {len(data)} bytes are not a firmware volume of whole pages",
                         hint="expected an OVMF file, such as OVMF.amdsev.fd")
    end = len(data) - TABLE_END
    table: dict[uuid.UUID, bytes] = {}
    footer_size, footer = _head(data, end)
    if footer != FOOTER:
        return Firmware(data, what, table)
    at, lowest = end - ENTRY_HEAD, end - footer_size
    if not ENTRY_HEAD <= footer_size <= PAGE:
        raise ImageError(f"{what}: its table of GUIDs has {footer_size} bytes")
    while at - ENTRY_HEAD >= lowest:
        size, guid = _head(data, at)
        if size < ENTRY_HEAD or at - size < lowest or guid in table:
            raise ImageError(f"{what}: entry {guid} of its table of GUIDs is malformed, or stands twice")
        table[guid] = data[at - size:at - ENTRY_HEAD]
        at -= size
    return Firmware(data, what, table)


def _head(data: bytes, end: int) -> tuple[int, uuid.UUID]:
    """Size and GUID of the entry that ends at `end`."""
    return int.from_bytes(data[end - 18:end - 16], "little"), uuid.UUID(bytes_le=data[end - 16:end])
