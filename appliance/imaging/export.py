"""The image's disk in the forms that clouds and hypervisors take, the same bytes for the same
image.

| format | for | what is done |
|---|---|---|
| raw | QEMU, most clouds | the disk as it is |
| qcow2 | OpenStack, KubeVirt, libvirt | QEMU's format, version 3: clusters that are all zeros take no room |
| vhd | Azure | a fixed disk: whole MiB, then Microsoft's footer |
| tar | Google Cloud | `disk.raw` of whole GiB in a tar, compressed by gzip |

None of them changes a byte that firmware measures: what is added lies behind the last sector that
the partition table knows.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import secrets
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Literal, cast

from appliance.attestation import keyfile
from appliance.errors import ImageError
from appliance.imaging.predict.predict import entry
from appliance.imaging.recipe import manifest

Format = Literal["raw", "qcow2", "vhd", "tar"]
Progress = Callable[[int, int], None]
MIB, GIB, PIECE = 1 << 20, 1 << 30, 1 << 20


def export(folder: Path, kind: Format, output: Path, progress: Progress | None = None) -> int:
    """Write the image's disk to `output`, whole or not at all; returns its size in bytes.

    Raises ImageError if the disk is not the one of the manifest, or `output` cannot be written.
    """
    document = manifest.read(folder)
    if keyfile.special(output):
        raise ImageError(f"{output}: not a regular file", hint="name a file to make or to replace")
    disk, told = folder / "disk.raw", progress or _silent
    wanted, epoch = entry(document, "files", "disk.raw", "sha256"), entry(document, "source_date_epoch")
    part = output.parent / f".{output.name}.{secrets.token_hex(4)}"
    try:
        with disk.open("rb") as source, part.open("xb") as sink:
            if hashlib.file_digest(source, "sha256").hexdigest() != wanted:
                raise ImageError(f"{disk}: not the file that the manifest names", code="image-file",
                                 hint="the file was changed since the build: build again")
            size = os.fstat(source.fileno()).st_size
            if size % MIB:
                raise ImageError(f"{disk}: {size} bytes are not a whole number of MiB", code="image-file")
            source.seek(0)
            _WRITERS[kind](source, sink, size, epoch, told)
            sink.flush()
            os.fsync(sink.fileno())
        part.replace(output)
    except OSError as error:
        if error.filename == str(disk):
            raise ImageError(f"{disk}: {error.strerror}") from None
        raise ImageError(f"{output} cannot be written: {error.strerror}") from None
    finally:
        part.unlink(missing_ok=True)
    return output.stat().st_size


def _silent(done: int, total: int) -> None:
    """Nobody watches."""


def _pieces(source: BinaryIO, size: int, progress: Progress) -> Iterator[bytes]:
    for at in range(0, size, PIECE):
        yield source.read(PIECE)
        progress(min(at + PIECE, size), size)


def _raw(source: BinaryIO, sink: BinaryIO, size: int, epoch: int, progress: Progress) -> None:
    for piece in _pieces(source, size, progress):
        sink.write(piece)


# QEMU, docs/interop/qcow2.txt: big endian, clusters of 64 KiB, L2 tables and refcount blocks of one
# cluster each.
_CLUSTER_BITS = 16
_CLUSTER = 1 << _CLUSTER_BITS
_PER_L2, _PER_REFCOUNT_BLOCK = _CLUSTER // 8, _CLUSTER // 2  # entries of 8 bytes; counts of 16 bits
_COPIED = 1 << 63  # exactly one reference


def _qcow2(source: BinaryIO, sink: BinaryIO, size: int, epoch: int, progress: Progress) -> None:
    """Header, refcount table, refcount blocks, L1 table, L2 tables, data, each on whole clusters.
    """
    clusters = -(-size // _CLUSTER)
    used = [number for number, piece in enumerate(_clusters(source, size)) if any(piece)]
    l2_tables = sorted({number // _PER_L2 for number in used})
    l1_size = -(-clusters // _PER_L2)
    l1_clusters = -(-l1_size * 8 // _CLUSTER)
    fixed = 2 + l1_clusters + len(l2_tables) + len(used)  # header and refcount table, and all but the blocks
    blocks = 1
    while fixed + blocks > blocks * _PER_REFCOUNT_BLOCK:
        blocks += 1
    if blocks * 8 > _CLUSTER:
        raise ImageError(f"a disk of {size} bytes is too large for qcow2 here")
    l1_at = (2 + blocks) * _CLUSTER
    l2_at = l1_at + l1_clusters * _CLUSTER
    data_at = l2_at + len(l2_tables) * _CLUSTER
    sink.write(_qcow2_header(size, l1_size, l1_at).ljust(_CLUSTER, b"\x00"))
    sink.write(struct.pack(f">{blocks}Q", *((2 + number) * _CLUSTER for number in range(blocks))).ljust(
        _CLUSTER, b"\x00"))
    counts = (b"\x00\x01" * (fixed + blocks)).ljust(blocks * _CLUSTER, b"\x00")
    sink.write(counts)
    l1 = [0] * l1_size
    for place, number in enumerate(l2_tables):
        l1[number] = (l2_at + place * _CLUSTER) | _COPIED
    sink.write(struct.pack(f">{l1_size}Q", *l1).ljust(l1_clusters * _CLUSTER, b"\x00"))
    where = {number: (data_at + place * _CLUSTER) | _COPIED for place, number in enumerate(used)}
    for number in l2_tables:
        sink.write(struct.pack(f">{_PER_L2}Q", *(where.get(number * _PER_L2 + at, 0) for at in range(_PER_L2))))
    for place, number in enumerate(used):
        source.seek(number * _CLUSTER)
        sink.write(source.read(_CLUSTER).ljust(_CLUSTER, b"\x00"))
        progress(place + 1, len(used))


def _clusters(source: BinaryIO, size: int) -> Iterator[bytes]:
    source.seek(0)
    for _ in range(0, size, _CLUSTER):
        yield source.read(_CLUSTER)


def _qcow2_header(size: int, l1_size: int, l1_at: int) -> bytes:
    """Version 3: no backing file, no encryption, no snapshot, no feature; refcounts of 2^4 bits."""
    return struct.pack(">4sIQIIQIIQQIIQQQQII", b"QFI\xfb", 3, 0, 0, _CLUSTER_BITS, size, 0, l1_size, l1_at, _CLUSTER, 1,
                       0, 0, 0, 0, 0, 4, 104)


# Microsoft "Virtual Hard Disk Image Format Specification", October 2006: big endian, a footer of
# 512 bytes.
_VHD_EPOCH = 946_684_800  # 2000-01-01 in Unix time
_FIXED = 2
_NO_OFFSET = (1 << 64) - 1


def _vhd(source: BinaryIO, sink: BinaryIO, size: int, epoch: int, progress: Progress) -> None:
    digest = hashlib.sha256(b"appliance/vhd/v1\n")
    for piece in _pieces(source, size, progress):
        digest.update(piece)
        sink.write(piece)
    sink.write(vhd_footer(size, max(epoch - _VHD_EPOCH, 0), digest.digest()[:16]))


def vhd_footer(size: int, seconds: int, identity: bytes) -> bytes:
    """Return the footer of a fixed disk. `seconds` since 2000; creator and host are the ones by
    which QEMU and Azure take the size from `current size`, not from the rounded geometry."""
    def pack(checksum: int) -> bytes:
        return struct.pack(">8sIIQI4sI4sQQHBBII16sB427x", b"conectix", 2, 0x00010000, _NO_OFFSET, seconds, b"win ",
                           0x000A0000, b"Wi2k", size, size, *_geometry(size // 512), _FIXED, checksum, identity, 0)

    return pack(~sum(pack(0)) & 0xFFFFFFFF)


def _geometry(sectors: int) -> tuple[int, int, int]:
    """Cylinders, heads and sectors per track by the specification's appendix."""
    sectors = min(sectors, 65535 * 16 * 255)
    if sectors >= 65535 * 16 * 63:
        return sectors // 255 // 16, 16, 255
    track, rest = 17, sectors // 17
    heads = max((rest + 1023) // 1024, 4)
    if rest >= heads * 1024 or heads > 16:
        track, heads, rest = 31, 16, sectors // 31
    if rest >= heads * 1024:
        track, heads, rest = 63, 16, sectors // 63
    return rest // heads, heads, track


def _tar(source: BinaryIO, sink: BinaryIO, size: int, epoch: int, progress: Progress) -> None:
    """One member `disk.raw` in GNU format, owned by nobody in particular, at the time of the
    sources."""
    member = tarfile.TarInfo("disk.raw")
    member.size, member.mtime, member.mode = -(-size // GIB) * GIB, epoch, 0o644
    with gzip.GzipFile(filename="", mode="wb", fileobj=sink, mtime=0, compresslevel=6) as packed, tarfile.open(
            fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member, cast("BinaryIO", _Padded(source, size, member.size, progress)))


class _Padded(io.RawIOBase):
    """A file, then zeros."""

    def __init__(self, source: BinaryIO, size: int, whole: int, progress: Progress) -> None:
        self._source, self._size, self._whole, self._at, self._progress = source, size, whole, 0, progress

    def readable(self) -> bool:
        """Return True: bytes can be read."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        left = self._whole - self._at
        wanted = left if size < 0 else min(size, left)
        data = self._source.read(min(wanted, max(self._size - self._at, 0))).ljust(wanted, b"\x00")
        self._at += wanted
        self._progress(self._at, self._whole)
        return data


_WRITERS: dict[Format, Callable[[BinaryIO, BinaryIO, int, int, Progress], None]] = {
    "raw": _raw, "qcow2": _qcow2, "vhd": _vhd, "tar": _tar}
FORMATS: tuple[Format, ...] = tuple(_WRITERS)
# Names in an image's folder; a build always writes the first.
FILES: dict[Format, str] = {"raw": "disk.raw", "qcow2": "disk.qcow2", "vhd": "disk.vhd", "tar": "disk.tar.gz"}
