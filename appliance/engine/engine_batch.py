"""Continuous batching: every pass decodes one token of each running answer and reads a piece of waiting prompts.

A row's logits do not depend on what else is in its batch, so neither does an answer. Not safe to use from two
threads at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from appliance.engine.forward import Forward
from appliance.engine.generation import Generation, Step
from appliance.engine.kvcache import KVCache
from appliance.errors import CapacityError

PROMPT_ROWS = 512  # of a pass when nobody waits for the next token
MIXED_PROMPT_ROWS = 128  # of a pass that also decodes: bounds how long a prompt delays the others


@dataclass(slots=True)
class Timings:
    """Seconds on the monotonic clock."""

    started: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0

    def tick(self) -> None:
        """Record a token."""
        self.last_token = time.monotonic()
        if self.first_token is None:
            self.first_token = self.last_token
        self.tokens += 1

    @property
    def prompt_seconds(self) -> float:
        """From the start to the first token."""
        return 0.0 if self.first_token is None else self.first_token - self.started

    @property
    def token_seconds(self) -> float:
        """Mean time of a token after the first."""
        if self.first_token is None or self.last_token is None or self.tokens < 2:
            return 0.0
        return (self.last_token - self.first_token) / (self.tokens - 1)


@dataclass(slots=True)
class Running:
    """An answer in a slot. `todo`: tokens whose keys and values are not in the cache yet."""

    generation: Generation
    slot: int
    todo: list[int]
    position: int = 0
    timings: Timings = field(default_factory=Timings)


class Batcher:
    """The running answers of one engine."""

    def __init__(self, forward: Forward, cache: KVCache) -> None:
        self._forward, self._cache = forward, cache
        self._free = list(range(cache.slots - 1, -1, -1))
        self._running: list[Running] = []

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    @property
    def running(self) -> tuple[Running, ...]:
        """Answers in progress, oldest first."""
        return tuple(self._running)

    def add(self, generation: Generation) -> Running:
        """Give an answer a slot; CapacityError when there is none."""
        if not self._free:
            raise CapacityError("all slots are in use", code="slots-in-use")
        running = Running(generation, self._free.pop(), list(generation.request.prompt_ids))
        self._running.append(running)
        return running

    def remove(self, running: Running) -> None:
        """Take an answer out and wipe its keys and values."""
        self._running.remove(running)
        self._cache.wipe(running.slot, running.position)
        self._forward.boundary.forget(running.slot)
        self._free.append(running.slot)

    def step(self) -> list[tuple[Running, Step]]:
        """One pass. Steps of the answers that got a token; who is finished must be removed."""
        rows = self._plan()
        if not rows:
            return []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wanted: list[int] = []
        asked: list[Running] = []
        for running, count in rows:
            tokens += running.todo[:count]
            positions += range(running.position, running.position + count)
            slots += [running.slot] * count
            if count == len(running.todo):
                wanted.append(len(tokens) - 1)
                asked.append(running)
        logits = self._forward.run(tokens, positions, slots, wanted)
        for running, count in rows:
            running.position += count
            del running.todo[:count]
        return [(running, self._advance(running, logits[row])) for row, running in enumerate(asked)]

    def _advance(self, running: Running, logits: object) -> Step:
        step = running.generation.advance(logits)  # type: ignore[arg-type]
        running.timings.tick()
        if step.finish_reason is None and step.token is not None:
            running.todo.append(step.token)
        return step

    def _plan(self) -> list[tuple[Running, int]]:
        """How many tokens of each answer go into the next pass: decoding ones first, then prompts in order."""
        limits = self._forward.boundary.limits
        decoding = [r for r in self._running if len(r.todo) == 1 and r.position][:min(limits.wanted, limits.rows)]
        rows = [(running, 1) for running in decoding]
        room = min(MIXED_PROMPT_ROWS if rows else PROMPT_ROWS, limits.rows - len(rows))
        for running in self._running:
            if room < 1 or len(rows) == limits.wanted:
                break
            if running.todo and (len(running.todo) > 1 or not running.position):
                count = min(room, len(running.todo))
                rows.append((running, count))
                room -= count
        return rows
