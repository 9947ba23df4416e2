"""One choice of an answer: what is asked, and how logits become events until it ends.

This module knows nothing of slots, batches or threads; `batcher` feeds it logits, one row for each
token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from appliance.constraint.walk import Constraint
from appliance.engine.decode import sampler
from appliance.engine.decode.beam_search import Beam, BeamSearch, Branch, Moves
from appliance.engine.decode.chain.candidates import Logits
from appliance.engine.decode.chain.ending import FREE, Ending, both
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.events import (
    CANCELLED,
    FAILED,
    LENGTH,
    STOP,
    End,
    Event,
    Logprobs,
    PromptLogprobs,
    Reason,
    Text,
)
from appliance.engine.decode.healing import Healing, Lexicon
from appliance.engine.decode.masks import AnswerConstraint
from appliance.engine.decode.sampler import Sampler, Sampling, log_probabilities
from appliance.errors import CapacityError, EngineError
from appliance.oblivious import AnswerTexts, SweptStops
from appliance.text.stops import StopFilter
from appliance.text.tokenizer.stream import TextStream


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt as token ids, and the bounds of its answer. An answer of no tokens ends once its
    prompt is read."""

    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    ignore_end: bool = False  # go on after a token that ends a generation (for measurements)
    choice: int = 0  # the index of this answer among those of one request
    constraint: Constraint | None = None  # what the answer may be; it then ends where its constraint does
    visible: frozenset[int] = frozenset()  # control tokens whose text is part of the answer's
    prompt_logprobs: bool = False  # tell log-probabilities of the prompt, with as many alternatives as of the answer
    negative_ids: Sequence[int] = ()  # the negative prompt, where the sampling is guided
    shift_keep: int | None = None  # first tokens that stay when a full context drops its older half; None: it ends
    ending: Ending = FREE  # when a token may end the answer
    beam: Beam | None = None  # search for so many choices, from `choice` on, in place of sampling one
    texts: AnswerTexts | None = None  # keeps the text, whose stand-ins leave; None: the text leaves

    def check(self, vocabulary: int, context: int) -> None:
        """Refuse what cannot be run: CapacityError for a prompt that leaves no room in the context,
        EngineError for other bad values."""
        if self.sampling.guided and not self.negative_ids:
            raise EngineError("guidance_scale needs a negative prompt of at least one token", code="prompt-empty")
        for name, tokens in (("prompt", self.prompt_ids), ("negative prompt", self.negative_ids)):
            if name == "prompt" or self.sampling.guided:
                _check_prompt(name, tokens, vocabulary, context)
        if self.max_tokens < 0:
            raise EngineError(f"max_tokens is {self.max_tokens}; allowed: 0 or more")
        count = len(self.prompt_ids)
        if self.shift_keep is not None and not 0 <= self.shift_keep < min(context // 2, count + 1):
            raise EngineError(f"shift_keep is {self.shift_keep} of {count} tokens and a context of {context}")
        for one, other in APART:
            if FEATURES[one](self) and FEATURES[other](self):
                raise EngineError(f"{one} goes with no {other}")
        if self.beam is not None and (self.beam.width < 1 or self.max_tokens < 1):
            raise EngineError(f"beam search of width {self.beam.width} and {self.max_tokens} tokens; allowed: 1 or "
                              "more")


def internal(error: Exception) -> EngineError:
    """The message about an error that nobody foresaw."""
    return EngineError(f"the engine failed: {type(error).__name__}", code="engine-internal")


def _check_prompt(name: str, tokens: Sequence[int], vocabulary: int, context: int) -> None:
    if not tokens:
        raise EngineError(f"the {name} has no tokens", hint="send at least one token", code="prompt-empty")
    if len(tokens) >= context:
        raise CapacityError(f"the {name} has {len(tokens)} tokens; the context has {context}, one of them for "
                            "the answer", hint=f"send a shorter {name}", code="prompt-too-long")
    if not all(0 <= token < vocabulary for token in tokens):
        raise EngineError(f"a token of the {name} is outside 0..{vocabulary - 1}")


def check_sweeping(request: GenerationRequest) -> None:
    """EngineError for a feature that indexes by tokens, where none may."""
    sampler.check_sweeping(request.sampling)
    if found := [name for name in ("beam search", "token_healing") if FEATURES[name](request)]:
        raise EngineError(f'privacy.memory_access = "oblivious" goes with no {", ".join(found)}', code="memory-access",
                          hint="leave it out")


FEATURES: Mapping[str, Callable[[GenerationRequest], bool]] = MappingProxyType({
    "beam search": lambda request: request.beam is not None,
    "constraint": lambda request: request.constraint is not None,
    "stop strings": lambda request: bool(request.stop),
    "log-probabilities": lambda request: request.prompt_logprobs or request.sampling.top_logprobs is not None,
    "log-probabilities of the prompt": lambda request: request.prompt_logprobs,
    "guidance_scale": lambda request: request.sampling.guided,
    "shift_keep": lambda request: request.shift_keep is not None,
    "token_healing": lambda request: bool(request.sampling.token_healing),
    "rule for its end": lambda request: request.ending != FREE,
})
"""Whether a request asks for a feature."""

APART = (
    # It looks at the model's own distribution, and reports nothing before its end.
    *(("beam search", other) for other in ("constraint", "stop strings", "log-probabilities", "guidance_scale",
                                           "shift_keep", "token_healing", "rule for its end")),
    ("constraint", "rule for its end"),  # the constraint says where an answer ends
    ("token_healing", "constraint"),
    ("token_healing", "log-probabilities of the prompt"),
    ("guidance_scale", "shift_keep"),
)
"""Features that do not go together."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The effect of one token on an answer. The last advance's events end with `End`.

    `token` was chosen; where it ends the generation, the answer does not have it. It is None when
    the answer was cancelled, or failed by `error`, before a choice.
    """

    token: int | None
    events: tuple[Event, ...]
    error: EngineError | None = None
    mask: bytes | None = None  # of tokens that were allowed, see `constraint.walk`; None: all

    @property
    def text(self) -> str:
        """The characters of all its events."""
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def finish_reason(self) -> Reason | None:
        """Why the answer ended; None where it goes on."""
        last = self.events[-1]
        return last.reason if isinstance(last, End) else None


class Generation:
    """The state of one answer. Feed it the logits after the prompt, then after each token, until
    `finished`."""

    def __init__(self, request: GenerationRequest, tokenizer: Lexicon, vocabulary: int, context: int,
                 scratch: Scratch) -> None:
        """`vocabulary`: tokens that there are. A model may have more rows, to fill its matrices up:
        they are never chosen. `scratch` for as many logits: the engine's. Errors as of
        `check`."""
        request.check(vocabulary, context)
        if scratch.sweep is not None:
            check_sweeping(request)
        self.request = request
        self._healing = Healing(request.prompt_ids, request.sampling.token_healing, tokenizer)
        self.prompt_ids = self._healing.prompt  # that the model reads
        self._vocabulary, self._scratch, self._tokenizer = vocabulary, scratch, tokenizer
        self.tokens: list[int] = []  # of the answer, without a token that ended it
        self.finish_reason: Reason | None = None
        room = context - max(len(request.prompt_ids), len(self.negative_ids))
        self.left = request.max_tokens if request.shift_keep is not None else min(request.max_tokens, room)
        constraint = request.constraint
        self.constraint = None if constraint is None else AnswerConstraint(constraint.begin())
        ignoring = request.ignore_end and constraint is None
        self._ends = frozenset() if ignoring else request.ending.ends(tokenizer.eot_ids)
        self._sampler = Sampler(request.sampling, self.prompt_ids, vocabulary, scratch, tokenizer.suppressed)
        self._stream = TextStream(tokenizer, request.visible)
        sweep = scratch.sweep
        self._swept = None if request.texts is None else request.texts.begin(request.stop, request.visible)
        self._plain_stops = StopFilter(request.stop) if sweep is None else SweptStops(request.stop, sweep.kernels)
        self._stops = self._swept or self._plain_stops
        beam, count = request.beam, len(request.prompt_ids)
        self.search = None if beam is None else BeamSearch(beam, count, max(self.left, 1), self._ends)

    @property
    def negative_ids(self) -> Sequence[int]:
        """The negative prompt, if logits after it are needed: empty where they are not."""
        return self.request.negative_ids if self.request.sampling.guided else ()

    @property
    def places(self) -> int:
        """Sequences that it needs: with a negative prompt two, and the width of a beam search."""
        if self.request.beam is not None:
            return self.request.beam.width
        return 2 if self.negative_ids else 1

    def require(self, places: int) -> None:
        """CapacityError where it needs more than so many."""
        if self.places > places:
            name = "guidance_scale" if self.request.beam is None else "beam search"
            raise CapacityError(f"{name} takes the places of {self.places} answers; there is {places}",
                                hint="leave it out, or allow more answers at the same time", code="guidance-places")

    @property
    def finished(self) -> bool:
        """Whether no more logits are needed."""
        return self.finish_reason is not None

    @property
    def shared_positions(self) -> int:
        """Positions of the prompt that other answers to it may have, too: its last token is read
        for each."""
        return len(self.prompt_ids) - 1

    def read(self, place: int, logits: Logits) -> Advance:
        """Tell of the prompt's token after `place`, whose logits these are."""
        token, top = self.request.prompt_ids[place + 1], self.request.sampling.top_logprobs or 0
        logprob, best = log_probabilities(logits[:self._vocabulary], token, top, self._scratch)
        return Advance(None, (PromptLogprobs.of(self.request.choice, ((token, logprob), *best)),))

    def advance(self, logits: Logits, negative: Logits | None = None) -> Advance:
        """Take the next token, by the logits of the answer and of a `negative` prompt. Where there
        is none this answer fails, and no other with it."""
        try:
            return self._advance(logits, negative)
        except EngineError as error:
            return Advance(None, self._end(FAILED, ""), error)
        except (ArithmeticError, LookupError, ValueError) as error:  # a defect, which other answers do not share
            return Advance(None, self._end(FAILED, ""), internal(error))

    def _advance(self, logits: Logits, negative: Logits | None) -> Advance:
        """Choose the next token from its logits: those of the vocabulary, and of rows without a
        token after them."""
        if self.left <= 0:
            return Advance(None, self._end(LENGTH, ""))
        mask = self._mask() if self.constraint is None else self.constraint.mask()
        choice = self._sampler.choose(logits[:self._vocabulary], mask,
                                      None if negative is None else negative[:self._vocabulary])
        token = choice.token
        if token in self._ends:
            if self.constraint is not None:
                self.constraint.end(token)
            return Advance(token, self._end(STOP, self._rest()), mask=mask)
        complete = self.constraint is not None and self.constraint.accept(token)
        self._sampler.accept(token)
        self._healing.accept(token)
        self.tokens.append(token)
        self.left -= 1
        text = self._text_of(token)
        reason = STOP if self._stops.stopped or complete else LENGTH if self.left == 0 else None
        if reason is not None and not self._stops.stopped:
            text += self._rest()
        events: tuple[Event, ...] = (Text(self.request.choice, text, 1),)
        if choice.logprob is not None:
            events += (Logprobs.of(self.request.choice, ((token, choice.logprob), *choice.top)),)
        return Advance(token, events if reason is None else events + self._end(reason, ""), mask=mask)

    def _text_of(self, token: int) -> str:
        """The text that may leave with a token."""
        searched = len(self.tokens) > self.request.ending.least
        if self._swept is not None:
            return self._swept.push(token, searched=searched)
        text = self._healing.new_characters(self._stream.push(token))
        return self._plain_stops.push(text) if searched else text

    def _mask(self) -> bytes | None:
        """The tokens that may come next where no constraint says so; None: all."""
        ending = self.request.ending.mask(len(self.tokens), self._tokenizer.eot_ids, self._vocabulary)
        return both(self._healing.mask(), ending)

    def branch(self, logits: Logits) -> tuple[Advance, Moves]:
        """Take the next step of a beam search, by the logits after each live text: a row
        for each. Its first events have no text; the last ones have all of it. Where there is no
        next step this search fails, and no other answer with it."""
        try:
            return self._branch(logits)
        except EngineError as error:
            return Advance(None, self._ends_of(FAILED), error), Moves((), ())
        except (ArithmeticError, LookupError, ValueError) as error:  # a defect, which other answers do not share
            return Advance(None, self._ends_of(FAILED), internal(error)), Moves((), ())

    def _branch(self, logits: Logits) -> tuple[Advance, Moves]:
        search, beam = self.search, self.request.beam
        if search is None or beam is None:
            raise EngineError("an answer without beam search")
        best = []
        for each in logits:
            row = each[:self._vocabulary]
            if not np.isfinite(row.max()):
                raise EngineError("the model produced logits that are not numbers",
                                  hint="the model file is damaged, or its weights overflow in this format")
            if suppressed := self._tokenizer.suppressed:
                row = row.copy()
                row[list(suppressed)] = -np.inf
            best.append(log_probabilities(row, 0, beam.candidates, self._scratch)[1])
        moves = search.step(best)
        self.left -= 1
        if not search.over:
            return Advance(None, (Text(self.request.choice, "", 0),)), moves
        results = [*search.results(), *[Branch()] * beam.width][:beam.width]
        self.finish_reason = LENGTH
        events = [event for number, each in enumerate(results) for event in self._result(number, each)]
        return Advance(None, tuple(events)), moves

    def _result(self, number: int, branch: Branch) -> tuple[Event, ...]:
        """The events of one result of a beam search."""
        stream, choice = TextStream(self._tokenizer, self.request.visible), self.request.choice + number
        text = "".join(map(stream.push, branch.tokens))
        stream.finish()
        return Text(choice, text, len(branch.tokens)), End(choice, STOP if branch.ended else LENGTH)

    def _ends_of(self, reason: Reason) -> tuple[Event, ...]:
        """The ends of all choices of a beam search."""
        self.finish_reason = reason
        return tuple(End(self.request.choice + number, reason) for number in range(self.places))

    def cancel(self) -> Advance:
        """End the answer here."""
        return Advance(None, self._end(CANCELLED, self._rest()) if self.search is None else self._ends_of(CANCELLED))

    def _end(self, reason: Reason, rest: str) -> tuple[Event, ...]:
        """The last events, with text that came with no token."""
        self.finish_reason = reason
        end = End(self.request.choice, reason, self._stops.found)
        return (Text(self.request.choice, rest, 0), end) if rest else (end,)

    def _rest(self) -> str:
        """Release what a possible stop string held back. An incomplete character is left out."""
        self._stream.finish()
        return self._stops.flush()
