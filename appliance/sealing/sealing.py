"""Sealing: a plain GGUF file becomes an encrypted one, tile by tile, in bounded memory.

The source is read twice. The first pass hashes it and tags its tiles (see `tagged`); the second
encrypts only bytes that still carry their tag. So what is encrypted under a key is what the key was
derived from, whatever the disk does in between, and after an interruption too: a resumed sealing
hashes the source again.

A part needs no journal. Its header names salt and source, and its tiles authenticate themselves:
those at the start that do are kept, the rest is written again, with the same bytes.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.errors import ModelError
from appliance.models.file import tiling
from appliance.models.file.disk import RandomFile, ThreadBuffer
from appliance.models.file.tiling import TAG_NBYTES
from appliance.models.sealed import header as sealed_header
from appliance.models.sealed import order
from appliance.models.sealed.header import MAC_NBYTES, SALT_NBYTES, Header, Keys
from appliance.models.sealed.reader import SealedModel, nonce
from appliance.models.sources.tagged import PlainTiles, open_tagged
from appliance.models.sources.tile_threads import ordered
from appliance.sealing import merged
from appliance.sealing.merged import Merged
from appliance.sealing.output import PartialFile

Progress = Callable[[str, int, int], None]
"""Called with "hashing" or "sealing", bytes done and bytes in all."""


@dataclass(frozen=True)
class Sealing:
    """The result of `seal`."""

    path: Path
    size: int  # bytes
    sha256: bytes  # of the GGUF file; of a sharded model, of its shards as one file
    header_sha256: bytes
    tile_size: int
    tiles: int
    kept_tiles: int  # of an interrupted sealing


def quiet(step: str, done: int, total: int) -> None:
    """Report nothing."""


def seal(source: Path, target: Path, master_key: bytes | bytearray | memoryview, *,
         tile_size: int = tiling.DEFAULT_TILE_SIZE, progress: Progress = quiet) -> Sealing:
    """Seal the GGUF file `source` under a master key of 32 bytes into `target`, which must not
    exist. Where it is the first of several shards, what is sealed is the one file that they are
    together, see `merged`.

    Goes on where an interrupted sealing of the same bytes stopped. ModelError and its kinds for
    source, disk and key; then there is no `target`, and `target`.part stays for the next try.
    """
    with PartialFile(target, mode=0o666, begins=sealed_header.FAMILY) as part, open_tagged(
            source, interleave=order.interleave_into, tile_size=tile_size,
            progress=lambda done, total: progress("hashing", done, total)) as plain:
        whole = merged.of(plain)
        header, keys, kept = _resumed(part, plain, whole, master_key) or (
            *_fresh(plain, whole, master_key, None), 0)
        try:
            _, tiles = header.layout()
            part.demand(tiles.end)
            start = tiles.tile(kept).offset if kept < len(tiles) else tiles.end
            if not kept:
                part.truncate(0)
                part.write(header.encode().ljust(header.nbytes, b"\0"), 0)
                start = header.nbytes
            part.truncate(start)
            sealer = _Sealer(plain, header, keys)
            for number, record in enumerate(ordered(sealer.record, range(kept, len(tiles))), kept):
                tile = tiles.tile(number)
                part.write(record, tile.offset)
                progress("sealing", tile.offset + tile.record_nbytes, tiles.end)
        finally:
            keys.wipe()
        part.finish()
        return Sealing(target, tiles.end, whole.sha256, header.digest, tile_size, len(tiles), kept)


def _fresh(plain: PlainTiles, whole: Merged, master_key: bytes | bytearray | memoryview,
           salt: bytes | None) -> tuple[Header, Keys]:
    return make_header(
        master_key, tile_size=plain.tiling.tile_size, gaps=plain.gaps, size=whole.size,
        salt=secrets.token_bytes(SALT_NBYTES) if salt is None else salt, sha256=whole.sha256, header=whole.header)


def make_header(master_key: bytes | bytearray | memoryview, *, tile_size: int, gaps: bool, size: int, salt: bytes,
                sha256: bytes, header: bytes) -> tuple[Header, Keys]:
    """Return a header of its own for a GGUF file of `size` bytes that begins with `header`."""
    bare = Header(tile_size, gaps, size, salt, sha256, header, bytes(32), bytes(MAC_NBYTES))
    keys = Keys(master_key, salt, bare.context)
    committed = replace(bare, commitment=keys.commitment)
    return replace(committed, mac=hmac.digest(keys.header, committed.encode()[:-MAC_NBYTES], "sha256")), keys


def _resumed(part: PartialFile, plain: PlainTiles, whole: Merged, master_key: bytes | bytearray | memoryview
             ) -> tuple[Header, Keys, int] | None:
    """Header, keys and number of good tiles of a part that is of this source, key and tile size;
    None otherwise."""
    if not part.size:
        return None
    file = RandomFile(part.part)
    try:
        found = sealed_header.read_header(file)
        header, keys = _fresh(plain, whole, master_key, found.salt)
        if header.encode() != found.encode():
            keys.wipe()
            return None
        file_gguf, tiles = header.layout()
        buffer = bytearray(tiles.max_tile_nbytes)
        good = 0
        with SealedModel(file, header, file_gguf, tiles, keys) as model, contextlib.suppress(ModelError):
            while good < len(tiles):  # a tile that does not authenticate is written again, with all after it
                model.read_tile(good, buffer)
                good += 1
        return header, keys, good
    except ModelError:
        return None
    finally:
        file.close()


class _Sealer:
    """Encrypts tiles of a plain file; used by several threads at once."""

    def __init__(self, plain: PlainTiles, header: Header, keys: Keys) -> None:
        self._plain, self._aad, self._cipher = plain, header.digest, AESGCM(keys.tiles)
        self._scratch = ThreadBuffer(plain.tiling.max_tile_nbytes)

    def record(self, number: int) -> bytearray:
        """Return the record of tile `number`."""
        tile = self._plain.tiling.tile(number)
        packed = self._scratch.view(tile.nbytes)
        self._plain.read_tile(number, packed)
        record = bytearray(tile.record_nbytes)
        with memoryview(record)[:tile.nbytes + TAG_NBYTES] as message:
            self._cipher.encrypt_into(nonce(number), packed, self._aad, message)
        return record
