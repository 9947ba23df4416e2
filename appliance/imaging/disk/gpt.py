"""A disk with a GUID partition table (UEFI specification 2.10, section 5.3). Every GUID is given.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SECTOR = 512
ALIGN = 2048  # sectors: 1 MiB
_ENTRIES, _ENTRY = 128, 128
_TABLE_SECTORS = _ENTRIES * _ENTRY // SECTOR
ESP = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
ROOT_X86_64 = uuid.UUID("4f68bce3-e8cd-4db1-96e7-fbcaf984b709")  # uapi-group.org, discoverable partitions


@dataclass(frozen=True)
class Partition:
    """A partition and its whole content."""

    kind: uuid.UUID
    identity: uuid.UUID
    name: str
    data: bytes


def pack(identity: uuid.UUID, partitions: Sequence[Partition]) -> Iterator[bytes]:
    """Yield the disk in pieces, in order; its size is a whole number of MiB."""
    places, at = [], ALIGN
    for partition in partitions:
        sectors = -(-len(partition.data) // SECTOR)
        places.append((at, at + sectors - 1))
        at = -(-(at + sectors) // ALIGN) * ALIGN
    last = at + ALIGN - 1  # one MiB for the copy of the table
    table = b"".join(_entry(partition, *place) for partition, place in zip(partitions, places, strict=True))
    table = table.ljust(_ENTRIES * _ENTRY, b"\0")
    head = _protective(last) + _header(identity, table, here=1, other=last, table_at=2, last=last) + table
    yield head.ljust(ALIGN * SECTOR, b"\0")
    for partition in partitions:
        yield partition.data
        yield bytes(-len(partition.data) % (ALIGN * SECTOR))
    tail = table + _header(identity, table, here=last, other=1, table_at=last - _TABLE_SECTORS, last=last)
    yield tail.rjust(ALIGN * SECTOR, b"\0")


def _entry(partition: Partition, first: int, last: int) -> bytes:
    return struct.pack("<16s16sQQQ72s", partition.kind.bytes_le, partition.identity.bytes_le, first, last, 0,
                       partition.name.encode("utf-16-le"))


def _header(identity: uuid.UUID, table: bytes, *, here: int, other: int, table_at: int, last: int) -> bytes:
    def pack_with(checksum: int) -> bytes:
        return struct.pack("<8sIIIIQQQQ16sQIII", b"EFI PART", 0x10000, 92, checksum, 0, here, other,
                           2 + _TABLE_SECTORS, last - _TABLE_SECTORS - 1, identity.bytes_le, table_at, _ENTRIES,
                           _ENTRY, zlib.crc32(table))

    return pack_with(zlib.crc32(pack_with(0))).ljust(SECTOR, b"\0")


def _protective(last: int) -> bytes:
    entry = struct.pack("<B3sB3sII", 0, b"\0\x02\0", 0xEE, b"\xff\xff\xff", 1, min(last, 0xFFFFFFFF))
    return (bytes(446) + entry).ljust(SECTOR - 2, b"\0") + b"\x55\xaa"
