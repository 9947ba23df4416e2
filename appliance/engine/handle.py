"""A request that the scheduler has: its answers, those that wait for a slot, and what hears of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from appliance.engine.decode.generation import Advance, Generation
from appliance.engine.decode.running import Running, Timings
from appliance.errors import EngineError, ModelError

OnAdvance = Callable[[Advance], None]
OnStart = Callable[[], None]
OnError = Callable[[EngineError | ModelError], None]


class Handle:
    """A submitted request."""

    def __init__(self, generations: Sequence[Generation], tenant: str, on_advance: OnAdvance, on_error: OnError,
                 on_start: OnStart, allowed: int | None = None) -> None:
        self.tenant = tenant
        self.timings: Timings | None = None  # of the first answer, from the moment it left the queue
        self._generations, self._on_advance, self._on_error, self._on_start = (
            tuple(generations), on_advance, on_error, on_start)
        self._waiting = deque(generations)  # those without a slot; touched by the engine's thread only
        self._running: list[Running] = []  # the same
        self._allowed = len(generations) if allowed is None else allowed  # answers that may have begun
        self._first: Running | None = None  # the first answer, once it has a slot
        self._cancelled = threading.Event()
        self._done = threading.Event()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self._generations[0].prompt_ids)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not read again; 0 until the request left the queue."""
        return 0 if self._first is None else self._first.found

    @property
    def tokens(self) -> int:
        """Tokens of the answers so far."""
        return sum(len(each.tokens) for each in self._generations)

    @property
    def _begun(self) -> bool:
        """Whether an answer of it has a slot."""
        return bool(self._running)

    @property
    def _ready(self) -> bool:
        """Whether another answer of it may begin."""
        return bool(self._waiting) and len(self._generations) - len(self._waiting) < self._allowed

    @property
    def places(self) -> int:
        """Slots that each of its answers needs."""
        return self._generations[0].places

    def cancel(self) -> None:
        """Ask for an end: each answer's `End` says "cancelled", unless it ends by itself first."""
        self._cancelled.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the last advance of the last answer; False when the time is over."""
        return self._done.wait(seconds)
