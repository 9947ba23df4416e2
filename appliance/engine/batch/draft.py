"""A small model that guesses the next tokens of a large one, greedily.

It has a few slots of its own, each lent to a slot of the large model while that speculates, and
reads there what it has not read of the text. It runs on the large model's threads, between its
passes. Its guesses change no answer (`speculate`), so nothing here has to be right: only fast, and
never outside of its own cache.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.seats import Seats
from appliance.errors import EngineError
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file.metadata import Strings
from appliance.models.sources.source import TileSource

SLOTS = 4  # texts that it follows at the same time
_KIND, _TOKENS = "tokenizer.ggml.model", "tokenizer.ggml.tokens"


@dataclass(frozen=True, slots=True)
class GuessRequest:
    """Up to `count` guesses of what follows `tokens`, the text in a slot of the large model."""

    slot: int
    tokens: Sequence[int]
    count: int


@dataclass(slots=True)
class _Text:
    """The text that one of our own slots has read: `tokens`, the first `sure` of which were part of
    the text before."""

    own: int
    tokens: array[int] = field(default_factory=lambda: array("i"))
    sure: int = 0


def check_vocabulary(source: TileSource, draft: TileSource) -> None:
    """EngineError unless both models have the same tokens, in the same order."""
    for key, same in ((_KIND, source.metadata.get(_KIND) == draft.metadata.get(_KIND)),
                      (_TOKENS, _tokens(source) == _tokens(draft))):
        if not same:
            raise EngineError(f"the draft model has another vocabulary: {key} differs", code="draft-vocabulary",
                              hint="a draft model must have been made for the same tokenizer")


def _tokens(source: TileSource) -> list[str]:
    tokens = source.metadata.get(_TOKENS)
    return list(tokens) if isinstance(tokens, Strings) else []


def cost(source: TileSource, draft: TileSource) -> float:
    """The cost of a pass of the draft, in passes of the model: the share of the bytes that it
    reads. Of experts those count that a row chooses."""
    def nbytes(model: TileSource) -> float:
        family = model.metadata.get("general.architecture")
        count, used = (model.metadata.get(f"{family}.expert_{key}") for key in ("count", "used_count"))
        share = used / count if isinstance(count, int) and isinstance(used, int) and 0 < used <= count else 1.0
        return sum(tensor.nbytes * (share if len(tensor.shape) > 2 else 1.0) for tensor in model.tensors.values())
    return nbytes(draft) / nbytes(source)


class Drafter:
    """Not safe to use from two threads at once."""

    trials = 0  # its guesses are dear to make: each is tried

    def __init__(self, forward: Forward, cache: KVCache, vocabulary: int, price: float) -> None:
        self.cost = price
        self._forward, self._cache, self._vocabulary = forward, cache, vocabulary
        self._seats = Seats(cache, forward.boundary)
        self._texts: dict[int, _Text] = {}  # by the slot of the large model

    @classmethod
    def open(cls, source: TileSource, draft: TileSource, *, context: int, slots: int, kind: str,
             kernels: KernelTable, pool: Pool, rows: int = ROWS) -> Drafter:
        """Make `draft` ready to guess for `source`, with a cache of format `kind`, and to read up
        to `rows` tokens in a pass. EngineError, UnsupportedError and FormatError say why not."""
        check_vocabulary(source, draft)
        shape = architecture_of(draft.metadata)
        if shape.stateful:
            raise EngineError("layers of the draft model keep a state, which cannot go back where a guess is wrong",
                              hint="use a draft model of which all layers attend", code="draft-state")
        plan = check_tensors(shape, draft.tensors)
        cache = KVCache(shape, min(slots, SLOTS), shape.context(context), kind)
        forward = Forward(draft, shape, plan, cache, kernels, pool, rows=max(rows, SLOTS), wanted=SLOTS)
        return cls(forward, cache, min(len(_tokens(source)), shape.vocabulary), cost(source, draft))

    def guess(self, asks: Sequence[GuessRequest]) -> list[list[int]]:
        """Guesses for each of at most SLOTS texts; none for a text that it has not read to its end
        yet."""
        guesses: list[list[int]] = [[] for _ in asks]
        ready = []
        for index, ask in enumerate(asks):
            text = self._text(ask, {each.slot for each in asks})
            if text is not None and self._catch_up(text, ask.tokens):
                ready.append((index, text))
        feeds = [list(asks[index].tokens[len(text.tokens):]) for index, text in ready]
        while ready:
            best = self._run([text for _, text in ready], feeds)
            for (index, _), token in zip(ready, best, strict=True):
                guesses[index].append(token)
            ready = [(index, text) for index, text in ready
                     if len(guesses[index]) < asks[index].count and len(text.tokens) < self._seats.context]
            feeds = [[guesses[index][-1]] for index, _ in ready]
        return guesses

    def _text(self, ask: GuessRequest, busy: set[int]) -> _Text | None:
        """Our slot for a text, without tokens of other texts; None where the text is out of reach.
        """
        if len(ask.tokens) > self._seats.context:
            return None
        text = self._texts.get(ask.slot)
        if text is None:
            if not self._seats.free:
                self.forget(next(slot for slot in self._texts if slot not in busy))
            with self._seats.claim([0]) as [own]:
                text = self._texts[ask.slot] = _Text(own)
        # At least the last token is read again: its logits are what is asked for.
        end, keep = min(len(text.tokens), len(ask.tokens) - 1), min(text.sure, len(ask.tokens) - 1)
        while keep < end and text.tokens[keep] == ask.tokens[keep]:
            keep += 1
        del text.tokens[keep:]
        text.sure = keep
        self._seats.cut(text.own, keep)
        vocabulary = self._seats.limits.vocabulary  # the large model may have rows that we do not
        return text if all(token < vocabulary for token in ask.tokens[keep:]) else None

    def _catch_up(self, text: _Text, tokens: Sequence[int]) -> bool:
        """Read on, at most one pass; whether few enough tokens are left to read them with others'
        in one pass."""
        rest = len(tokens) - len(text.tokens)
        rows = self._seats.limits.rows
        most = rows // SLOTS
        if rest > most:
            start = len(text.tokens)
            chunk = list(tokens[start:start + min(rows, rest - 1)])
            self._forward.run(chunk, range(start, start + len(chunk)), [text.own] * len(chunk), [])
            text.tokens.extend(chunk)
            text.sure = len(text.tokens)
        return len(tokens) - len(text.tokens) <= most

    def _run(self, texts: Sequence[_Text], feeds: Sequence[Sequence[int]]) -> list[int]:
        """One pass: read a feed for each text; the likeliest token after each."""
        tokens = [token for feed in feeds for token in feed]
        positions = [len(text.tokens) + i for text, feed in zip(texts, feeds, strict=True) for i in range(len(feed))]
        slots = [text.own for text, feed in zip(texts, feeds, strict=True) for _ in feed]
        logit_rows = list(itertools.accumulate((len(feed) for feed in feeds), initial=-1))[1:]
        logits = self._forward.run(tokens, positions, slots, logit_rows)
        for text, feed in zip(texts, feeds, strict=True):
            text.tokens.extend(feed)
        return [int(row[:self._vocabulary].argmax()) for row in logits]

    def note(self, slot: int, first: int, tokens: Sequence[int]) -> None:
        """Nothing of the large model's rows is needed."""

    def begin_pass(self) -> None:
        """Nothing was noted."""

    def forget(self, slot: int) -> None:
        """Wipe what was read for a slot of the large model, if anything was."""
        text = self._texts.pop(slot, None)
        if text is not None:
            self._seats.give_back(text.own)

    def forget_all(self) -> None:
        """Wipe what was read for any slot."""
        for slot in list(self._texts):
            self.forget(slot)

    def release(self) -> None:
        """Overwrite every buffer and the cache with zeros."""
        self._forward.release()
        self._cache.release()
