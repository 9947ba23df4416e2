"""One thread's memory for streaming: locked buffers for what is plaintext, and how its sealed tiles are decrypted."""

from __future__ import annotations

import mmap

from appliance.models.file.tiling import RECORD_ALIGNMENT
from appliance.models.sources.resident import ALIGNMENT
from appliance.secure.libcrypto import Cipher
from appliance.secure.locked import LockedBuffer, address

SLOTS = 2
"""Tiles of plaintext that a thread has room for. It decrypts into each in turn: what is written where the core's cache
holds nothing of it yet lets the ciphertext come from memory a fifth faster. (Not on CPUs with AMX, whose second-level
cache is larger: see `StreamedSource.native`.)"""

PIECE_NBYTES = 256 << 10
"""Of a record, read at a time by compiled code: small enough to stay in a core's cache beside the tile."""


class Worker:
    """Buffers of one thread: tiles in kernel order, and room for one as the file has it."""

    def __init__(self, nbytes: int, room_nbytes: int, *, plain: bool) -> None:
        """What is read of a `plain` file is plaintext, too. ModelError where that cannot be locked in memory."""
        stride = -(-nbytes // ALIGNMENT) * ALIGNMENT + ALIGNMENT
        self._memory = LockedBuffer(SLOTS * stride + (room_nbytes if plain else 0))
        self.addresses = tuple(self._memory.address + slot * stride for slot in range(SLOTS))
        self.tiles = tuple(self._memory.view[slot * stride:slot * stride + nbytes] for slot in range(SLOTS))
        if plain:
            self.room = self._memory.view[SLOTS * stride:SLOTS * stride + room_nbytes]
            self.room_address = self._memory.address + SLOTS * stride
        else:
            record = mmap.mmap(-1, max(room_nbytes, RECORD_ALIGNMENT), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.room, self.room_address = memoryview(record), address(record)
        self._plain = plain
        self.places = SLOTS
        """Slots in use, see `StreamedSource.narrow`."""
        self._slot, self._held = 0, [-1] * SLOTS  # numbers of the tiles in the slots
        self.address, self.tile = self.addresses[0], self.tiles[0]
        """Of the slot in use."""
        self.cipher: Cipher | None = None
        """By libcrypto, for compiled code."""
        self.alive = 0
        """Bytes of plaintext since the last wipe, at most."""

    @property
    def nbytes(self) -> int:
        """The most bytes of plaintext at one moment."""
        return self.places * len(self.tile) + (len(self.room) if self._plain else 0)

    def turn(self) -> None:
        """Use the next slot; what is in it is overwritten."""
        self._slot = (self._slot + 1) % self.places
        self._held[self._slot] = -1
        self.address, self.tile = self.addresses[self._slot], self.tiles[self._slot]

    def hold(self, number: int) -> None:
        """The slot in use has the tile `number`, until the next `turn` to it or `wipe`."""
        self._held[self._slot] = number

    def held(self, number: int) -> int | None:
        """Address of the tile `number`, where a slot has it."""
        return self.addresses[self._held.index(number)] if number in self._held else None

    def wipe(self) -> None:
        """Overwrite what was used."""
        if self.alive:
            self._memory.wipe()
            self.alive, self._held = 0, [-1] * SLOTS

    def close(self) -> None:
        """Wipe and give the memory back."""
        if self.cipher is not None:
            self.cipher.close()
        for view in (*self.tiles, self.room):
            view.release()
        self._memory.close()
