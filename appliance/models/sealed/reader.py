"""Reading a sealed model: authenticate the header, then any tile at any time, from any thread.

`open_sealed` believes nothing of the file: header against its pin, then against the key, and only
then is the GGUF header parsed. `read_tile` reads a record into memory of this process,
authenticates and decrypts it into the caller's buffer, and wipes that buffer on any failure: an
AEAD that refuses has already written what nobody vouches for.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.errors import PinError, TamperedError
from appliance.models.file import pins
from appliance.models.file.disk import RandomFile, ThreadBuffer, fitting
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.opened import OpenModel
from appliance.models.file.tiling import RECORD_ALIGNMENT, TAG_NBYTES, Segment, Tile, Tiling
from appliance.models.sealed.header import Header, Keys, Layout, check_size, read_header
from appliance.secure import stacks
from appliance.secure.libcrypto import KEY_NBYTES, Cipher, Libcrypto
from appliance.secure.locked import LockedBuffer
from appliance.secure.wipe import wipe

_ZEROS = bytes(RECORD_ALIGNMENT)
_EXTRA_AT = 64


def nonce(number: int) -> bytes:
    """Return the nonce of tile `number`: 12 bytes, most significant first."""
    return number.to_bytes(12, "big")


class SealedModel(OpenModel):
    """A sealed model, read tile by tile. Immutable but for `close`; close it when no thread reads
    any more."""

    header_sha256: bytes

    def __init__(self, file: RandomFile, header: Header, file_gguf: GGUFFile, tiles: Tiling, keys: Keys) -> None:
        self.file, self.header, self.gguf, self.tiling = file, header, file_gguf, tiles
        self.sha256, self.header_sha256 = header.sha256, header.digest
        self._cipher = AESGCM(keys.tiles)
        self._secret = LockedBuffer(_EXTRA_AT + len(header.digest), "the key of a model")
        self._secret.view[:len(keys.tiles)] = keys.tiles
        self._secret.view[_EXTRA_AT:_EXTRA_AT + len(header.digest)] = header.digest
        self._scratch = ThreadBuffer(tiles.max_record_nbytes)

    @property
    def path(self) -> Path:
        """The sealed file."""
        return self.file.path

    def read_tile(self, number: int, buffer: Any) -> int:
        """Authenticate and decrypt tile `number` into the start of a writable `buffer`; returns its
        bytes.

        Matrices come in kernel order. Raises TamperedError (code model-tampered) for a record that
        differs from the sealed one, and ModelError for a disk that fails. The buffer is wiped then.
        """
        return self.read(self.tiling.tile(number), buffer)

    def read(self, tile: Tile, buffer: Any, room: memoryview | None = None) -> int:
        """`read_tile`, of a tile that was looked up before. `room`: for its record, of the thread
        that reads."""
        view = fitting(buffer, tile.nbytes)
        record = self._scratch.view(tile.record_nbytes) if room is None else room[:tile.record_nbytes]
        try:
            self.file.read_into(record, tile.offset)
        except BaseException:
            wipe(view)
            raise
        self.open(tile, record, view)
        return tile.nbytes

    def keep(self, segment: Segment, view: memoryview) -> None:
        """Read all records of a segment into `view`, of `segment.tiles` records. They are still to
        be authenticated whenever they are used. Errors as `read_tile`, also for padding that is not
        zero."""
        self.file.read_into(view, segment.offset)
        os.posix_fadvise(self.file.descriptor, segment.offset, len(view), os.POSIX_FADV_DONTNEED)
        for number in range(segment.first_tile, segment.first_tile + segment.tiles):
            tile = self.tiling.tile(number)
            record = view[tile.offset - segment.offset:][:tile.record_nbytes]
            if bytes(record[tile.nbytes + TAG_NBYTES:]) != _ZEROS[:tile.record_nbytes - tile.nbytes - TAG_NBYTES]:
                raise self.altered(tile)

    def open(self, tile: Tile, record: memoryview, view: memoryview) -> None:
        """Authenticate and decrypt a whole record, in memory that nobody else writes, into `view`
        of exactly `tile.nbytes` bytes. TamperedError as `read_tile`; `view` is wiped then."""
        message = tile.nbytes + TAG_NBYTES
        try:
            if bytes(record[message:]) != _ZEROS[:tile.record_nbytes - message]:
                raise InvalidTag
            self._cipher.decrypt_into(nonce(tile.number), record[:message], self.header_sha256, view)
        except InvalidTag:
            wipe(view)
            raise self.altered(tile) from None
        except BaseException:
            wipe(view)
            raise

    def altered(self, tile: Tile) -> TamperedError:
        """Return the error of a tile that does not authenticate."""
        info = tile.segment.info
        named = "padding" if info is None else f"tensor {info.name!r}"
        return TamperedError(f"{self.path}: tile {tile.number} ({named}, byte {tile.offset} of the file) does not "
                             "authenticate", hint="the file was altered; fetch it again")

    # --- for compiled code ------------------------------------------------------------------------
    @property
    def extra(self) -> tuple[int, int]:
        """Address and size of the associated data of every tile."""
        return self._secret.address + _EXTRA_AT, len(self.header_sha256)

    def cipher(self, library: Libcrypto) -> Cipher:
        """Make what decrypts tiles by libcrypto, for one thread. The caller closes it."""
        return Cipher(library, self._secret.view[:KEY_NBYTES])

    def close(self) -> None:
        """Close the file and wipe the key; reads fail from here on."""
        self.file.close()
        self.__dict__.pop("_cipher", None)
        self._secret.close()
        stacks.wipe()


def open_sealed(path: Path, master_key: bytes | bytearray | memoryview, *, header_sha256: bytes | None,
                sha256: bytes | None = None, layout: Layout = Header.layout) -> SealedModel:
    """Open the sealed model at `path`. The caller wipes `master_key` (32 bytes) afterwards.

    `header_sha256` and `sha256` (of the plaintext GGUF) are the pins, 32 bytes each; without the
    first, whoever has the key may have sealed any model. `layout` is asked once the header is
    authenticated. Raises PinError for another file than pinned, ModelKeyError for another key,
    TamperedError for a header that does not authenticate, FormatError and UnsupportedError for its
    content, ModelError for the disk.
    """
    with contextlib.ExitStack() as failed:
        file = failed.enter_context(RandomFile(path))
        header = read_header(file)
        check_pins(path, header, header_sha256, sha256)
        keys = header.keys(master_key)
        try:
            header.authenticate(keys)
            file_gguf, tiles = layout(header)
            check_size(file.size, tiles)
            model = SealedModel(file, header, file_gguf, tiles, keys)
        finally:
            keys.wipe()
        failed.pop_all()
        return model


def structure(path: Path, header_sha256: bytes | None = None, sha256: bytes | None = None) -> tuple[Header, Tiling]:
    """Header and tiles of the sealed model at `path`, compared with pins that are given before they
    are parsed; none of it is authenticated. Errors as `open_sealed`."""
    with RandomFile(path) as file:
        header = read_header(file)
        check_pins(path, header, header_sha256, sha256)
        _, tiles = header.layout()
        check_size(file.size, tiles)
        return header, tiles


def check_pins(path: Path, header: Header, header_sha256: bytes | None, sha256: bytes | None) -> None:
    """Compare an unauthenticated header with the pins. Raises PinError, which names both
    digests."""
    if header_sha256 is not None and not hmac.compare_digest(header.digest, header_sha256):
        raise PinError(f"{path} has a header with SHA-256 {header.digest.hex()}; the policy pins "
                       f"{header_sha256.hex()}", hint="the file was changed or is another sealing; if that is meant, "
                       "pin it as `appliance model inspect` prints it")
    if sha256 is not None:
        pins.check(path, sha256, header.sha256)
