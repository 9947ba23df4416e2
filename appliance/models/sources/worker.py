"""The memory of each thread for streaming: locked buffers for plaintext, and how its sealed tiles
are decrypted."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from appliance.models.file.tiling import RECORD_ALIGNMENT
from appliance.models.sources.resident import ALIGNMENT
from appliance.secure.libcrypto import Cipher
from appliance.secure.locked import LockedBuffer, address

SLOTS = 2
"""Tiles of plaintext that a thread has room for. It decrypts into each in turn: what is written where the core's cache
holds nothing of it yet lets the ciphertext come from memory a fifth faster. (Not on CPUs with AMX, whose second-level
cache is larger: see `TileReader.native`.)"""

PIECE_NBYTES = 256 << 10
"""Of a record, read at a time by compiled code: small enough to stay in a core's cache beside the tile."""


class WorkerBuffers:
    """Buffers of one thread: tiles in kernel order, and room for one as the file has it."""

    def __init__(self, nbytes: int, room_nbytes: int, *, plain: bool) -> None:
        """Bytes of a `plain` file are plaintext, so their room is locked as well. Raises ModelError
        if memory cannot be locked."""
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
        """Slots in use, see `Workers.narrow`."""
        self._slot, self._held = 0, [-1] * SLOTS  # numbers of the tiles in the slots
        self.address, self.tile = self.addresses[0], self.tiles[0]
        """Of the slot in use."""
        self.cipher: Cipher | None = None
        """By libcrypto, for compiled code."""
        self.alive = 0
        """Bytes of plaintext since the last wipe, at most."""
        self.opened_nbytes, self.read_nbytes = 0, 0
        """Bytes of tiles that it decrypted so far (or packed, of a plain model), and of the file that it read."""

    @property
    def nbytes(self) -> int:
        """The most bytes of plaintext at one moment."""
        return self.places * len(self.tile) + (len(self.room) if self._plain else 0)

    def spare(self, used: int, each: int) -> tuple[int, int]:
        """The address of memory for plaintext, and for how many things of `each` bytes. It is the
        other slot. Where there is one place, it is what is behind `used` bytes of this one, or
        else room for one thing, which `Workers.reserve` counts."""
        if self.places == 1 and used + each <= len(self.tile):
            return self.address + used, (len(self.tile) - used) // each
        other = (self._slot + 1) % SLOTS
        return self.addresses[other], 1 if self.places == 1 else max(len(self.tiles[other]) // each, 1)

    def turn(self) -> None:
        """Use the next slot, and overwrite its content."""
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


class Workers:
    """The buffers of all threads, and how much plaintext they hold."""

    def __init__(self, tile_nbytes: int, room_nbytes: int, *, plain: bool) -> None:
        """No thread's yet, see `prepare`. Arguments as of `WorkerBuffers`."""
        self._sizes, self.plain = (tile_nbytes, room_nbytes), plain
        self._places = SLOTS  # for tiles, of each thread
        self._each: list[WorkerBuffers] = []
        self._reserved = 0
        self.most_alive = 0
        """The most bytes of streamed plaintext that existed at one moment so far."""

    def __getitem__(self, thread: int) -> WorkerBuffers:
        return self._each[thread]

    def __iter__(self) -> Iterator[WorkerBuffers]:
        return iter(self._each)

    @property
    def opened_nbytes(self) -> int:
        """Bytes of tiles that were decrypted so far, or packed of a plain model."""
        return sum(worker.opened_nbytes for worker in self._each)

    @property
    def read_nbytes(self) -> int:
        """Bytes of the file that were read for tiles so far."""
        return sum(worker.read_nbytes for worker in self._each)

    @property
    def nbytes(self) -> int:
        """Bytes of streamed plaintext that can exist at one moment, with the threads prepared so
        far."""
        beyond = max(self._reserved - self._sizes[0], 0) if self._places == 1 and self._each else 0
        return sum(worker.nbytes for worker in self._each) + beyond

    def reserve(self, nbytes: int) -> None:
        """Count so many bytes in the first thread, where they are more than one place has."""
        self._reserved = nbytes

    def prepare(self, threads: int) -> None:
        """Make the buffers of `threads` threads. Raises ModelError if they cannot be locked in
        memory.
        """
        while len(self._each) < threads:
            self._each.append(WorkerBuffers(*self._sizes, plain=self.plain))
            self._each[-1].places = self._places

    @contextmanager
    def loading(self) -> Iterator[None]:
        """While a model is loaded, the first thread alone works, with one place: `plaintext_budget`
        may have no room for more. Its memory is wiped at the end."""
        self.prepare(1)
        self._each[0].places = 1
        yield
        self.wipe()
        self._each[0].places = self._places

    def narrow(self) -> None:
        """Use one place for a tile in each thread, not two: less plaintext, and slower on most
        CPUs. Before the first pass."""
        self._places = 1
        for worker in self._each:
            worker.places = 1
            worker.turn()

    def count(self, worker: WorkerBuffers, nbytes: int) -> None:
        """One of them has so many bytes of plaintext now."""
        if nbytes > worker.alive:
            worker.alive = nbytes
            self.most_alive = max(self.most_alive, sum(each.alive for each in self._each))

    def wipe(self) -> None:
        """Overwrite what was used."""
        for worker in self._each:
            worker.wipe()

    def close(self) -> None:
        """Wipe and give the memory back."""
        while self._each:
            self._each.pop().close()
