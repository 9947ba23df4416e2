"""A matrix kept as ciphertext in memory, for looking up rows without anyone outside seeing which.

The pieces are encrypted again, under a key that exists in this process alone, when they are read and authenticated at
boot. A lookup then decrypts one piece of some groups of rows into the caller's buffer, and no disk is asked.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.models.layout import GROUP_ROWS
from appliance.models.resident import anonymous, discard
from appliance.models.tiling import TAG_NBYTES, Segment

PIECE_NBYTES = 64 << 10
"""Bytes of a piece at most, unless one group of rows has more."""


class HiddenRows:
    """The groups of 16 rows of one matrix, in kernel order, encrypted. A piece never crosses a tile."""

    def __init__(self, segment: Segment, tiles: Iterable[memoryview]) -> None:
        """Encrypt the `tiles` of a matrix, each view valid until the next. ModelError for too little memory."""
        self._unit = segment.unit_nbytes
        self._tile_units = segment.tile_units
        self._piece_units = min(max(PIECE_NBYTES // self._unit, 1), self._tile_units)
        self._per_tile = -(-self._tile_units // self._piece_units)
        self._stride = self._piece_units * self._unit + TAG_NBYTES
        self._sizes: list[int] = []
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._pages: mmap.mmap = anonymous(segment.tiles * self._per_tile * self._stride, "encrypted rows")
        try:
            for tile in tiles:
                self._encrypt(tile)
        except BaseException:
            discard(self._pages)
            raise

    def _encrypt(self, tile: memoryview) -> None:
        size = self._piece_units * self._unit
        for first in range(0, len(tile), size):
            number = len(self._sizes)
            start = number * self._stride
            record = self._cipher.encrypt(number.to_bytes(12, "big"), tile[first:first + size], None)
            self._pages[start:start + len(record)] = record
            self._sizes.append(len(record) - TAG_NBYTES)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return len(self._pages)

    def place(self, row: int) -> tuple[int, int]:
        """The piece that has a row, and which of its rows it is."""
        tile, row = divmod(row, self._tile_units * GROUP_ROWS)
        piece, row = divmod(row, self._piece_units * GROUP_ROWS)
        return tile * self._per_tile + piece, row

    def read(self, number: int, buffer: memoryview) -> int:
        """Decrypt piece `number` into the start of `buffer`; its bytes."""
        nbytes, start = self._sizes[number], number * self._stride
        with memoryview(self._pages) as view, view[start:start + nbytes + TAG_NBYTES] as record:
            self._cipher.decrypt_into(number.to_bytes(12, "big"), record, None, buffer[:nbytes])
        return nbytes

    def close(self) -> None:
        """Wipe, and drop the key."""
        discard(self._pages)
        self.__dict__.pop("_cipher", None)
