"""A matrix kept as ciphertext in memory, for looking up rows without anyone outside seeing which.

The pieces are encrypted again, under a key that exists in this process alone, when they are read
and authenticated at boot. A lookup then decrypts one piece of some groups of rows into the caller's
buffer, and no disk is asked.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.models.file.layout import GROUP_ROWS
from appliance.models.file.tiling import TAG_NBYTES, Segment
from appliance.models.sources.resident import ALIGNMENT
from appliance.secure.libcrypto import KEY_NBYTES
from appliance.secure.locked import SecretBytes, anonymous, discard, fill_randomly
from appliance.secure.wipe import wipe

PIECE_NBYTES = 64 << 10
"""Bytes of a piece at most, unless one group of rows has more."""


def _pieces(segment: Segment) -> tuple[int, int]:
    """Groups of rows in a piece, and pieces of every tile but the last."""
    units = min(max(PIECE_NBYTES // segment.unit_nbytes, 1), segment.tile_units)
    return units, -(-segment.tile_units // units)


def nbytes(segment: Segment) -> int:
    """Bytes of memory that a matrix takes so."""
    units, per_tile = _pieces(segment)
    last = segment.nbytes_of(segment.run_tiles - 1) // segment.unit_nbytes
    count = (segment.tiles - 1) * per_tile + -(-last // units)
    return segment.units * segment.unit_nbytes + count * TAG_NBYTES


class HiddenRows:
    """The groups of 16 rows of one matrix, in kernel order, encrypted. A piece never crosses a
    tile."""

    def __init__(self, segment: Segment, tiles: Iterable[memoryview]) -> None:
        """Encrypt the `tiles` of a matrix, each view valid until the next. Raises ModelError for
        too little memory."""
        self._tile_units = segment.tile_units
        self._piece_units, self._per_tile = _pieces(segment)
        self.piece_nbytes = self._piece_units * segment.unit_nbytes
        """Plaintext of a piece, at most."""
        self.beside = (-(-self.piece_nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT, segment.unit_nbytes + ALIGNMENT)
        """Where memory for groups can begin behind a piece, and the bytes that each of them takes there."""
        self._ends = [0]  # of each piece and its tag in the pages, behind a 0
        key = SecretBytes(KEY_NBYTES)  # not of `generate_key`, whose bytes nobody can wipe
        fill_randomly(key)
        self._cipher = AESGCM(key)
        wipe(key)
        self._pages: mmap.mmap = anonymous(nbytes(segment), "encrypted rows")
        try:
            for tile in tiles:
                self._encrypt(tile)
        except BaseException:
            discard(self._pages)
            raise

    def _encrypt(self, tile: memoryview) -> None:
        for first in range(0, len(tile), self.piece_nbytes):
            number, start = len(self._ends) - 1, self._ends[-1]
            record = self._cipher.encrypt(number.to_bytes(12, "big"), tile[first:first + self.piece_nbytes], None)
            self._pages[start:start + len(record)] = record
            self._ends.append(start + len(record))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return len(self._pages)

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return len(self._ends) - 1

    def place(self, row: int) -> tuple[int, int]:
        """Return the piece that has a row, and which of its rows it is."""
        tile, row = divmod(row, self._tile_units * GROUP_ROWS)
        piece, row = divmod(row, self._piece_units * GROUP_ROWS)
        return tile * self._per_tile + piece, row

    def read(self, number: int, buffer: memoryview) -> int:
        """Decrypt piece `number` into the start of `buffer`; its bytes."""
        start, end = self._ends[number:number + 2]
        with memoryview(self._pages) as view, view[start:end] as record:
            return self._cipher.decrypt_into(number.to_bytes(12, "big"), record, None,
                                             buffer[:end - start - TAG_NBYTES])

    def close(self) -> None:
        """Wipe, and drop the key."""
        discard(self._pages)
        self.__dict__.pop("_cipher", None)
