"""A FAT16 file system with one file at EFI/BOOT/BOOTX64.EFI: all that firmware needs of a system
partition.

Source: Microsoft "FAT: General Overview of On-Disk Format" 1.03. The file lies in consecutive
clusters; serial number and times are given, so the bytes depend only on the arguments.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass

SECTOR = 512
_CLUSTER_SECTORS = 8
_CLUSTER = SECTOR * _CLUSTER_SECTORS
_ROOT_ENTRIES = 512
_FEWEST, _MOST = 4085, 65524  # clusters of a FAT16 file system
_FOLDER, _ARCHIVE = 0x10, 0x20
_END = 0xFFFF
_MEDIA = 0xF8


@dataclass(frozen=True)
class _Stamp:
    date: int
    time: int


def pack(program: bytes, serial: int, epoch: int) -> bytes:
    """Return the file system's bytes, a whole number of clusters. Raises ValueError if the program
    is too large for FAT16."""
    file_clusters = -(-len(program) // _CLUSTER)
    clusters = max(_FEWEST + 16, 2 + file_clusters)
    if clusters > _MOST:
        raise ValueError(f"{len(program)} bytes do not fit into FAT16")
    stamp = _stamp(epoch)
    table_sectors = -(-(clusters + 2) * 2 // SECTOR)
    table = struct.pack("<HHHH", 0xFF00 | _MEDIA, _END, _END, _END)  # two reserved, then the two folders
    chain = [*range(5, 4 + file_clusters), _END]
    table += struct.pack(f"<{len(chain)}H", *chain)
    table += bytes(table_sectors * SECTOR - len(table))
    root = _entry("EFI", "", _FOLDER, 2, 0, stamp)
    efi = _entry(".", "", _FOLDER, 2, 0, stamp) + _entry("..", "", _FOLDER, 0, 0, stamp) + _entry(
        "BOOT", "", _FOLDER, 3, 0, stamp)
    boot = _entry(".", "", _FOLDER, 3, 0, stamp) + _entry("..", "", _FOLDER, 2, 0, stamp) + _entry(
        "BOOTX64", "EFI", _ARCHIVE, 4, len(program), stamp)
    data = efi.ljust(_CLUSTER, b"\0") + boot.ljust(_CLUSTER, b"\0") + program
    data += bytes(clusters * _CLUSTER - len(data))
    head = _boot_sector(clusters, table_sectors, serial)
    return head + table + table + root.ljust(_ROOT_ENTRIES * 32, b"\0") + data


def _boot_sector(clusters: int, table_sectors: int, serial: int) -> bytes:
    sectors = 1 + 2 * table_sectors + _ROOT_ENTRIES * 32 // SECTOR + clusters * _CLUSTER_SECTORS
    short = sectors if sectors < 0x10000 else 0
    head = struct.pack(
        "<3s8sHBHBHHBHHHIIBBBI11s8s", b"\xeb\x3c\x90", b"APPLIANC", SECTOR, _CLUSTER_SECTORS, 1, 2, _ROOT_ENTRIES,
        short, _MEDIA, table_sectors, 32, 64, 0, 0 if short else sectors, 0x80, 0, 0x29, serial, b"NO NAME    ",
        b"FAT16   ")
    return head.ljust(SECTOR - 2, b"\0") + b"\x55\xaa"


def _entry(name: str, extension: str, attributes: int, cluster: int, size: int, stamp: _Stamp) -> bytes:
    short = name.encode().ljust(8) + extension.encode().ljust(3)
    return struct.pack("<11sBBBHHHHHHHI", short, attributes, 0, 0, stamp.time, stamp.date, stamp.date, 0, stamp.time,
                       stamp.date, cluster, size)


def _stamp(epoch: int) -> _Stamp:
    at = time.gmtime(epoch)
    return _Stamp((max(at.tm_year, 1980) - 1980) << 9 | at.tm_mon << 5 | at.tm_mday,
                  at.tm_hour << 11 | at.tm_min << 5 | at.tm_sec // 2)
