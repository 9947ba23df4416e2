"""One choice of an answer: what is asked, and how logits become events until it ends.

This module knows nothing of slots, batches or threads; `batcher` feeds it logits, one row for each
token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from appliance.engine.constraint.walk import Constraint
from appliance.engine.decode.chain.candidates import Logits
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.constrained import Constrained
from appliance.engine.decode.events import CANCELLED, FAILED, LENGTH, STOP, End, Event, Logprobs, Reason, Text
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.engine.text.stops import StopFilter
from appliance.engine.text.tokenizer.stream import Pieces, TextStream
from appliance.errors import CapacityError, EngineError


class Vocabulary(Pieces, Protocol):
    """The methods of a tokenizer that an answer calls."""

    @property
    def eot_ids(self) -> Collection[int]:
        """Tokens that end a generation."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A prompt as token ids, and the bounds of its answer."""

    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    ignore_end: bool = False  # go on after a token that ends a generation (for measurements)
    choice: int = 0  # the index of this answer among those of one request
    constraint: Constraint | None = None  # what the answer may be; it then ends where its constraint does
    visible: frozenset[int] = frozenset()  # control tokens whose text is part of the answer's
    shift_keep: int | None = None  # first tokens that stay when a full context drops its older half; None: it ends


@dataclass(frozen=True, slots=True)
class Advance:
    """The effect of one token on an answer. The last advance's events end with `End`.

    `token` is the one that was chosen, also where it ends the generation and so is no part of the
    answer. It is None when the answer was cancelled, or failed by `error`, before there was one.
    """

    token: int | None
    events: tuple[Event, ...]
    error: EngineError | None = None
    mask: bytes | None = None  # of tokens that the constraint allowed, see `constraint.walk`

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

    def __init__(self, request: GenerationRequest, tokenizer: Vocabulary, vocabulary: int, context: int,
                 scratch: Scratch) -> None:
        """`vocabulary`: tokens that there are. A model may have more rows, to fill its matrices up:
        they are no choice. `scratch` for as many logits: the engine's. CapacityError for a prompt
        that leaves no room in the context, EngineError for other bad values."""
        count = len(request.prompt_ids)
        if not count:
            raise EngineError("the prompt has no tokens", hint="send at least one token", code="prompt-empty")
        if count >= context:
            raise CapacityError(f"the prompt has {count} tokens; the context has {context}, one of them for the answer",
                                hint="send a shorter prompt", code="prompt-too-long")
        if request.max_tokens < 1:
            raise EngineError(f"max_tokens is {request.max_tokens}; allowed: 1 or more")
        if request.shift_keep is not None and not 0 <= request.shift_keep < min(context // 2, count + 1):
            raise EngineError(f"shift_keep is {request.shift_keep} of {count} tokens and a context of {context}")
        if not all(0 <= token < vocabulary for token in request.prompt_ids):
            raise EngineError(f"a token of the prompt is outside 0..{vocabulary - 1}")
        self.request = request
        self._vocabulary = vocabulary
        self.tokens: list[int] = []  # of the answer, without a token that ended it
        self.finish_reason: Reason | None = None
        self.left = request.max_tokens if request.shift_keep is not None else min(request.max_tokens, context - count)
        constraint = request.constraint
        self.constrained = None if constraint is None else Constrained(constraint.begin())
        ignoring = request.ignore_end and constraint is None
        self._ends = frozenset() if ignoring else frozenset(tokenizer.eot_ids)
        self._sampler = Sampler(request.sampling, request.prompt_ids, vocabulary, scratch)
        self._stream = TextStream(tokenizer, request.visible)
        self._stops = StopFilter(request.stop)

    @property
    def finished(self) -> bool:
        """Whether no more logits are needed."""
        return self.finish_reason is not None

    def advance(self, logits: Logits) -> Advance:
        """Take the next token. Where there is none this answer fails, and no other with it."""
        try:
            return self._advance(logits)
        except EngineError as error:
            return Advance(None, self._end(FAILED, ""), error)

    def _advance(self, logits: Logits) -> Advance:
        """Choose the next token from its logits: those of the vocabulary, and of rows without a
        token after them."""
        mask = None if self.constrained is None else self.constrained.mask()
        drawn = self._sampler.choose(logits[:self._vocabulary], mask)
        token = drawn.token
        if token in self._ends:
            if self.constrained is not None:
                self.constrained.end(token)
            return Advance(token, self._end(STOP, self._rest()), mask=mask)
        complete = self.constrained is not None and self.constrained.accept(token)
        self._sampler.accept(token)
        self.tokens.append(token)
        self.left -= 1
        text = self._stops.push(self._stream.push(token))
        reason = STOP if self._stops.stopped or complete else LENGTH if self.left == 0 else None
        if reason is not None and not self._stops.stopped:
            text += self._rest()
        events: tuple[Event, ...] = (Text(self.request.choice, text, 1),)
        if drawn.logprob is not None:
            events += (Logprobs.of(self.request.choice, ((token, drawn.logprob), *drawn.top)),)
        return Advance(token, events if reason is None else events + self._end(reason, ""), mask=mask)

    def cancel(self) -> Advance:
        """End the answer here."""
        return Advance(None, self._end(CANCELLED, self._rest()))

    def _end(self, reason: Reason, rest: str) -> tuple[Event, ...]:
        """The last events, with text that came with no token."""
        self.finish_reason = reason
        end = End(self.request.choice, reason, self._stops.found)
        return (Text(self.request.choice, rest, 0), end) if rest else (end,)

    def _rest(self) -> str:
        """Release what a possible stop string held back. An incomplete character is left out."""
        self._stream.finish()
        return self._stops.flush()
