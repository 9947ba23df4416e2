"""Continuous batching: every pass decodes one token of each running answer and reads pieces of
prompts.

`prompt_share` says whose pieces, `pass_time` how many rows. A row's logits do not depend on what
else is in its batch, so neither does an answer. Not safe to use from two threads at once.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from appliance.engine.decode.beams.lanes import Lane, Lanes
from appliance.engine.decode.draft import Ask, Drafter
from appliance.engine.decode.generation import Advance, Generation
from appliance.engine.decode.pass_time import PROMPT_ROWS, PassTime
from appliance.engine.decode.prompt_share import PromptShare, is_long, is_short
from appliance.engine.decode.running import Guide, Running
from appliance.engine.decode.speculate import Speculation
from appliance.engine.forward.earlier import Earlier
from appliance.engine.forward.forward import Forward, Logits
from appliance.engine.forward.kvcache import KVCache, pages_of
from appliance.engine.forward.persistence import BURST, RESTORING
from appliance.errors import CapacityError, EngineError, ModelError
from appliance.kernels.layouts.attention import PAGE

SPECULATING = 4  # answers at most while guesses are made: more fill a pass without them
_PATIENCE = 0.05  # seconds at most that an idle engine waits for a page


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of one answer in a pass: `count` of the tokens of `part` to do, then guesses;
    `complete`: then a token is chosen."""

    running: Running
    part: Running | Guide
    count: int
    guesses: list[int]
    complete: bool

    @property
    def lanes(self) -> Sequence[Lane]:
        """The rows of a beam search after its first step, in place of its own."""
        return () if self.running.lanes is None else self.running.lanes.live

    @property
    def told(self) -> int:
        """Rows, the first ones, whose logits tell of the prompt's next token."""
        whole = self.running.generation.request.prompt_logprobs and not self.running.decoding
        return self.count - self.complete if whole and self.part is self.running else 0


class _Rows:
    """The rows of a pass."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.logits: list[int] = []

    def add(self, part: Running | Guide | Lane, tokens: list[int], logits: int, told: int = 0) -> None:
        """Tokens of a slot; the first `told` and the last `logits` of them have logits."""
        self.logits += range(len(self.tokens), len(self.tokens) + told)
        self.tokens += tokens
        self.positions += range(part.position, part.position + len(tokens))
        self.slots += [part.slot] * len(tokens)
        self.logits += range(len(self.tokens) - logits, len(self.tokens))


class Batcher:
    """The running answers of one engine."""

    def __init__(self, forward: Forward, cache: KVCache, *, speculate: bool = True,
                 drafter: Drafter | None = None) -> None:
        self._forward, self._cache, self._speculate, self._drafter = forward, cache, speculate, drafter
        self._time, self._share = PassTime(forward.streamed), PromptShare()
        self.passes = 0  # since the start
        self._free = list(range(cache.slots - 1, -1, -1))
        self._running: list[Running] = []
        self._earlier: Earlier | None = None
        self._masks = ThreadPoolExecutor(1, "masks")  # its thread starts with the first constraint

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    @property
    def running(self) -> tuple[Running, ...]:
        """Answers in progress, oldest first."""
        return tuple(self._running)

    def share_by(self, weights: Mapping[str, int]) -> None:
        """Tenants share the rows of prompts by these weights, from now on."""
        self._share = PromptShare(weights)

    def divide(self, tenants: Collection[str]) -> None:
        """Let `tenants` share the room for texts from now on, and wipe what is kept for others."""
        if self._earlier is not None:
            self._earlier.divide(tenants)

    def keep_texts(self, earlier: Earlier) -> None:
        """Keep pages of texts for texts that begin like them, from now on."""
        self._earlier = earlier

    def drop_texts(self) -> None:
        """Wipe what is kept, and keep no more."""
        if self._earlier is not None:
            self._earlier.close()
            self._earlier = None

    def expire(self) -> float | None:
        """Wipe texts whose time is over, and put others where they outlive the process; seconds
        until there is more to do, None where nothing is."""
        return None if self._earlier is None else self._earlier.expire()

    def reads(self, tenant: str, prompts: int) -> bool:
        """Whether so many long prompts of a tenant are being read, and fill the next pass: one more
        would only wait."""
        own = [each for each in self._running if each.tenant == tenant and not each.decoding]
        full = sum(len(each.todo) for each in own) >= min(PROMPT_ROWS, self._forward.boundary.limits.rows)
        return full and sum(is_long(each) and not is_short(each) for each in own) >= prompts

    def add(self, generation: Generation, tenant: str = "") -> Running:
        """Give a tenant's answer a slot, or two, and claim the pages of its longest course;
        CapacityError when there are none, or not as many."""
        self._require(generation)
        prompt = list(generation.prompt_ids)
        running = Running(generation, self._free[-1], prompt, speculation=self._speculation(prompt), tenant=tenant)
        if generation.search is not None:
            running.lanes, running.speculation = Lanes(self._free[:-1 - generation.places:-1],
                                                       self._longest(generation)), None
            running.lanes.claim(self._cache)
        self._cache.claim(running.slot, self._longest(generation))
        if generation.negative_ids:
            *negative, last = generation.negative_ids
            running.guide = Guide(self._free[-2], negative, last, tenant)
            self._cache.claim(running.guide.slot, self._longest_guide(generation))
        self._find(running)
        self._running.append(running)
        del self._free[-generation.places:]
        return running

    def fits(self, generation: Generation) -> bool:
        """Whether slots and pages for an answer are free."""
        return len(self._free) >= generation.places and self._pages(generation) <= self._cache.unclaimed

    def _require(self, generation: Generation) -> None:
        """CapacityError where slots or pages for an answer are not there."""
        if len(self._free) < generation.places:
            raise CapacityError("all slots are in use", code="slots-in-use")
        if self._pages(generation) > self._cache.unclaimed:
            raise CapacityError(f"{self._pages(generation)} pages of keys and values are needed, "
                                f"{self._cache.unclaimed} are free", hint="try again later", code="pages-in-use")

    def _pages(self, generation: Generation) -> int:
        """Pages of an answer at its longest, shared ones included."""
        texts = 1 if generation.search is None else generation.places
        return texts * pages_of(self._longest(generation)) + pages_of(self._longest_guide(generation))

    def _find(self, running: Running) -> None:
        """Begin with the pages of the prompt that are kept. At least its last token is read: its
        logits are what is asked for; all tokens are, where log-probabilities of the prompt are."""
        if self._earlier is None or running.generation.request.prompt_logprobs:
            return
        positions, running.restoring = self._earlier.begin(running.slot, running.tenant, running.todo[:-1])
        self._found(running, positions)

    def _found(self, running: Running, positions: int) -> None:
        """Note that the slot has so many more positions of the prompt."""
        running.position += positions
        running.cached += positions
        running.found += positions
        self._forward.boundary.forget(running.slot)
        self._forward.boundary.inherit(running.slot, running.position)
        del running.todo[:positions]

    def _restore(self) -> None:
        """Restore pages for the answers that wait for some, one each in turn. Where there is
        nothing else to do, wait for the next of them."""
        waiting = [running for running in self._running if running.restoring is not None]
        if not waiting:
            return
        own = Counter[str]()
        places = list[tuple[int, Running]]()
        for running in waiting:  # each tenant's first one comes before anybody's second
            places.append((own[running.tenant], running))
            own[running.tenant] += 1
        moving, left = [each for _, each in sorted(places, key=lambda place: place[0])][:RESTORING], BURST
        while moving and left > 0:
            left -= len(moving)
            moving = [each for each in moving if self._restore_page(each)]
        first = waiting[0].restoring
        if left > 0 and first is not None and len(waiting) == len(self._running):
            first.wait(_PATIENCE)

    def _restore_page(self, running: Running) -> bool:
        """Restore the next page of an answer; False where it has not come, or was the last."""
        wanted = running.restoring
        if self._earlier is None or wanted is None:
            return False
        opened = self._earlier.restore(running.slot, running.position, wanted)
        if opened:
            self._found(running, PAGE)
        if opened is False or wanted.done:
            wanted.drop()
            running.restoring = None
        return running.restoring is not None and opened is True

    def _keep(self, running: Running, *, ended: bool) -> None:
        """Keep the pages that an answer has filled, for its tenant."""
        if self._earlier is not None:
            positions = running.position if running.lanes is None else len(running.generation.prompt_ids)
            self._earlier.keep(running.slot, running.tenant, running.text, positions, ended=ended)

    @staticmethod
    def _longest_guide(generation: Generation) -> int:
        """Positions of a negative prompt and the answer after it at its longest."""
        return len(generation.negative_ids) + generation.left - 1 if generation.negative_ids else 0

    def _longest(self, generation: Generation) -> int:
        """Positions of an answer at its longest, guesses included. Its last token is never read."""
        return min(len(generation.prompt_ids) + max(generation.left, 1) - 1, self._cache.context)

    def fork(self, parent: Running, generation: Generation) -> Running:
        """Give another answer to the prompts of `parent`, which `forks`, slots of its own. It
        shares their full pages. CapacityError when there are no slots or pages."""
        self._require(generation)
        running = self._next(generation, self._free[-1], parent.tenant)
        running.cached = parent.cached
        self._share_pages(parent, running, self._longest(generation))
        if parent.guide is not None:
            running.guide = self._next_guide(generation, self._free[-2], parent.tenant)
            self._share_pages(parent.guide, running.guide, self._longest_guide(generation))
        self._running.append(running)
        del self._free[-generation.places:]
        return running

    def _share_pages(self, parent: Running | Guide, child: Running | Guide, longest: int) -> None:
        """Let an empty slot begin with the positions of another one, up to its own."""
        whole = longest == self._cache.context  # it may drop what it shares, and need pages of its own
        self._cache.claim(child.slot, longest, 0 if whole else child.position // PAGE)
        self._cache.fork(parent.slot, child.slot, child.position)
        self._forward.boundary.inherit(child.slot, child.position)

    def again(self, ended: Running, generation: Generation) -> Running:
        """Have another answer to the same prompts in the slots of one that has ended. A prompt that
        is no longer there is read again."""
        self._keep(ended, ended=True)
        running = self._next(generation, ended.slot, ended.tenant)
        if not ended.forks:
            running.todo, running.position = list(generation.prompt_ids), 0
        running.cached = ended.cached
        self._rewind(running)
        if ended.guide is not None:
            running.guide = self._next_guide(generation, ended.guide.slot, ended.tenant)
            self._rewind(running.guide)
        if self._drafter is not None:
            self._drafter.forget(ended.slot)
        self._running[self._running.index(ended)] = running
        return running

    def _rewind(self, following: Running | Guide) -> None:
        """Leave a slot to another answer, which has its prompt alone."""
        self._cache.rewind(following.slot, following.position)
        self._forward.boundary.forget(following.slot, following.position)

    def _next(self, generation: Generation, slot: int, tenant: str) -> Running:
        """An answer whose prompt is there, but for its last token: that one's logits it needs."""
        prompt = list(generation.prompt_ids)
        return Running(generation, slot, prompt[-1:], generation.kept, speculation=self._speculation(prompt),
                       tenant=tenant)

    @staticmethod
    def _next_guide(generation: Generation, slot: int, tenant: str) -> Guide:
        """The guide of such an answer."""
        *negative, last = generation.negative_ids
        return Guide(slot, [], last, tenant, len(negative))

    def _speculation(self, prompt: list[int]) -> Speculation | None:
        """The guesses of an answer; None where none are made, or memory is short."""
        if not self._speculate:
            return None
        try:
            return Speculation(prompt, None if self._drafter is None else self._drafter.cost)
        except MemoryError:
            self._guess_no_more()
            return None

    def remove(self, running: Running) -> None:
        """Take an answer out and wipe its keys and values, but for pages that others read or that
        are kept."""
        self._running.remove(running)
        if running.restoring is not None:
            running.restoring.drop()
        self._keep(running, ended=True)
        if running.guide is not None:
            self._give_back(running.guide.slot)
        for slot in [running.slot] if running.lanes is None else running.lanes.slots:
            self._give_back(slot)
        if self._drafter is not None:
            self._drafter.forget(running.slot)

    def _give_back(self, slot: int) -> None:
        """Give a slot back, and its pages."""
        self._cache.give_back(slot)
        self._forward.boundary.forget(slot)
        self._free.append(slot)

    def run(self) -> list[tuple[Running, Advance]]:
        """One pass. Advances of the answers that got tokens, in order; who is finished must be
        removed."""
        self._restore()
        pieces = self._plan()
        if not pieces:
            if self._running and all(each.restoring is None for each in self._running):
                raise EngineError("no answer in progress has a row in the next pass", code="engine-internal")
            return []
        rows = _Rows()
        for piece in pieces:
            ahead, guide = 1 + len(piece.guesses), piece.running.guide
            tokens = piece.part.todo[:piece.count] + piece.guesses
            if piece.lanes:
                for lane in piece.lanes:
                    rows.add(lane, [lane.token], 1)
                continue
            rows.add(piece.part, tokens, ahead if piece.complete else 0, piece.told)
            if piece.complete and guide is not None:
                rows.add(guide, [guide.next, *piece.guesses], ahead)
        start = time.monotonic()
        with self._masks_meanwhile(pieces):
            logits = self._forward.run(rows.tokens, rows.positions, rows.slots, rows.logits)
        self.passes += 1
        answering = sum(piece.running.places * (1 + len(piece.guesses)) for piece in pieces if piece.running.decoding)
        self._time.record(answering, len(rows.tokens) - answering, time.monotonic() - start)
        advances: list[tuple[Running, Advance]] = []
        row = 0
        for piece in pieces:
            told, first = piece.told, piece.part.position
            advances += [(piece.running, piece.running.generation.read(first + place, logits[row + place]))
                         for place in range(told)]
            row += told
            piece.part.position += piece.count
            del piece.part.todo[:piece.count]
            if piece.complete and piece.running.lanes is not None:
                texts = max(len(piece.lanes), 1)
                found = self._branch(piece.running, piece.running.lanes, logits[row:row + texts])
                advances.append((piece.running, found))
                row += texts
            elif piece.complete:
                if not piece.running.generation.tokens:
                    self._keep(piece.running, ended=False)
                advances += [(piece.running, each) for each in self._advance(piece, logits[row:])]
                row += piece.running.places * (1 + len(piece.guesses))
        return advances

    def _branch(self, running: Running, lanes: Lanes, logits: Logits) -> Advance:
        """The next step of a beam search, after the rows of all its live texts."""
        if not lanes.live:
            self._keep(running, ended=False)
        advance, moves = running.generation.branch(logits)
        running.timings.tick()
        if advance.finish_reason is None and running.generation.search is not None:
            lanes.follow(moves, running.position, self._cache, self._forward.boundary)
            lanes.go_on([(each.place, each.tokens[-1]) for each in running.generation.search.live], running.position)
            running.todo.append(lanes.live[0].token)
        return advance

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
        running, guide, advances = piece.running, piece.running.guide, list[Advance]()
        for row, guess in enumerate([*piece.guesses, None]):
            beside = None if guide is None else logits[1 + len(piece.guesses) + row]
            advance = running.generation.advance(logits[row], beside)
            advances.append(advance)
            running.timings.tick()
            if advance.finish_reason is not None or advance.token is None:
                break
            if advance.token != guess:
                running.todo.append(advance.token)
                break
            running.position += 1
        self._forward.boundary.forget(running.slot, running.position)
        if guide is not None:
            guide.position += len(advances)
            self._forward.boundary.forget(guide.slot, guide.position)
            guide.next = running.todo[-1] if running.todo else guide.next
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
        for running in self._running:
            if running.position + len(running.todo) > limits.context:
                self._shift(running)
        decoding = _fitting([r for r in self._running if r.decoding], min(limits.wanted, limits.rows))
        alone = 0 < len(decoding) <= SPECULATING and len(decoding) == len(self._running)
        guesses = self._guesses(decoding) if alone and self._speculate else [[] for _ in decoding]
        pieces = [_Piece(running, running, 1, guess, complete=True)
                  for running, guess in zip(decoding, guesses, strict=True)]
        used = _places(decoding)
        reading = _fitting([r for r in self._running if r.todo and not r.decoding and r.restoring is None],
                           limits.wanted - used)
        parts = [running.reading for running in reading]
        short = 0 < sum(is_short(each) for each in parts) < len(parts)
        beside = _places(reading) - len(reading)  # rows of negative prompts
        room = max(0, min(self._time.prompt_rows(bool(pieces), short), limits.rows - used - beside))
        passes = self._share.passes([each.tenant for each in decoding], [each.tenant for each in parts])
        room = min(room, self._time.gap_rows(used, passes)) if pieces else room
        shares = self._share.rows(parts, room, self._time.long_rows(used, passes) if pieces else None)
        left = limits.wanted - used - _places(reading)  # more rows that may have logits
        for running, part, share in zip(reading, parts, shares, strict=True):
            piece = _Piece(running, part, share, [], complete=part is running and share == len(part.todo))
            if piece.told > left + 1 - piece.complete:
                piece = _Piece(running, part, left + 1, [], complete=False)
            left -= max(piece.told + piece.complete - 1, 0)
            pieces += [piece] if piece.count else []
        return pieces

    def _shift(self, running: Running) -> None:
        """Drop the older half of a full context, but for its first tokens, and read again what
        stays, from position 0 on: the same bits as a prompt of that text has."""
        keep = running.generation.request.shift_keep or 0
        running.dropped += (self._cache.context - keep) // 2
        self._cache.restart(running.slot)
        self._forward.boundary.forget(running.slot)
        running.todo, running.position, running.cached = running.text, 0, 0

    def _guesses(self, decoding: list[Running]) -> list[list[int]]:
        """Guesses for answers that decode, no more than tokens each may still have after the next,
        or rows that fit."""
        limits = self._forward.boundary.limits
        places = _places(decoding)
        most = min(limits.rows, limits.wanted) // places - 1
        found: list[list[int]] = []
        asks: list[tuple[int, Speculation, Ask]] = []
        for index, running in enumerate(decoding):
            speculation = running.speculation
            room = max(0, min(running.generation.left - 1, most, limits.context - running.position - 1))
            found.append([] if speculation is None else self._own(running, speculation, room, places))
            if speculation is not None and not found[index]:
                count = speculation.draft_count(room, places)
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


def _places(answers: Sequence[Running]) -> int:
    """Rows of a pass that gives each of some answers a token."""
    return sum(each.places for each in answers)


def _fitting(answers: Sequence[Running], rows: int) -> list[Running]:
    """The first of some answers, as many as find room in rows."""
    found = list[Running]()
    for each in answers:
        rows -= each.places
        if rows < 0:
            break
        found.append(each)
    return found
