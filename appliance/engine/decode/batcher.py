"""Continuous batching: every pass decodes one token of each running answer and reads pieces of
prompts.

`prompt_share` says whose pieces, `pass_time` how many rows. A row's logits do not depend on what
else is in its batch, so neither does an answer. Not safe to use from two threads at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from appliance.engine.decode.draft import Ask, Drafter
from appliance.engine.decode.generation import Advance, Generation
from appliance.engine.decode.pass_time import PROMPT_ROWS, PassTime
from appliance.engine.decode.prompt_share import PromptShare, is_short
from appliance.engine.decode.speculate import LONGEST, Speculation
from appliance.engine.forward.forward import Forward, Logits
from appliance.engine.forward.kvcache import KVCache
from appliance.errors import CapacityError, EngineError, ModelError

SPECULATING = 4  # answers at most while guesses are made: more fill a pass without them


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
    speculation: Speculation | None = None
    tenant: str = ""

    @property
    def decoding(self) -> bool:
        """Whether the next pass gives a token of the answer after the first."""
        return len(self.todo) == 1 and self.position > 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of one answer in a pass: `count` of its tokens to do, then guesses; `complete`: then
    a token is chosen."""

    running: Running
    count: int
    complete: bool
    guesses: list[int]


class Batcher:
    """The running answers of one engine."""

    def __init__(self, forward: Forward, cache: KVCache, *, speculate: bool = True,
                 drafter: Drafter | None = None) -> None:
        self._forward, self._cache, self._speculate, self._drafter = forward, cache, speculate, drafter
        self._time, self._share = PassTime(forward.streamed), PromptShare()
        self.passes = 0  # since the start
        self._free = list(range(cache.slots - 1, -1, -1))
        self._running: list[Running] = []
        self._masks = ThreadPoolExecutor(1, "masks")  # its thread starts with the first constraint

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    @property
    def running(self) -> tuple[Running, ...]:
        """Answers in progress, oldest first."""
        return tuple(self._running)

    def reads(self, tenant: str, prompts: int) -> bool:
        """Whether so many long prompts of a tenant are being read, and fill the next pass: one more
        would only wait."""
        own = [each for each in self._running if each.tenant == tenant and not each.decoding]
        full = sum(len(each.todo) for each in own) >= min(PROMPT_ROWS, self._forward.boundary.limits.rows)
        return full and sum(not is_short(each) for each in own) >= prompts

    def add(self, generation: Generation, tenant: str = "") -> Running:
        """Give a tenant's answer a slot; CapacityError when there is none."""
        if not self._free:
            raise CapacityError("all slots are in use", code="slots-in-use")
        prompt = list(generation.request.prompt_ids)
        speculation = None
        if self._speculate:
            try:
                speculation = Speculation(prompt, None if self._drafter is None else self._drafter.cost)
            except MemoryError:
                self._guess_no_more()
        running = Running(generation, self._free.pop(), prompt, speculation=speculation, tenant=tenant)
        self._running.append(running)
        return running

    def remove(self, running: Running) -> None:
        """Take an answer out and wipe its keys and values."""
        self._running.remove(running)
        written = max(running.position + LONGEST, self._forward.boundary.filled(running.slot))  # guesses, too
        self._cache.wipe(running.slot, min(written, self._cache.context))
        self._forward.boundary.forget(running.slot)
        if self._drafter is not None:
            self._drafter.forget(running.slot)
        self._free.append(running.slot)

    def run(self) -> list[tuple[Running, Advance]]:
        """One pass. Advances of the answers that got tokens, in order; who is finished must be
        removed."""
        pieces = self._plan()
        if not pieces:
            return []
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        for piece in pieces:
            running, rows = piece.running, piece.count + len(piece.guesses)
            tokens += running.todo[:piece.count] + piece.guesses
            positions += range(running.position, running.position + rows)
            slots += [running.slot] * rows
            if piece.complete:
                logit_rows += range(len(tokens) - len(piece.guesses) - 1, len(tokens))
        start = time.monotonic()
        with self._masks_meanwhile(pieces):
            logits = self._forward.run(tokens, positions, slots, logit_rows)
        self.passes += 1
        answering = sum(piece.count + len(piece.guesses) for piece in pieces if piece.running.decoding)
        self._time.record(answering, len(tokens) - answering, time.monotonic() - start)
        advances: list[tuple[Running, Advance]] = []
        row = 0
        for piece in pieces:
            piece.running.position += piece.count
            del piece.running.todo[:piece.count]
            if piece.complete:
                advances += [(piece.running, each) for each in self._advance(piece, logits[row:])]
                row += 1 + len(piece.guesses)
        return advances

    def check(self, generation: Generation, tokens: Sequence[int]) -> Iterator[Advance]:
        """The advances of an answer whose tokens are known, one that ends it among them: each
        chosen anew. The first that chooses another token is the last. Passes have as many rows as
        a prompt's, so checking costs what a prompt of this length does."""
        running, limits = self.add(generation), self._forward.boundary.limits
        known, first, done = [*running.todo, *tokens[:-1]], len(running.todo) - 1, 0
        try:
            while done < len(known):
                most = min(limits.rows, max(first - done, 0) + limits.wanted)
                rows = known[done:done + most]
                choosing = range(max(first - done, 0), len(rows))
                logits = self._forward.run(rows, range(done, done + len(rows)), [running.slot] * len(rows),
                                           list(choosing))
                running.position = done + len(rows)
                for place, row in zip(choosing, logits, strict=False):
                    advance = generation.advance(row)
                    yield advance
                    if advance.token != tokens[done + place - first] or advance.finish_reason is not None:
                        return
                done += len(rows)
        finally:
            self.remove(running)

    @contextlib.contextmanager
    def _masks_meanwhile(self, pieces: Sequence[_Piece]) -> Iterator[None]:
        """Compute the masks of a pass while it runs, in a thread of their own."""
        asks = [(constrained, piece.guesses) for piece in pieces
                if piece.complete and (constrained := piece.running.generation.constrained) is not None]
        if not asks:
            yield
            return

        def compute() -> None:
            for constrained, guesses in asks:
                constrained.look_ahead(guesses)
        try:
            done: Future[None] = self._masks.submit(compute)
        except RuntimeError:  # no thread can be started
            compute()
            yield
            return
        try:
            yield
        finally:
            done.result()

    def _advance(self, piece: _Piece, logits: Logits) -> list[Advance]:
        """Choose the next token, and go on as long as it was guessed; forget the guesses that were
        wrong."""
        running, advances = piece.running, list[Advance]()
        for row, guess in enumerate([*piece.guesses, None]):
            advance = running.generation.advance(logits[row])
            advances.append(advance)
            running.timings.tick()
            if advance.finish_reason is not None or advance.token is None:
                break
            if advance.token != guess:
                running.todo.append(advance.token)
                break
            running.position += 1
        self._forward.boundary.forget(running.slot, running.position)
        if running.speculation is not None:
            try:
                running.speculation.settle([each.token for each in advances if each.token is not None])
            except MemoryError:
                self._guess_no_more()
        return advances

    def _guess_no_more(self) -> None:
        """There is no memory: give back what guesses take, which no answer needs."""
        for running in self._running:
            running.speculation = None

    def _plan(self) -> list[_Piece]:
        """Choose the work of the next pass: one token of each answer that decodes, then shares of
        prompts."""
        limits = self._forward.boundary.limits
        decoding = [r for r in self._running if r.decoding][:min(limits.wanted, limits.rows)]
        alone = 0 < len(decoding) <= SPECULATING and len(decoding) == len(self._running)
        guesses = self._guesses(decoding) if alone and self._speculate else [[] for _ in decoding]
        pieces = [_Piece(running, 1, True, guess) for running, guess in zip(decoding, guesses, strict=True)]
        prompts = [r for r in self._running if r.todo and not r.decoding][:limits.wanted - len(pieces)]
        short = 0 < sum(is_short(each) for each in prompts) < len(prompts)
        room = min(self._time.prompt_rows(bool(pieces), short), limits.rows - len(pieces))
        shares = self._share.rows(prompts, room, self._time.long_rows(len(pieces)) if pieces else None)
        return pieces + [_Piece(running, count, count == len(running.todo), [])
                         for running, count in zip(prompts, shares, strict=True) if count]

    def _guesses(self, decoding: list[Running]) -> list[list[int]]:
        """Guesses for answers that decode, no more than tokens each may still have after the next,
        or rows that fit."""
        limits = self._forward.boundary.limits
        most = min(limits.rows, limits.wanted) // len(decoding) - 1
        found: list[list[int]] = []
        asks: list[tuple[int, Speculation, Ask]] = []
        for index, running in enumerate(decoding):
            speculation, room = running.speculation, min(running.generation.left - 1, most)
            found.append([] if speculation is None else self._own(running, speculation, room, len(decoding)))
            if speculation is not None and not found[index]:
                count = speculation.draft_count(room, len(decoding))
                if count:
                    asks.append((index, speculation, Ask(running.slot, speculation.tokens, count)))
        for (index, speculation, _), guesses in zip(asks, self._drafted([ask for _, _, ask in asks]), strict=False):
            speculation.offer(guesses)
            found[index] = self._within(decoding[index], speculation, guesses)
        return found

    def _own(self, running: Running, speculation: Speculation, room: int, answers: int) -> list[int]:
        """Guesses for an answer: the tokens that its constraint forces, else from its text."""
        constrained = running.generation.constrained
        if constrained is not None and (forced := constrained.forced(room)):
            speculation.correct(0)
            return forced
        return self._within(running, speculation, speculation.guess(room, answers))

    @staticmethod
    def _within(running: Running, speculation: Speculation, guesses: list[int]) -> list[int]:
        """Guesses that a constraint allows."""
        constrained = running.generation.constrained
        if constrained is None or not guesses:
            return guesses
        guesses = constrained.allowed(guesses)
        speculation.correct(len(guesses))
        return guesses

    def close(self) -> None:
        """End the thread that computes masks, if there is one."""
        self._masks.shutdown()

    def _drafted(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Guesses of the draft model; none without one. One that fails, its disk lies, say, is
        asked no more, and what it read is wiped: no answer needs it."""
        if self._drafter is None or not asks:
            return []
        try:
            return self._drafter.guess(asks)
        except (EngineError, ModelError):
            for running in self._running:
                self._drafter.forget(running.slot)
            self._drafter = None
            return []
