"""Server-sent events: when each leaves, and what it carries.

The head leaves before the first token: an answer that waits for its turn may be silent for longer
than a proxy waits. Comments, which clients skip, break the silence. Without padding an event leaves
as soon as there is text for it. With padding, events leave on the grid, one at each multiple, with
whatever text there is by then; see privacy.py for what that promises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from appliance.api.answers import CompletionUsage
from appliance.api.shapes import COMMENT, AnswerShape
from appliance.service.admission.privacy import Pacer
from appliance.service.delivery.channels import Leaving
from appliance.service.delivery.outbox import Outbox

HEAD = b""  # upon which the head leaves, and nothing else
EVENT_BYTES = 256 << 10  # of log-probabilities in an event on the grid: more wait for the next


class Last(bytes):
    """The events that end an answer: they leave once it is recorded."""


async def awake(batches: AsyncIterator[Leaving], pacer: Pacer) -> AsyncIterator[Leaving | None]:
    """Batches as they come, and None whenever none has come for so long that a comment is due."""
    while True:
        coming = asyncio.ensure_future(anext(batches, None))
        try:
            while not (await asyncio.wait({coming}, timeout=pacer.left(pacer.awake())))[0]:
                yield None
            batch = coming.result()
        finally:
            coming.cancel()
        if batch is None:
            return
        yield batch


@dataclass
class Filler:
    """Fills an outbox with batches as they come."""

    outbox: Outbox
    first: asyncio.Event = field(default_factory=asyncio.Event)  # something came, or the answer failed
    over: bool = False
    error: Exception | None = None

    async def run(self, batches: AsyncIterator[Leaving]) -> None:
        """Take all batches, and what ends them."""
        try:
            async for batch in batches:
                self.outbox.add(batch)
                self.first.set()
        except Exception as error:  # noqa: BLE001 - told at the next tick
            self.error = error
        self.over = True
        self.first.set()

    async def due(self, pacer: Pacer) -> AsyncIterator[None]:
        """Each time at which a comment is due before anything came."""
        while not self.first.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pacer.left(pacer.awake())):
                    await self.first.wait()
            if not self.first.is_set():
                await pacer.until(pacer.next_tick())
                yield None


@dataclass
class AnswerStream:
    """A streamed answer; its `outbox` says how many choices it has."""

    shape: AnswerShape
    batches: AsyncIterator[Leaving]
    outbox: Outbox
    pacer: Pacer
    usage: Callable[[], CompletionUsage] | None = None  # asked once the answer has ended; None: not told

    def events(self) -> AsyncIterator[bytes]:
        """Its events, paced as the policy says."""
        return self._events_on_grid() if self.pacer.timing.padded else self._events_at_once()

    async def _events_at_once(self) -> AsyncIterator[bytes]:
        """Events as text comes; only the last waits, where the policy pads the total time."""
        opening = self.opening()
        async for batch in awake(self.batches, self.pacer):
            if batch is None:
                yield COMMENT
                continue
            self.outbox.add(batch)
            if opening or not self.outbox.empty:
                yield opening + self.shape.more(self.outbox.take())
                opening = b""
        await self.pacer.hold_end()
        yield self.closing()

    async def _events_on_grid(self) -> AsyncIterator[bytes]:
        """The head on a multiple of the grid, and from the first token on one event of each choice
        on each multiple, until the answer may end."""
        pacer, filler, opening, due_end = self.pacer, Filler(self.outbox), self.opening(), None
        task = asyncio.ensure_future(filler.run(self.batches))
        try:
            await pacer.until(pacer.next_tick())
            if not filler.first.is_set():
                yield HEAD
                async for _ in filler.due(pacer):
                    yield COMMENT
                await pacer.until(pacer.next_tick())
            while True:
                parts = self.outbox.take(EVENT_BYTES)
                over = filler.over and self.outbox.empty
                yield opening + self.shape.more(parts, paced=True)
                opening = b""
                if over and due_end is None:
                    if filler.error is not None:
                        raise filler.error
                    due_end = pacer.end()
                tick = pacer.next_tick()
                if due_end is not None and tick > due_end - pacer.timing.first_token / 2:
                    break
                await pacer.until(tick)
            await pacer.hold_end(due_end)
            yield self.closing()
        finally:
            task.cancel()

    def opening(self) -> bytes:
        """Return the events before any text."""
        return self.shape.opened(self.outbox.choices)

    def more(self) -> bytes:
        """Return the events for what is in the outbox."""
        return self.shape.more(self.outbox.take(EVENT_BYTES))

    def closing(self) -> Last:
        """Return the last events, which leave in one write."""
        return Last(self.shape.ended(self.outbox.ends, None if self.usage is None else self.usage()))


async def collect(batches: AsyncIterator[Leaving], outbox: Outbox) -> None:
    """Put all batches of an answer into its outbox."""
    async for batch in batches:
        outbox.add(batch)
