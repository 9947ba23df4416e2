"""Continuous batching: every pass decodes one token of each running answer and reads pieces of
prompts.

    plan      which rows (`plan`)
    run       the forward pass, and masks of constraints meanwhile
    settle    logits become tokens and events, and each answer goes on

Not safe to use from two threads at once.
"""

from __future__ import annotations

import time

from appliance.engine.batch.fixed_pass import FixedPass
from appliance.engine.batch.guesses import Guesses, Helper
from appliance.engine.batch.kept_texts import KeptTexts
from appliance.engine.batch.plan import Plan, PlanItem, Planner
from appliance.engine.batch.sequence import Guide, Sequence
from appliance.engine.batch.speculate import PassCost
from appliance.engine.batch.strand import Lanes, Strand
from appliance.engine.decode.generation import Advance, Generation
from appliance.engine.decode.masks import Masks
from appliance.engine.forward.forward import Forward, Logits
from appliance.engine.forward.seats import Seats
from appliance.errors import EngineError

Advances = list[tuple[Sequence, Advance]]


class Batcher:
    """The running answers of one engine."""

    def __init__(self, forward: Forward, seats: Seats, *, speculate: bool = True,
                 helper: Helper | None = None) -> None:
        self.forward, self.seats = forward, seats
        cost = PassCost(*forward.expert_reads, forward.state_cost)
        self._guesses = Guesses(seats.limits, helper, cost) if speculate else None
        self.planner = Planner(seats.limits, self._guesses, streamed=forward.streamed, pass_cost=cost)
        self.texts = KeptTexts(seats)
        self.running: list[Sequence] = []
        """Answers in progress, oldest first."""
        self.passes = 0  # since the start
        self._masks = Masks()
        self._fixed: FixedPass | None = None

    def fix(self, fixed: FixedPass) -> None:
        """Have each pass of one size from now on, also where no answer is in progress."""
        self._fixed, limits = fixed, fixed.within(self.seats.limits)
        self.planner.fix(limits)
        if self.seats.limits.stateful:  # rows of a log take time beside those of a pass
            self._guesses = None
            self.planner.guess_no_more()
        elif self._guesses is not None:
            self._guesses.fix(limits)

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return self.seats.free

    def fits(self, generation: Generation) -> bool:
        """Whether slots and pages for an answer are free."""
        return self.seats.fit(self._longest(generation))

    def add(self, generation: Generation, tenant: str = "") -> Sequence:
        """Give a tenant's answer a slot, or two, and claim the pages of its longest course;
        CapacityError when there are none, or not as many."""
        longest = self._longest(generation)
        with self.seats.claim(longest) as slots:
            added = Sequence(slots[0], list(generation.prompt_ids), tenant=tenant, generation=generation,
                             stateful=self.seats.limits.stateful,
                             noted=self.seats.limits.stateful and self.texts.keeps)
            if generation.search is not None:
                added.lanes = Lanes(slots, longest[0])
            if generation.negative_ids:
                *negative, last = generation.negative_ids
                added.guide = Guide(slots[1], negative, tenant=tenant, next=last)
            self.texts.find(added)
            self._begin(added)
        self.running.append(added)
        return added

    def fork(self, parent: Sequence, generation: Generation) -> Sequence:
        """Give another answer to the prompts of `parent`, which `forks`, slots of its own. It
        shares their full pages. CapacityError when there are no slots or pages."""
        longest = self._longest(generation)
        with self.seats.claim(longest, promise=False) as slots:
            forked = self._next(parent, generation, slots)
            for old, new, positions in zip(_strands(parent), _strands(forked), longest, strict=True):
                whole = positions == self.seats.context  # it may drop what it shares, and need pages of its own
                self.seats.fork(old.slot, new.slot, new.position, positions, shared=0 if whole else None)
            self._begin(forked)
        self.running.append(forked)
        return forked

    def again(self, ended: Sequence, generation: Generation) -> Sequence:
        """Have another answer to the same prompts in the slots of an ended one. A prompt that was
        dropped, or whose state is gone, is read again."""
        self.texts.keep(ended, ended=True)
        following = self._next(ended, generation, [each.slot for each in _strands(ended)])
        if not ended.forks:
            following.todo, following.position, following.cached = list(generation.prompt_ids), 0, 0
            if following.guide is not None:
                following.guide.todo, following.guide.position = list(generation.negative_ids[:-1]), 0
        for each in _strands(following):
            self.seats.rewind(each.slot, each.position)
        if following.stateful:
            self.texts.find(following)
        self._begin(following)
        self.running[self.running.index(ended)] = following
        return following

    def remove(self, sequence: Sequence) -> None:
        """Take an answer out and wipe its keys and values, but for pages that others read or that
        are kept."""
        self.running.remove(sequence)
        if sequence.restoring is not None:
            sequence.restoring.drop()
        self.texts.keep(sequence, ended=True)
        for slot in sequence.slots:
            self.seats.give_back(slot)
        if self._guesses is not None:
            self._guesses.forget(sequence.slot)

    def plan(self) -> Plan:
        """The next pass; no answer may come or go before it is run."""
        self.texts.restore(self.running, patient=self._fixed is None)
        self._make_room()
        plan = self.planner.plan(self.running)
        return plan if self._fixed is None else self._fixed.fill(plan)

    def run(self, plan: Plan | None = None) -> Advances:
        """One pass. Advances of the answers that got tokens, in order; a finished answer must
        be removed."""
        plan = self.plan() if plan is None else plan
        if plan.tokens:
            return self._settle(plan, self._execute(plan))
        if self.running and all(each.restoring is None for each in self.running):
            raise EngineError("no answer in progress has a row in the next pass", code="engine-internal")
        return []

    def time(self, plan: Plan, drawn: list[Generation]) -> float:
        """Run a pass, draw a token for each of some answers, and return the seconds of both."""
        start = time.monotonic()
        logits = self.forward.run(plan.tokens, plan.positions, plan.slots, plan.logit_rows)
        for each, row in zip(drawn, logits, strict=False):
            each.advance(row)
        return time.monotonic() - start

    def close(self) -> None:
        """End the thread that computes masks, if there is one."""
        self._masks.close()

    # --- what an answer has -----------------------------------------------------------------------
    def _longest(self, generation: Generation) -> list[int]:
        """Positions of each text of an answer at its longest, guesses included. The last token is
        never read."""
        own = min(len(generation.prompt_ids) + max(generation.left, 1) - 1, self.seats.context)
        if generation.negative_ids:
            return [own, len(generation.negative_ids) + generation.left - 1]
        return [own] * generation.places

    @staticmethod
    def _next(before: Sequence, generation: Generation, slots: list[int]) -> Sequence:
        """An answer whose prompts are there, but for the last token: that one's logits it needs."""
        guide = None
        if before.guide is not None:
            *negative, last = generation.negative_ids
            guide = Guide(slots[1], [], len(negative), before.tenant, next=last)
        return Sequence(slots[0], list(generation.prompt_ids)[-1:], generation.shared_positions, before.tenant,
                        before.cached, generation=generation, guide=guide, stateful=before.stateful,
                        noted=before.noted)

    def _begin(self, sequence: Sequence) -> None:
        """Make guesses for an answer, where there are any. The state of a negative prompt has no
        log."""
        if self._guesses is not None and sequence.lanes is None and not (sequence.stateful and sequence.guide):
            self._guesses.begin(sequence)

    # --- a pass -----------------------------------------------------------------------------------
    def _make_room(self) -> None:
        """Drop a part of each text that its context has no more room for."""
        for each in self.running:
            if each.position + len(each.todo) > self.seats.context:
                each.shift(self.seats.context)
                self.seats.restart(each.slot)

    def _execute(self, plan: Plan) -> Logits:
        """The logits of a pass."""
        start = time.monotonic()
        if self._guesses is not None:
            self._guesses.begin_pass()
        for item in plan.items:
            if item.sequence.stateful and item.guesses:
                self.seats.expect_guesses(item.sequence.slot, len(item.guesses))
        with self._masks.meanwhile([(constrained, item.guesses) for item in plan.items if item.complete
                                    and (constrained := item.sequence.generation.constraint) is not None]):
            logits = self.forward.run(plan.tokens, plan.positions, plan.slots, plan.logit_rows)
        self.passes += 1
        self.planner.record(plan, time.monotonic() - start)
        return logits

    def _settle(self, plan: Plan, logits: Logits) -> Advances:
        """Go on by the logits of a pass."""
        advances: Advances = []
        for item, prompt_logits, choice_logits in plan.split(logits):
            one, first = item.sequence, item.strand.position
            known = item.strand.todo[1:item.count]
            advances += [(one, one.generation.read(first + place, row)) for place, row in enumerate(prompt_logits)]
            item.strand.position += item.count
            del item.strand.todo[:item.count]
            if one.stateful:
                self.texts.pass_by(one)
            if item.complete and one.lanes is not None:
                advances.append((one, self._branch(one, one.lanes, choice_logits)))
            elif item.complete:
                if not one.generation.tokens:
                    self.texts.keep(one, ended=False)
                steps = self._advance(item, choice_logits)
                advances += [(one, each) for each in steps]
                if self._guesses is not None:
                    known += [each.token for each in steps if each.token is not None]
                    self._guesses.note(one, item.row, known)
        return advances

    def _branch(self, sequence: Sequence, lanes: Lanes, logits: Logits) -> Advance:
        """The next step of a beam search, after the rows of all its live texts."""
        if not lanes.live:
            self.texts.keep(sequence, ended=False)
        advance, moves = sequence.generation.branch(logits)
        sequence.timings.tick()
        if advance.finish_reason is None and sequence.generation.search is not None:
            live = sequence.generation.search.live
            lanes.follow(moves, sequence.position, self.seats)
            lanes.go_on([(each.place, each.tokens[-1]) for each in live], sequence.position)
            sequence.todo += lanes.live[0].todo
        return advance

    def _advance(self, item: PlanItem, logits: Logits) -> list[Advance]:
        """Choose the next token, and go on as long as it was guessed; forget the guesses that were
        wrong."""
        one, guide, advances = item.sequence, item.sequence.guide, list[Advance]()
        read = one.position
        for row, guess in enumerate([*item.guesses, None]):
            beside = None if guide is None else logits[1 + len(item.guesses) + row]
            advance = one.generation.advance(logits[row], beside)
            advances.append(advance)
            one.timings.tick()
            if advance.finish_reason is not None or advance.token is None:
                break
            if advance.token != guess:
                one.todo.append(advance.token)
                break
            one.position += 1
        if one.stateful and item.guesses:
            self.seats.commit(one.slot, one.position, one.position - read)
        else:
            self.seats.cut(one.slot, one.position)
        if guide is not None:
            guide.position += len(advances)
            self.seats.cut(guide.slot, guide.position)
            guide.next = one.todo[-1] if one.todo else guide.next
        if self._guesses is not None:
            self._guesses.settle(one, [each.token for each in advances if each.token is not None])
        return advances


def _strands(sequence: Sequence) -> list[Strand]:
    """The texts of an answer: of its own prompt, and of a negative one."""
    return [sequence] if sequence.guide is None else [sequence, sequence.guide]
