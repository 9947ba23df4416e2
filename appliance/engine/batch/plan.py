"""The plan of a pass: one token of each answer that decodes, then shares of prompts.

`prompt_share` says whose shares, `pass_time` how many rows, `guesses` which tokens are tried beside
the next one. A row's logits do not depend on what else is in its pass, so neither does an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from appliance.engine.batch.guesses import Guesses
from appliance.engine.batch.pass_time import PROMPT_ROWS, PassTime
from appliance.engine.batch.prompt_share import PromptShare, is_long, is_short
from appliance.engine.batch.sequence import Phase, Sequence
from appliance.engine.batch.speculate import DENSE, PassCost
from appliance.engine.batch.strand import Strand
from appliance.engine.forward.forward import Logits
from appliance.kernels.runtime.boundary import BatchLimits

SPECULATING = 4  # answers at most while guesses are made: more fill a pass without them


@dataclass(frozen=True, slots=True)
class PlanItem:
    """The part of one answer in a pass: `count` of the tokens of `strand` to do, then guesses;
    `complete`: then a token is chosen."""

    sequence: Sequence
    strand: Strand
    count: int
    guesses: list[int] = field(default_factory=list)
    complete: bool = True
    prompt_rows: int = 0  # rows, the first ones, whose logits tell of the prompt's next token
    choice_rows: int = 0  # rows whose logits a token is chosen by
    row: int = 0  # its first row in the pass


@dataclass(slots=True)
class Plan:
    """The items of a pass, and its rows: the arguments of `Forward.run`."""

    items: list[PlanItem] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    answering: int = 0  # rows of answers that decode, guesses included

    def add(self, sequence: Sequence, part: Strand, count: int, guesses: list[int], prompt_rows: int, *,
            complete: bool) -> None:
        """Add a part of an answer."""
        first, ahead, before = len(self.logit_rows) + prompt_rows, 1 + len(guesses), len(self.tokens)
        if sequence.lanes is not None and sequence.lanes.live:  # the rows of a beam search after its first step
            for lane in sequence.lanes.live:
                self.add_rows(lane.slot, lane.position, lane.todo, 1)
        else:
            self.add_rows(part.slot, part.position, part.todo[:count] + guesses, ahead if complete else 0, prompt_rows)
            if complete and sequence.guide is not None:
                self.add_rows(sequence.guide.slot, sequence.guide.position, [sequence.guide.next, *guesses], ahead)
        if sequence.phase is Phase.DECODING:
            self.answering += len(self.tokens) - before
        self.items.append(PlanItem(sequence, part, count, guesses, complete, prompt_rows, len(self.logit_rows) - first,
                                   before))

    def add_rows(self, slot: int, position: int, tokens: list[int], logits: int, prompt_rows: int = 0) -> None:
        """Add rows of a slot; the first `prompt_rows` and the last `logits` of them have logits."""
        self.logit_rows += range(len(self.tokens), len(self.tokens) + prompt_rows)
        self.tokens += tokens
        self.positions += range(position, position + len(tokens))
        self.slots += [slot] * len(tokens)
        self.logit_rows += range(len(self.tokens) - logits, len(self.tokens))

    def split(self, logits: Logits) -> Iterator[tuple[PlanItem, Logits, Logits]]:
        """Each item with the logits that tell of its prompt, and those to choose by."""
        row = 0
        for item in self.items:
            middle, end = row + item.prompt_rows, row + item.prompt_rows + item.choice_rows
            yield item, logits[row:middle], logits[middle:end]
            row = end


class Planner:
    """Plans passes, by how long those before took and what each tenant had of them."""

    def __init__(self, limits: BatchLimits, guesses: Guesses | None, *, streamed: bool,
                 pass_cost: PassCost = DENSE) -> None:
        """`guesses`: None where none are made; `streamed`: each pass reads weights anew."""
        self._limits, self._guesses, self._fixed = limits, guesses, False
        self._time, self._share = PassTime(streamed, pass_cost), PromptShare()

    def guess_no_more(self) -> None:
        """Plan passes without guesses from now on."""
        self._guesses = None

    def share_by(self, weights: Mapping[str, int]) -> None:
        """Tenants share the rows of prompts by these weights, from now on."""
        self._share = PromptShare(weights)

    def fix(self, limits: BatchLimits) -> None:
        """Plan passes of one size from now on, which answers fill up to `limits`."""
        self._limits, self._fixed = limits, True

    def reads(self, sequences: list[Sequence], tenant: str, prompts: int) -> bool:
        """Whether so many long prompts of a tenant are being read, and fill the next pass: one more
        would only wait."""
        own = [each for each in sequences if each.tenant == tenant and each.phase is not Phase.DECODING]
        full = sum(len(each.todo) for each in own) >= min(PROMPT_ROWS, self._limits.rows)
        return full and sum(is_long(each) and not is_short(each) for each in own) >= prompts

    def plan(self, sequences: list[Sequence]) -> Plan:
        """The next pass."""
        plan, limits = Plan(), self._limits
        decoding = _fitting(sequences, Phase.DECODING, min(limits.wanted, limits.rows))
        alone = 0 < len(decoding) <= SPECULATING and len(decoding) == len(sequences)
        guesses = self._guesses.make(decoding) if alone and self._guesses is not None else [[] for _ in decoding]
        for each, tokens in zip(decoding, guesses, strict=True):
            plan.add(each, each, len(each.todo), tokens, 0, complete=True)
        left = limits.wanted - _places(decoding)
        self._add_prompts(plan, decoding, _fitting(sequences, Phase.READING, left))
        return plan

    def record(self, plan: Plan, seconds: float) -> None:
        """Learn how long a pass took."""
        if self._fixed:
            return
        self._time.record(plan.answering, len(plan.tokens) - plan.answering, seconds)

    def _add_prompts(self, plan: Plan, decoding: list[Sequence], reading: list[Sequence]) -> None:
        """Add shares of prompts beside answers that decode."""
        limits, parts = self._limits, [each.reading for each in reading]
        beside = _places(reading) - len(reading)  # rows of negative prompts
        room = max(0, limits.rows - _places(decoding) - beside)
        shares = self._share.rows(parts, *((room, None) if self._fixed else self._room(decoding, parts, room)))
        logit_room = limits.wanted - _places(decoding) - _places(reading)  # more rows that may have logits
        for each, part, count in zip(reading, parts, map(Strand.stop_after, parts, shares), strict=True):
            complete = part is each and count == len(part.todo)
            tells = part is each and each.generation.request.prompt_logprobs
            if tells and count > logit_room + 1:
                count, complete = logit_room + 1, False
            prompt_rows = count - complete if tells else 0
            logit_room -= max(prompt_rows + complete - 1, 0)
            if count:
                plan.add(each, part, count, [], prompt_rows, complete=complete)

    def _room(self, decoding: list[Sequence], parts: list[Strand], most: int) -> tuple[int, int | None]:
        """Rows for prompts beside answers that decode, at most `most`; and for long ones among
        them."""
        short = 0 < sum(map(is_short, parts)) < len(parts)
        room = min(self._time.prompt_rows(bool(decoding), short), most)
        if not decoding:
            return room, None
        passes = self._share.passes([each.tenant for each in decoding], [each.tenant for each in parts])
        rows = _places(decoding)
        return min(room, self._time.gap_rows(rows, passes)), self._time.long_rows(rows, passes)


def _places(answers: list[Sequence]) -> int:
    """Rows with logits of a pass that gives each of some answers a token."""
    return sum(each.places for each in answers)


def _fitting(answers: list[Sequence], phase: Phase, places: int) -> list[Sequence]:
    """The first answers of a state, as many as find room in rows with logits."""
    first = list[Sequence]()
    for each in answers:
        if each.phase is phase:
            places -= each.places
            if places < 0:
                break
            first.append(each)
    return first
