"""The layer of a model that guesses its next tokens, greedily.

It reads what the model's last layer gave for a row of a text, and the token that came after that
row, and so guesses the token behind it. Further guesses follow from its own rows. It has pages of
its own, and reads a text from the last part of its prompt on. Where it was not asked for a while,
that part of the text is missing there. Its guesses change no answer (`speculate`), so nothing here
has to be right: only fast, and never outside of its own cache.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.engine.batch.draft import SLOTS, GuessRequest
from appliance.engine.forward.forward import Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.seats import Seats
from appliance.errors import EngineError
from appliance.families.architecture import Architecture
from appliance.families.tensors import GuessHead, check_tensors, guess_head
from appliance.kernels.layouts.shapes import padded_rows
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.metadata import Metadata
from appliance.models.sources.source import InMemory, KernelMatrix, TileSource

HEAD_ROWS = 32  # of a pass of it, at most: what it reads of a prompt
HEAD_CONTEXT = 4096  # positions that it keeps of a text; then it begins anew
TOKENS = 1 << 15  # the first ones of the vocabulary, among which it guesses: tokenizers have frequent ones first


class _Renamed(InMemory):
    """The tensors of the layer, as those of a model of one layer."""

    def __init__(self, source: TileSource, head: GuessHead) -> None:
        self._source, self._names = source, head.tensors
        self.metadata: Metadata = source.metadata
        self.tensors: dict[str, TensorInfo] = head.view(source.tensors)
        self.sha256 = source.sha256

    def weight(self, name: str) -> KernelMatrix:
        """Return a matrix, or a run of them."""
        return self._source.weight(self._names[name])

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector."""
        return self._source.vector(self._names[name])

    def close(self) -> None:
        """Leave the model's source open."""


@dataclass(slots=True)
class _HeadText:
    """The text of one of our own slots: `read` rows, the first `sure` of which are the model's."""

    own: int
    read: int = 0
    sure: int = 0


@dataclass(frozen=True, slots=True)
class _Feed:
    """Rows for a text: addresses of the rows before them, and a token of each."""

    text: _HeadText
    rows: Sequence[int]
    tokens: Sequence[int]


def cache_shape(a: Architecture, slots: int, context: int) -> tuple[int, int]:
    """Slots and positions of the cache of a layer that guesses, beside a model's."""
    return min(slots, SLOTS), min(a.context(context), HEAD_CONTEXT)


class HeadHelper:
    """Not safe to use from two threads at once."""

    trials = 6
    """Guesses of a text that are only compared, as they cost less than a row that reads one."""

    def __init__(self, model: Forward, forward: Forward, cache: KVCache, width: int) -> None:
        """`width`: floats of a row."""
        spared = forward.narrow(padded_rows(TOKENS) // 16)
        self.cost = (forward.row_nbytes - spared) / max(model.row_nbytes, 1)
        self._model, self._forward, self._cache, self._width = model, forward, cache, width
        self._seats = Seats(cache, forward.boundary)
        self._texts: dict[int, _HeadText] = {}  # by the slot of the model
        self._news: dict[int, tuple[int, list[int]]] = {}  # of the last pass: its first row, and the token after each

    @classmethod
    def open(cls, source: TileSource, model: Forward, architecture: Architecture, *, context: int, slots: int,
             kind: str, kernels: KernelTable, pool: Pool) -> HeadHelper:
        """Make the layer ready that guesses for a model of this architecture. EngineError where its
        file has none, or where it is not all in memory; FormatError for tensors that do not fit."""
        head = guess_head(architecture, source.tensors)
        if head is None:
            raise EngineError("the model has no layer that guesses", code="guess-head",
                              hint='write speculation = "on": tokens are then guessed from the text')
        if model.streamed:
            raise EngineError("the model is streamed, and its layer that guesses is not in memory", code="guess-head",
                              hint='write speculation = "on", or leave streaming_decrypt out')
        own, renamed = head.architecture, _Renamed(source, head)
        cache = KVCache(own, *cache_shape(own, slots, context), kind)
        forward = Forward(renamed, own, check_tensors(own, renamed.tensors), cache, kernels, pool,
                          rows=max(min(model.boundary.limits.rows, HEAD_ROWS), SLOTS), wanted=SLOTS)
        return cls(model, forward, cache, own.embedding)

    def note(self, slot: int, first: int, tokens: Sequence[int]) -> None:
        """Tell which rows of the model's last pass a text has, from row `first` on, and the token
        after each."""
        self._news[slot] = first, list(tokens)

    def begin_pass(self) -> None:
        """Forget the news: the model's rows are overwritten now."""
        self._news.clear()

    def guess(self, asks: Sequence[GuessRequest]) -> list[list[int]]:
        """Guesses for each of at most SLOTS texts; none for a text that had no rows in the last
        pass."""
        ready = [index for index, ask in enumerate(asks) if ask.slot in self._news]
        guesses: list[list[int]] = [[] for _ in asks]
        busy, most = {ask.slot for ask in asks}, self._seats.limits.rows // max(len(ready), 1)
        feeds = [self._news_of(asks[index], busy, most) for index in ready]
        for feed in feeds:
            feed.text.sure += len(feed.tokens)
        while feeds:
            going = list[int]()
            nexts = list[_Feed]()
            for index, feed, (row, token) in zip(ready, feeds, self._run(feeds), strict=True):
                guesses[index].append(token)
                if len(guesses[index]) < asks[index].count and feed.text.read < self._seats.context:
                    going.append(index)
                    nexts.append(_Feed(feed.text, [row], [token]))
            ready, feeds = going, nexts
        for ask in asks:
            self._cut(ask.slot)
        return guesses

    def _cut(self, slot: int) -> None:
        """Forget the rows of a text that followed from guesses."""
        text = self._texts.get(slot)
        if text is not None:
            text.read = text.sure
            self._seats.cut(text.own, text.read)

    def _news_of(self, ask: GuessRequest, busy: set[int], most: int) -> _Feed:
        """The last rows of a text's last pass, at most `most`."""
        first, tokens = self._news[ask.slot]
        left_out = max(len(tokens) - min(most, self._seats.context), 0)
        rows = [self._model.row("RESIDUAL", number) for number in range(first + left_out, first + len(tokens))]
        text = self._text(ask.slot, busy)
        if text.read + len(rows) > self._seats.context:
            text.read = text.sure = 0
            self._seats.rewind(text.own, 0)
        return _Feed(text, rows, tokens[left_out:])

    def _text(self, slot: int, busy: set[int]) -> _HeadText:
        """Our slot for a text."""
        text = self._texts.get(slot)
        if text is None:
            if not self._seats.free:
                self.forget(next(each for each in self._texts if each not in busy))
            with self._seats.claim([0]) as [own]:
                text = self._texts[slot] = _HeadText(own)
        return text

    def _run(self, feeds: Sequence[_Feed]) -> list[tuple[int, int]]:
        """One pass: the address of the last row of each feed, and the likeliest token after it."""
        number = itertools.count()
        for row in (row for feed in feeds for row in feed.rows):
            ctypes.memmove(self._forward.row("JOINED", next(number)) + 4 * self._width, row, 4 * self._width)
        tokens = [token for feed in feeds for token in feed.tokens]
        positions = [feed.text.read + i for feed in feeds for i in range(len(feed.tokens))]
        slots = [feed.text.own for feed in feeds for _ in feed.tokens]
        ends = list(itertools.accumulate((len(feed.tokens) for feed in feeds), initial=-1))[1:]
        logits = self._forward.run(tokens, positions, slots, ends)
        for feed in feeds:
            feed.text.read += len(feed.tokens)
        return [(self._forward.row("RESIDUAL", end), int(line[:TOKENS].argmax()))
                for end, line in zip(ends, logits, strict=True)]

    def forget(self, slot: int) -> None:
        """Wipe what was read for a slot of the model, if anything was."""
        self._news.pop(slot, None)
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
