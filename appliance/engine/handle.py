"""A request that the scheduler has: its answers, and whoever hears of them."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable

from appliance.engine.batch.sequence import Sequence, Timings
from appliance.engine.decode.generation import Advance, Generation
from appliance.errors import EngineError, ModelError

OnAdvance = Callable[[Advance], None]
OnStart = Callable[[], None]
OnError = Callable[[EngineError | ModelError], None]


class Handle:
    """A submitted request. Its answers are touched by the engine's thread only."""

    def __init__(self, generations: list[Generation], tenant: str, on_advance: OnAdvance, on_error: OnError,
                 on_start: OnStart, allowed: int | None = None) -> None:
        self.tenant = tenant
        self.timings: Timings | None = None  # of the first answer, from the moment it left the queue
        self.waiting = deque(generations)  # those without a slot
        self.running: list[Sequence] = []  # those with one
        self.allowed = len(generations) if allowed is None else allowed  # answers that may have begun
        self.places = generations[0].places
        """Slots that each of its answers needs."""
        self._generations, self._on_advance, self._on_error, self._on_start = (
            tuple(generations), on_advance, on_error, on_start)
        self._first: Sequence | None = None  # the first answer, once it has a slot
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
    def ready(self) -> bool:
        """Whether another answer of it may begin."""
        return bool(self.waiting) and len(self._generations) - len(self.waiting) < self.allowed

    @property
    def parent(self) -> Sequence | None:
        """An answer whose prompt is there for another one."""
        return next((each for each in self.running if each.forks), None)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked for an end."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Ask for an end: each answer's `End` says "cancelled", unless it ends by itself first."""
        self._cancelled.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the last advance of the last answer; False when the time is over."""
        return self._done.wait(seconds)

    # --- the engine's thread: a broken callback must not stop others ------------------------------
    def start(self, sequence: Sequence) -> None:
        """Note that an answer has a slot, and report the first."""
        if self._first is None:
            self.timings, self._first = sequence.timings, sequence
            with contextlib.suppress(Exception):
                self._on_start()

    def deliver(self, advance: Advance) -> bool:
        """Report what an answer got; False where the callback raised."""
        try:
            self._on_advance(advance)
        except Exception:  # noqa: BLE001
            return False
        return True

    def fail(self, error: EngineError | ModelError) -> None:
        """Report an error in the place of a last advance."""
        with contextlib.suppress(Exception):
            self._on_error(error)
        self.end()

    def end(self) -> None:
        """Nothing of it comes any more."""
        self._done.set()
