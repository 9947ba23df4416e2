"""A plain GGUF file of which every read is checked against the bytes that carried its pin.

One pass at boot reads the file, computes its SHA-256 and, of the same bytes in memory, a tag for
each tile under a random key that only this process has. A later read is checked against its tag
before it is used. So bytes that were altered, cut off or rolled back after the boot are refused,
although the hash was right at boot.

The tag is AES-256-GCM's over an empty message with the tile as associated data (GMAC). Key and tags
never leave the process, so a forger has one blind guess of 2^-107 for each read of a tile of 16
MiB.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.errors import TamperedError
from appliance.models.file import gguf, layout, pins, shards, tiling
from appliance.models.file.disk import Progress, RandomFile, ThreadBuffer, fitting
from appliance.models.file.gguf import Parse
from appliance.models.file.opened import OpenModel
from appliance.models.file.tiling import TAG_NBYTES, Tile, Tiling
from appliance.secure import stacks
from appliance.secure.libcrypto import KEY_NBYTES, Cipher, Libcrypto
from appliance.secure.locked import LockedBuffer, fill_randomly
from appliance.secure.wipe import wipe


def _nonce(tile: Tile) -> bytes:
    """12 bytes, different for each tile of a file: where it begins."""
    return tile.source_offset.to_bytes(12, "big")


class PlainTiles(OpenModel):
    """A plain model, read tile by tile. Made by `open_tagged`; safe to read from many threads at
    once."""

    def __init__(self, file: RandomFile, header: bytes, tiles: Tiling, sha256: bytes, key: LockedBuffer,
                 tags: bytes, *, gaps: bool, interleave: layout.Interleave) -> None:
        """Takes `key` over: a key of 32 bytes that this process alone has, under which the tags
        were made."""
        self.file, self._secret, self._tags = file, key, tags
        self._cipher = AESGCM(key.view[:KEY_NBYTES])
        self.header, self.tiling, self.sha256, self.gaps = header, tiles, sha256, gaps
        self.gguf = tiles.gguf  # whose bytes are `header`
        self._scratch = ThreadBuffer(tiles.max_tile_nbytes)
        self._interleave = interleave

    def read_tile(self, number: int, buffer: Any) -> int:
        """Read tile `number` in kernel order into the start of a writable `buffer`; returns its
        bytes.

        Raises TamperedError for other bytes than at boot, ModelError for the disk; the buffer is
        wiped then.
        """
        return self.read(self.tiling.tile(number), buffer)

    def read(self, tile: Tile, buffer: Any, room: memoryview | None = None) -> int:
        """`read_tile`, of a tile that was looked up before. `room`: for the rows of a matrix as the
        file has them, of the thread that reads; it is also wiped."""
        view = rows = fitting(buffer, tile.nbytes)
        if tile.segment.kind == "matrix":
            rows = self._scratch.view(tile.source_nbytes) if room is None else room[:tile.source_nbytes]
        try:
            self.file.read_into(rows, tile.source_offset)
            self.open(tile, rows, view)
        except BaseException:
            wipe(rows)
            wipe(view)
            raise
        return tile.nbytes

    def open(self, tile: Tile, rows: memoryview, view: memoryview) -> None:
        """Check the rows of a tile, in memory that nobody else writes, and put them in kernel order
        in `view`, unless they are there. TamperedError as `read_tile`."""
        self.check(tile, rows)
        if rows is not view:
            tiling.pack(tile, rows, view, self._interleave)

    def check(self, tile: Tile, rows: Any) -> None:
        """Raises TamperedError unless `rows`, which nobody else may write, are the bytes of a tile
        of the file at boot."""
        start = tile.number * TAG_NBYTES
        try:
            self._cipher.decrypt(_nonce(tile), self._tags[start:start + TAG_NBYTES], rows)
        except InvalidTag:
            raise self.altered(tile) from None

    def altered(self, tile: Tile) -> TamperedError:
        """Return the error of a tile whose bytes are others than at boot."""
        path, at = self.file.named(tile.source_offset)
        return TamperedError(f"{path}: {tile.source_nbytes} bytes from {at} on changed "
                             "since the file was hashed", hint="the disk or its operator changed them")

    @property
    def tags_address(self) -> int:
        """The address of the tags of all tiles, 16 bytes each, for compiled code; void after
        `close`."""
        return int(np.frombuffer(self._tags, np.uint8).ctypes.data)

    def cipher(self, library: Libcrypto) -> Cipher:
        """Make what checks tags by libcrypto, for one thread. The caller closes it."""
        return Cipher(library, self._secret.view[:KEY_NBYTES])

    def close(self) -> None:
        """Close the file and wipe the key; reads fail from here on."""
        self.file.close()
        self.__dict__.pop("_cipher", None)
        self._secret.close()
        stacks.wipe()


def open_tagged(path: Path, sha256: bytes | None = None, *, interleave: layout.Interleave,
                tile_size: int = tiling.DEFAULT_TILE_SIZE, progress: Progress | None = None,
                parse: Parse = gguf.parse, pinned_shards: Sequence[bytes] = ()) -> PlainTiles:
    """Read the file at `path` once, all shards where it has several, and tag its tiles. Its pin
    must be `sha256` (32 bytes) unless that is None, its shards' `pinned_shards` unless there are
    none. `interleave` puts rows in kernel order when they are read again; `parse` finds the header
    in the first bytes, which are hashed with the rest.

    Raises PinError for other bytes than pinned, FormatError and UnsupportedError for the file's
    content, TamperedError and ModelError for the disk. The header is parsed before the pin is
    known; nothing of it leaves when that is wrong.
    """
    tiling.check_tile_size(tile_size)
    with contextlib.ExitStack() as failed:
        key = failed.enter_context(contextlib.closing(LockedBuffer(KEY_NBYTES, "the key of a model")))
        file = failed.enter_context(shards.open_model(path))
        fill_randomly(key.view[:KEY_NBYTES])
        scan = _Scan(file, tile_size, key, parse)
        tiles = scan.result(scan.run(progress).check(file.paths, sha256, pinned_shards), interleave)
        failed.pop_all()
        return tiles


class _Scan:
    """The one pass over the file."""

    def __init__(self, file: RandomFile, tile_size: int, key: LockedBuffer, parse: Parse) -> None:
        self._file, self._tile_size, self._key = file, tile_size, key
        self._starts, self._gguf = shards.read(file, parse)
        self._tiling = Tiling(self._gguf, file.size, tile_size, gaps=True)
        self._cipher = AESGCM(key.view[:KEY_NBYTES])
        self._tags = bytearray(len(self._tiling) * TAG_NBYTES)
        self._gaps = False  # whether any byte outside of header and tensors is not zero

    def run(self, progress: Progress | None) -> pins.Hashes:
        """Hash and tag the whole file; hashing runs beside the next read."""
        hashes = pins.Hashes(self._file.parts)
        hashes.update(memoryview(self._starts[0][1])[:self._tiling.header_nbytes])
        buffers = [memoryview(bytearray(self._tiling.max_tile_nbytes)) for _ in range(2)]
        try:
            with ThreadPoolExecutor(1, "model-hash") as hasher:
                hashed: Future[None] | None = None
                for tile in self._tiling:
                    view = buffers[tile.number % 2][:tile.source_nbytes]
                    self._fill(view, tile.source_offset)
                    if hashed is not None:
                        hashed.result()
                    hashed = hasher.submit(hashes.update, view)
                    self._tag(tile, view)
                    if progress is not None:
                        progress(tile.source_offset + tile.source_nbytes, self._file.size)
            self._file.expect_end()
        finally:
            for used in (*buffers, memoryview(self._starts[0][1])[self._tiling.header_nbytes:],
                         *(memoryview(start) for _, start in self._starts[1:])):
                wipe(used)
        return hashes

    def _fill(self, view: memoryview, offset: int) -> None:
        """From what was read for the headers, as far as it goes, and from the disk: no byte is read
        twice."""
        at, end = offset, offset + len(view)
        for start, known in self._starts:
            low, high = max(at, start), min(end, start + len(known))
            if low < high:
                self._file.read_into(view[at - offset:low - offset], at)
                view[low - offset:high - offset] = memoryview(known)[low - start:high - start]
                at = high
        self._file.read_into(view[at - offset:], at)

    def _tag(self, tile: Tile, view: memoryview) -> None:
        start = tile.number * TAG_NBYTES
        self._tags[start:start + TAG_NBYTES] = self._cipher.encrypt(_nonce(tile), b"", view)
        if tile.segment.kind == "gap" and not self._gaps:
            self._gaps = bool(np.frombuffer(view, np.uint8).any())

    def result(self, digest: bytes, interleave: layout.Interleave) -> PlainTiles:
        """Return the tags of a file, and its digest. Gaps that hold only zeros get no tiles: they
        follow from the header. Nor do those of a sharded one, which hold headers."""
        header = bytes(self._starts[0][1][:self._tiling.header_nbytes])
        tiles, tags = self._tiling, bytes(self._tags)
        gaps = self._gaps and len(self._file.parts) == 1
        if not gaps:
            tags = b"".join(
                tags[segment.first_tile * TAG_NBYTES:(segment.first_tile + segment.tiles) * TAG_NBYTES]
                for segment in tiles.segments if segment.kind != "gap")
            tiles = Tiling(self._gguf, self._file.size, self._tile_size, gaps=False)
        return PlainTiles(self._file, header, tiles, digest, self._key, tags, gaps=gaps, interleave=interleave)
