"""The keys that pages of keys and values are sealed under: one for each sixteenth of their
lifetime. When a key's time is over it is destroyed, in memory and in both copies of the table on
the disk, and nothing opens what it sealed.

    age        the longer of two: by the running appliance's own clock, or by the host's, which
               counts while it is off. A host that sets its clock back gains nothing
    kill       an appliance that was not closed takes its keys for a sixteenth older at its next
               boot: that is the most that was not noted yet
    rollback   the log knows of the table's counter. A table from before that is not used, and a
               new one takes its place
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance import hostclock
from appliance.errors import StateError
from appliance.secure import stacks
from appliance.secure.locked import SecretBytes, fill_randomly
from appliance.secure.wipe import wipe
from appliance.state import frames, page_format
from appliance.state.disk import StateDisk
from appliance.state.page_format import KeyTable, PageKey

PARTS = 16  # of a lifetime: a key seals for one of them
_MARK = struct.Struct("<QI")  # counter of a table, 1 if the appliance was closed with it
_LONGEST, _SHORTEST = 60_000, 1_000  # milliseconds between two notes of how old keys are


class PageKeys(Protocol):
    """Where the keys of pages come from."""

    def bind(self, binding: bytes) -> None:
        """Take a shelf's binding, for this shelf alone. StateError where another one has it."""
        ...

    def name(self) -> tuple[int, int]:
        """The number of the key that a page is to be sealed under now; and the page's own, which
        was never given under that key, to whichever shelf."""
        ...

    def cipher(self, number: int, use: str, make: Callable[[bytearray], AESGCM]) -> AESGCM | None:
        """The cipher of a key for one use, as `make` makes it; None where the key is not there."""
        ...

    def alive(self, number: int) -> bool:
        """Whether there is a key of this number."""
        ...

    @property
    def next_expiry(self) -> float | None:
        """Seconds until one goes; None where none does."""
        ...


class Bindings:
    """The bindings of all shelves under the same keys. Two shelves of one binding would seal under
    one derived key."""

    def __init__(self) -> None:
        self._bound = set[bytes]()

    def bind(self, binding: bytes) -> None:
        """Take a binding. StateError where it was taken before."""
        if binding in self._bound:
            named = ", ".join(binding.decode().splitlines()[:2])
            raise StateError(f"two shelves of sessions have one binding ({named}), so they would share their keys",
                             code="state-shelves", hint="take session_persistence from one of their models")
        self._bound.add(binding)


@dataclass(slots=True)
class _Live:
    """A key, and when it had the age that it tells."""

    key: PageKey
    since: float
    pages: int = 0  # that were sealed under it, by all shelves
    ciphers: dict[str, AESGCM] = field(default_factory=dict)


class StateKeys(Bindings):
    """The keys on a state disk. Safe to call from several threads, but for `tend` and `close`,
    which are for the thread that writes."""

    def __init__(self, disk: StateDisk, tables_at: int, lifetime_ms: int, *,
                 schedule: Callable[[Callable[[], None]], None] = lambda task: task(),
                 clock: Callable[[], float] = time.monotonic, host: Callable[[], float] = hostclock.seconds) -> None:
        """`tables_at`: where the two copies of the table are. `schedule` gets what must be written
        before anything that is scheduled later. Raises StateError."""
        super().__init__()
        self._disk, self._at, self._schedule = disk, tables_at, schedule
        self.dropped: int | None = None
        """The version of the format in which an earlier appliance left pages that are given up."""
        self._clock, self._host = clock, host
        self._part = max(lifetime_ms // PARTS, 1)
        self._limit = lifetime_ms - self._part
        self._interval = min(max(lifetime_ms // (4 * PARTS), _SHORTEST), _LONGEST)
        self._lock = threading.RLock()
        self._live: dict[int, _Live] = {}
        self._newest = 0  # the number of the key made last, in this life
        self._written = self._marked = clock()
        self._counter, self._following = self._found()
        self._bury()
        self._note(2)

    def name(self) -> tuple[int, int]:
        """The key that seals now, and the number of the next page under it."""
        with self._lock:
            live = self._live[self._current()]
            live.pages += 1
            return live.key.number, live.pages

    def _current(self) -> int:
        """The key that seals now; a new one where the last one's part is over. It is made in this
        life: pages under others were counted by somebody else."""
        with self._lock:
            newest = self._live.get(self._newest)
            if newest is not None and self._age(newest) < self._part:
                return self._newest
            number, secret = self._following, SecretBytes(page_format.KEY_BYTES)
            fill_randomly(secret)
            while len(self._live) >= page_format.MOST_KEYS:
                self._forget(min(self._live))
            self._live[number] = _Live(PageKey(number, 0, self._now_ms(), secret), self._clock())
            self._newest, self._following = number, number + 1
        self._schedule(lambda: self._note(2))
        return number

    def cipher(self, number: int, use: str, make: Callable[[bytearray], AESGCM]) -> AESGCM | None:
        """The cipher of a key for one use. It goes with the key."""
        with self._lock:
            live = self._live.get(number) if self.alive(number) else None
            if live is None:
                return None
            if use not in live.ciphers:
                live.ciphers[use] = make(live.key.secret)
                stacks.wipe()
            return live.ciphers[use]

    def alive(self, number: int) -> bool:
        """Whether a key is there and its time is not over."""
        with self._lock:
            live = self._live.get(number)
            return live is not None and self._age(live) < self._limit

    @property
    def next_expiry(self) -> float | None:
        """Seconds until a key's time is over, unless the host's clock jumps."""
        with self._lock:
            return min((max(0.0, (self._limit - self._age(live)) / 1000) for live in self._live.values()), default=None)

    def tend(self) -> float:
        """Destroy keys whose time is over, and note how old the others are; seconds until there is
        more to do. Raises StateError and OSError."""
        if self._bury():
            self._note(2)
        elif self._live and (self._clock() - self._written) * 1000 >= self._interval:
            self._note(1, mark=(self._clock() - self._marked) * 1000 >= self._part)
        due = self.next_expiry
        return self._interval / 1000 if due is None else min(due, self._interval / 1000)

    def close(self) -> None:
        """Note how old keys are, to the moment, and forget them. Raises StateError and OSError."""
        try:
            self._bury()
            self._note(2, closed=True)
        finally:
            self.wipe()

    def wipe(self) -> None:
        """Forget all keys, in memory alone."""
        with self._lock:
            for number in list(self._live):
                self._forget(number)

    def _now_ms(self) -> int:
        """The host's clock, since 1970."""
        return max(0, int(self._host() * 1000))

    def _running(self, live: _Live) -> int:
        """The age of a key by the running appliance's clock."""
        return live.key.age + int((self._clock() - live.since) * 1000)

    def _age(self, live: _Live) -> int:
        return max(self._running(live), self._now_ms() - live.key.begun)

    def _forget(self, number: int) -> None:
        live = self._live.pop(number)
        live.ciphers.clear()
        wipe(live.key.secret)

    def _bury(self) -> bool:
        """Forget keys whose time is over; whether there were any."""
        with self._lock:
            dead = [number for number, live in self._live.items() if self._age(live) >= self._limit]
            for number in dead:
                self._forget(number)
        return bool(dead)

    def _found(self) -> tuple[int, int]:
        """The counter of the newest table, and the number of the next key; the table's keys are
        live then, unless somebody put an older table back."""
        device, known = self._disk.device, self._disk.mark
        marked, closed = _MARK.unpack(known) if len(known) == _MARK.size else (0, 0)
        copies = [device.read(self._at + place * page_format.TABLE_BYTES, page_format.TABLE_BYTES) for place in (0, 1)]
        opened = [table for data in copies
                  if (table := page_format.open_table(self._disk.secret, self._disk.disk, data)) is not None]
        stacks.wipe()
        earlier = [page_format.earlier_version(self._disk.disk, data) for data in copies]
        self.dropped = None if opened else max(filter(None, earlier), default=None)
        table = max(opened, key=lambda each: each.counter, default=KeyTable(marked, 1))
        if not marked or table.counter < marked:
            return max(marked, table.counter), table.following
        for key in table.keys:
            key.age += 0 if closed and table.counter == marked else self._part
            self._live[key.number] = _Live(key, self._clock())
        return table.counter, table.following

    def _note(self, copies: int, *, mark: bool = True, closed: bool = False) -> None:
        """Write the table as it is now, twice where the one before must be gone; then let the log
        know of it."""
        for _ in range(copies):
            with self._lock:
                self._counter += 1
                keys = [PageKey(live.key.number, self._running(live), live.key.begun, live.key.secret)
                        for live in self._live.values()]
                data = page_format.seal_table(self._disk.secret, self._disk.disk,
                                              secrets.token_bytes(page_format.SALT_BYTES),
                                              KeyTable(self._counter, self._following, keys))
            stacks.wipe()
            at = self._at + self._counter % 2 * page_format.TABLE_BYTES
            self._disk.device.write(at, data.ljust(page_format.TABLE_BYTES, b"\0"))
        self._written = self._clock()
        if mark:
            self._disk.append(frames.PAGES, _MARK.pack(self._counter, closed))
            self._disk.pin()
            self._marked = self._written


def erase(disk: StateDisk, tables_at: int) -> None:
    """Destroy the keys on a disk whose policy keeps no pages any more. Raises StateError and
    OSError."""
    if len(disk.mark) == _MARK.size and any(
            any(disk.device.read(tables_at + place * page_format.TABLE_BYTES, page_format.BLOCK)) for place in (0, 1)):
        for place in (0, 1):
            disk.device.write(tables_at + place * page_format.TABLE_BYTES, bytes(page_format.TABLE_BYTES))
        disk.append(frames.PAGES, _MARK.pack(_MARK.unpack(disk.mark)[0] + 1, 0))
        disk.pin()
