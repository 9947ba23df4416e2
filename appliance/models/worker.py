"""One thread's memory for streaming: locked buffers for what is plaintext, and how its sealed tiles are decrypted."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from appliance.models.libcrypto import Cipher
from appliance.models.locked import LockedBuffer
from appliance.models.resident import ALIGNMENT, address
from appliance.models.tiling import RECORD_ALIGNMENT, TAG_NBYTES, Tile

PIECE_NBYTES = 256 << 10
"""Of a record, read at a time by compiled code: small enough to stay in a core's cache beside the tile."""


@dataclass(frozen=True, slots=True)
class Window:
    """Views for tiles of one size: the record, the message in it, the padding after that, and the plaintext."""

    record: memoryview
    message: memoryview
    padding: memoryview
    zeros: bytes
    tile: memoryview


class Worker:
    """Buffers of one thread: the tile in kernel order, for a plain file its rows as the file has them, for a sealed
    one the record as it was read."""

    def __init__(self, nbytes: int, rows_nbytes: int, record_nbytes: int) -> None:
        """ModelError where the plaintext cannot be locked in memory."""
        self._rows_at = -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self._memory = LockedBuffer(self._rows_at + rows_nbytes)
        self.address = self._memory.address
        self.tile, self.rows = self._memory.view[:nbytes], self._memory.view[self._rows_at:]
        self._record = mmap.mmap(-1, max(record_nbytes, RECORD_ALIGNMENT), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.record_address = address(self._record)
        self._windows: dict[int, Window] = {}
        self.cipher: Cipher | None = None
        """By libcrypto, for compiled code."""
        self.alive = 0
        """Bytes of plaintext since the last wipe, at most."""

    def window(self, tile: Tile) -> Window:
        """Views for a tile."""
        found = self._windows.get(tile.nbytes)
        if found is None:
            message, record = tile.nbytes + TAG_NBYTES, memoryview(self._record)[:tile.record_nbytes]
            found = self._windows[tile.nbytes] = Window(record, record[:message], record[message:],
                                                        bytes(len(record) - message), self.tile[:tile.nbytes])
        return found

    def wipe(self) -> None:
        """Overwrite what was used."""
        if self.alive:
            self._memory.wipe()
            self.alive = 0

    def close(self) -> None:
        """Wipe and give the memory back."""
        if self.cipher is not None:
            self.cipher.close()
        for window in self._windows.values():
            for view in (window.message, window.padding, window.record, window.tile):
                view.release()
        self._windows.clear()
        self.tile.release()
        self.rows.release()
        self._memory.close()
