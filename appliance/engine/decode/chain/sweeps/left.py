"""The candidates that are left, in rows whose length does not depend on what is left."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from appliance.engine.decode.chain.candidates import Candidates, Ids, Logits
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import HOLE, Mask, Reals, Sweep, Whole, Wide

_NUMBER = np.iinfo(np.int64).max
_HOLE_BITS = int(HOLE.view(np.int32))


class SweptCandidates(Candidates):
    """They stand in front, in ascending order of tokens. Where no more than `MOST` can be left, the
    rows are short ones."""

    def __init__(self, logits: Logits, scratch: Scratch, sweep: Sweep, uniform: Callable[[bytes], float]) -> None:
        """As `Candidates`."""
        super().__init__(logits, scratch, uniform)
        self._sweep, self._left, self.whole = sweep, logits.size, True
        self._tokens: Whole | None = None  # of each entry; None: its place
        self._allowed: Mask | None = None
        self.places = sweep.rows.places

    def allow(self, mask: Mask) -> None:
        """Keep those of a mask, once no adjustment of single tokens can come any more."""
        self._allowed = mask

    @property
    def logits(self) -> Logits:
        """As of `Candidates`; holes follow what is left."""
        self._settle()
        return super().logits

    @property
    def count(self) -> int:
        """How many are left."""
        self._settle()
        return self._left

    def keep(self, which: Ids | Mask | None) -> None:
        """As `Candidates.keep`, by a mask."""
        if which is not None:
            self._forward(which.astype(np.bool_) & (self.places[:which.size] < self._left))

    def keep_best(self) -> None:
        """Keep the one with the highest logit, of equal ones the lowest token."""
        place, value = int(self.logits.argmax()), self.logits.max()
        token = self.token(place)
        self._shorten()
        rows = self._sweep.rows
        rows.logits.fill(HOLE)
        rows.logits[0], rows.tokens[0], self._left = value, token, 1
        self._all, self._tokens, self._own = rows.logits, rows.tokens, True

    def keep_highest(self, count: int) -> None:
        """Keep the `count` highest, at most `MOST`, and go on with short rows."""
        self._settle()
        size = self._own_rows()
        self._left = self._sweep.highest_forward(size, min(count, self._left))
        self._shorten()

    def token(self, place: int) -> int:
        """The token at a place among the candidates."""
        return place if self._tokens is None else int(self._sweep.number(self._tokens, place))

    def at(self, values: Reals, place: int) -> float:
        """The value of the candidate at a place."""
        keys = self._sweep.rows.keys.view(np.float64)
        np.copyto(keys[:values.size], values)
        return float(self._sweep.number(keys, place))

    def highest(self, count: int) -> Mask:
        """Mark the `count` highest."""
        return self._sweep.highest(self.logits, min(count, self.count))

    def best(self, count: int) -> Logits:
        """The logits of the `count` highest, in descending order."""
        return self.ordered()[:count]

    def ordered(self) -> Logits:
        """All logits, the highest first."""
        logits, keys = self.logits, self._sweep.rows.keys[:self.logits.size]
        wide = np.negative(self.scratch.widen(logits), out=self.scratch.wide[:logits.size])
        bits = np.add(wide, 0.0, out=wide).view(np.int64)  # one of both zeros
        np.bitwise_and(np.right_shift(bits, 63, out=keys), _NUMBER, out=keys)
        return self.by(np.bitwise_xor(bits, keys, out=keys))

    def by(self, keys: Wide) -> Logits:
        """All logits in the order of their keys (n,), the least first."""
        return self._sweep.sort(keys, self.logits).view(np.float32)

    def first(self, keys: Wide, count: int) -> Mask:
        """The `count` first in the order that was made last."""
        return self._sweep.first(keys, min(count, self.count))

    def packed(self, values: Reals, mask: Mask, out: Reals) -> int:
        """Write some of the values (n,), then zeros, to `out`; how many they are."""
        return self._sweep.packed(values, mask, out)

    def _settle(self) -> None:
        if self._allowed is not None:
            mask, self._allowed = self._allowed, None
            self._forward(mask)

    def _forward(self, mask: Mask) -> None:
        """Go on with those of a mask."""
        rows = self._sweep.rows
        self._own_rows()
        self._left = self._sweep.forward(rows.logits, rows.tokens, mask, _HOLE_BITS)

    def _own_rows(self) -> int:
        """Go on with rows of our own; how many of their logits there are, holes included."""
        rows, size = self._sweep.rows, self._all.size
        if self._tokens is None:
            np.copyto(rows.tokens, rows.places)
        if self._all is not rows.logits:
            rows.logits[size:] = HOLE
            np.copyto(rows.logits[:size], self._all)
        self._all, self._tokens, self._own = rows.logits, rows.tokens, True
        return size

    def _shorten(self) -> None:
        """Go on with short rows, where the vocabulary is longer."""
        if self._sweep.short is not None:
            rows, self._sweep = self._sweep.rows, self._sweep.short
            short, self.places = self._sweep.rows, self._sweep.rows.places
            np.copyto(short.logits, rows.logits[:short.count])
            np.copyto(short.tokens, rows.tokens[:short.count])
            self._all, self._tokens, self._own = short.logits, short.tokens, True
