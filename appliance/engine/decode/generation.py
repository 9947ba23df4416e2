"""One answer: what is asked, and how logits become steps of text until it ends.

This module knows nothing of slots, batches or threads; `engine_batch` feeds it logits, one row for each token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Logits
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.engine.text.stops import StopFilter
from appliance.engine.text.tokenizer.stream import Pieces, TextStream
from appliance.errors import CapacityError, EngineError

STOP, LENGTH, CANCELLED, FAILED = "stop", "length", "cancelled", "failed"


class Vocabulary(Pieces, Protocol):
    """What an answer asks of a tokenizer."""

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


@dataclass(frozen=True, slots=True)
class Step:
    """One token of an answer.

    `text` is complete characters, and may be empty while a character or a possible stop string is undecided; it then
    comes with a later step. The last step has a `finish_reason`: "stop" (a token that ends the generation, or a stop
    string), "length", "cancelled" or "failed". `token` is None when the answer was cancelled before it, or failed by
    `error`.
    """

    token: int | None
    text: str
    finish_reason: str | None = None
    ended: bool = False  # the token ends the generation: it has no text and is no part of the answer
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    error: EngineError | None = None


class Generation:
    """The state of one answer. Feed it the logits after the prompt, then after each token, until `finished`."""

    def __init__(self, request: GenerationRequest, tokenizer: Vocabulary, vocabulary: int, context: int,
                 scratch: Scratch) -> None:
        """`vocabulary`: tokens that there are. A model may have more rows, to fill its matrices up: they are no choice.
        `scratch` for as many logits: the engine's.
        CapacityError for a prompt that leaves no room in the context, EngineError for other bad values."""
        count = len(request.prompt_ids)
        if not count:
            raise EngineError("the prompt has no tokens", hint="send at least one token", code="prompt-empty")
        if count >= context:
            raise CapacityError(f"the prompt has {count} tokens; the context has {context}, one of them for the answer",
                                hint="send a shorter prompt", code="prompt-too-long")
        if request.max_tokens < 1:
            raise EngineError(f"max_tokens is {request.max_tokens}; allowed: 1 or more")
        if not all(0 <= token < vocabulary for token in request.prompt_ids):
            raise EngineError(f"a token of the prompt is outside 0..{vocabulary - 1}")
        self.request = request
        self._vocabulary = vocabulary
        self.tokens: list[int] = []  # of the answer, without a token that ended it
        self.finish_reason: str | None = None
        self.left = min(request.max_tokens, context - count)
        self._ends = frozenset() if request.ignore_end else frozenset(tokenizer.eot_ids)
        self._sampler = Sampler(request.sampling, request.prompt_ids, vocabulary, scratch)
        self._stream = TextStream(tokenizer)
        self._stops = StopFilter(request.stop)

    @property
    def finished(self) -> bool:
        """Whether no more logits are needed."""
        return self.finish_reason is not None

    def advance(self, logits: Logits) -> Step:
        """The next step. Where there is no next token this answer fails, and no other with it."""
        try:
            return self._advance(logits)
        except EngineError as error:
            self.finish_reason = FAILED
            return Step(None, "", FAILED, error=error)

    def _advance(self, logits: Logits) -> Step:
        """Choose the next token from its logits: those of the vocabulary, and of rows without a token after them."""
        choice = self._sampler.choose(logits[:self._vocabulary])
        token = choice.token
        if token in self._ends:
            self.finish_reason = STOP
            return Step(token, self._rest(), STOP, True, choice.logprob, choice.top)
        self._sampler.accept(token)
        self.tokens.append(token)
        self.left -= 1
        text = self._stops.push(self._stream.push(token))
        if self.left == 0 and not self._stops.stopped:
            self.finish_reason = LENGTH
            text += self._rest()
        if self._stops.stopped:
            self.finish_reason = STOP
        return Step(token, text, self.finish_reason, False, choice.logprob, choice.top)

    def cancel(self) -> Step:
        """End the answer here."""
        self.finish_reason = CANCELLED
        return Step(None, self._rest(), CANCELLED)

    def _rest(self) -> str:
        """What a possible stop string held back. An incomplete character is left out."""
        self._stream.finish()
        return self._stops.flush()
