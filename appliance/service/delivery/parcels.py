"""A stream as parcels of one size: one at each multiple of `first_token`, from its head to its end,
which is a multiple of `total`.

    head, parcel | parcel | ... | parcel, end
    first_token                   total

A parcel has text or cover, which nobody can tell apart. Text that does not fit waits for the next
one. The last events leave as late as they can: at the end, and at the multiples before it where
they are longer than a parcel. A refusal leaves in the same way, with spaces for cover.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from appliance.service.admission.privacy import Pacer, pad_event


class Source(Protocol):
    """The origin of a stream's events."""

    @property
    def error(self) -> Exception | None:
        """Why the stream does not go on."""

    @property
    def over(self) -> bool:
        """Whether no more events come but the last."""

    def take(self) -> bytes:
        """Return whole events that may leave."""

    def closing(self) -> bytes | None:
        """Return the last events; None where they are not known before the end."""

    async def end(self) -> bytes:
        """Take note of the end, which is now. Returns events that are known only now; `closing`
        knows the last ones then. A failure is kept as `error`."""


@dataclass
class _Run:
    """Bytes that leave one behind the other. Spaces among them take no memory before they do."""

    before: bytes = b""
    spaces: int = 0
    after: bytes = b""

    def __len__(self) -> int:
        return len(self.before) + self.spaces + len(self.after)

    def take(self, nbytes: int) -> bytes:
        """Take so many from the front."""
        taken, self.before = self.before[:nbytes], self.before[nbytes:]
        blank = min(self.spaces, nbytes - len(taken))
        self.spaces -= blank
        taken += b" " * blank
        rest = nbytes - len(taken)
        taken, self.after = taken + self.after[:rest], self.after[rest:]
        return taken


@dataclass
class Parcels:
    """A stream as parcels. `note` hears of each that is made before the end is noted."""

    source: Source
    pacer: Pacer
    size: int
    note: Callable[[bytes], bytes]
    _held: bytes = b""  # events that leave next, or what is left of them
    _last: _Run = field(default_factory=_Run)  # the last events, in whole parcels
    _noted = False      # the end is
    over = False        # the next parcel is the last

    async def leave(self) -> AsyncIterator[bytes]:
        """Yield each at its multiple."""
        begun = False  # with the last events
        while not begun or self._last:
            left = await self.pacer.beat()
            if not self._last:
                await self._fill(left)
            whole = (left + 1 - len(self._last) // self.size) % self.pacer.beats == 0
            begun = begun or (bool(self._last) and not self._held and whole)
            if begun:
                parcel = self._last.take(self.size)
            else:
                parcel, self._held = self._held[:self.size], self._held[self.size:]
                parcel += cover(self.size - len(parcel))
            if begun and not self._last:
                parcel, self.over = await self._noted_last(parcel), True
            else:
                parcel = self._note(parcel)
            yield parcel

    async def _fill(self, left: int) -> None:
        """Take what has come, so many multiples before one of `total`."""
        whole = not self._held
        if len(self._held) < self.size:
            self._held += self.source.take()
        if not (whole and self.source.over):
            return
        if self.source.closing() is None and not (left or self._held):
            made, self._noted = await self.source.end(), True
            self._stretch(made, self.source.closing() or b"")
            return
        closing = self.source.closing()
        if closing is None:
            return
        missing = self.size - len(self._held) - len(closing)
        if left or missing < 0:
            self._last = _Run(pad_event(closing, self.size))
        else:
            self._held, self._last = b"", _Run(self._held + cover(missing) + closing)

    def _stretch(self, made: bytes, closing: bytes) -> None:
        """Fill the parcels from now to the end, which may be now. A receipt is followed by no
        more than one comment: verifiers refuse another."""
        room, nbytes = self.size, len(made) + len(closing)
        while room < nbytes or room == nbytes + 1:  # the shortest comment has two bytes
            room += self.size * self.pacer.beats
        comment = (b":", b"\n") if room > nbytes else (b"", b"")
        self._last = _Run(made + comment[0], max(0, room - nbytes - 2), comment[1] + closing)

    def _note(self, parcel: bytes) -> bytes:
        return parcel if self._noted else self.note(parcel)

    async def _noted_last(self, parcel: bytes) -> bytes:
        """Return the last parcel once the end is noted; an error in its place if it cannot be."""
        self._note(parcel)
        if not self._noted:
            await self.source.end()
            if self.source.error is not None:
                return pad_event(b"\n\n" + (self.source.closing() or b""), self.size)  # it may go on with an event
        return parcel


async def refusal(body: bytes, pacer: Pacer, size: int, end: Callable[[], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Yield the JSON of a refusal as the parcels of a stream; `end` takes note of its end."""
    left = 1
    while left or body:
        left = await pacer.beat()
        parcel, body = body[:size].ljust(size), body[size:]
        if not (left or body):
            await end()
        yield parcel


def cover(nbytes: int) -> bytes:
    """Return so many bytes that readers of events skip."""
    return b":".ljust(nbytes - 2) + b"\n\n" if nbytes > 2 else (b"", b"\n", b":\n")[nbytes]
