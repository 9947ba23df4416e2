"""Tokens that may come next, and the two kinds of stages that work on them: an adjustment changes
logits, a narrowing keeps some of the candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.ordering import descending, highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import Mask
from appliance.policy.schema.sampling import BY_NAME

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]

LOWEST = -1000.0  # of `below`: what is less has no weight
_LARGEST = float(np.finfo(np.float32).max)


class Candidates:
    """The tokens that are left, in ascending order of ids, and the temperature that is due.

    A temperature is not applied to logits at once: it divides where probabilities are made of them,
    in float64.
    """

    def __init__(self, logits: Logits, scratch: Scratch, uniform: Callable[[bytes], float]) -> None:
        """`logits` (vocabulary,) stay as they are. `uniform` is this draw's number in 0..1, for a
        domain."""
        self.scratch, self.uniform = scratch, uniform
        self.ids: Ids | None = None  # None: all
        self.temperature = 1.0
        self.whole = False  # whether rows are as long as the vocabulary, whatever is left
        self._all, self._own = logits, False

    @property
    def logits(self) -> Logits:
        """Their logits (n,), in `some` where they are not all; the temperature is not in them."""
        return self._all if self.ids is None else self.scratch.pick(self._all, self.ids)

    @property
    def count(self) -> int:
        """How many they are."""
        return self._all.size if self.ids is None else self.ids.size

    def adjustable(self) -> Logits:
        """The logits of the whole vocabulary, to be changed in place, with the temperature in
        them."""
        if not self._own:
            own = self.scratch.adjusted[:self._all.size]
            np.copyto(own, self._all)
            self._all, self._own = own, True
        if self.temperature != 1.0:
            wide = self.scratch.widen(self._all)
            with np.errstate(over="ignore"):
                np.divide(wide, self.temperature, out=wide)
            np.copyto(self._all, np.clip(wide, -_LARGEST, _LARGEST, out=wide), casting="same_kind")
            self.temperature = 1.0
        return self._all

    def bound(self) -> None:
        """Keep what was adjusted finite: a caller may ask for factors that overflow."""
        np.clip(self._all, -_LARGEST, _LARGEST, out=self._all)

    def keep(self, which: Ids | Mask | None) -> None:
        """Keep some of the candidates, by their places (ascending) among them or by a mask; None
        keeps all."""
        if which is not None:
            places: Ids = np.flatnonzero(which) if which.dtype == np.bool_ else which.view(np.int64)
            self.ids = places if self.ids is None else self.ids[places]

    def allow(self, mask: Mask) -> None:
        """Keep those of a mask, before anything else."""
        self.keep(mask)

    def keep_best(self) -> None:
        """Keep the one with the highest logit, of equal ones the lowest id."""
        self.keep(np.array([self.logits.argmax()], np.int64))

    def keep_or_best(self, mask: Mask, *, enough: bool) -> None:
        """Keep those of a mask where it is `enough`, else the best, by the same steps."""
        self.keep((mask & enough) | (np.arange(mask.size) == int(self.logits.argmax())))

    def token(self, place: int) -> int:
        """The token at a place among the candidates."""
        return place if self.ids is None else int(self.ids[place])

    def highest(self, count: int) -> Ids | Mask:
        """The `count` highest, as `keep` takes them."""
        return highest(self.logits, count, self.scratch)

    def best(self, count: int) -> Logits:
        """The logits of the `count` highest, in descending order."""
        order = descending(self.logits, highest(self.logits, count, self.scratch), self.scratch)
        return np.take(self.logits, order, out=self.scratch.powers.view(np.float32)[:count], mode="clip")

    def at(self, values: NDArray[np.float64], place: int) -> float:
        """The value of the candidate at a place."""
        return float(values[place])

    def below(self) -> NDArray[np.float64]:
        """(logit - the highest) / temperature of each (n,), in `wide`."""
        return below(self.logits, self.scratch, self.temperature)

    def weights(self) -> NDArray[np.float64]:
        """e^`below` of each (n,), in `powers`."""
        return exact.weights(self.logits, self.temperature, self.scratch)

    def entropy(self, weights: NDArray[np.float64], whole: float) -> float:
        """The entropy, in nats, of probabilities weights / whole; `wide` and `sums` are used."""
        x = self.below()
        return exact.ln(whole) - exact.total(np.multiply(x, weights, out=x), self.scratch) / whole


def below(logits: Logits, scratch: Scratch, temperature: float = 1.0) -> NDArray[np.float64]:
    """(logit - the highest) / temperature of each (n,), at least `LOWEST`, in `wide`."""
    wide = scratch.widen(logits)
    np.subtract(wide, float(logits.max()), out=wide)
    if temperature != 1.0 or scratch.sweep is not None:
        with np.errstate(over="ignore"):
            np.divide(wide, temperature, out=wide)
    return np.maximum(wide, LOWEST, out=wide)


class Adjustment(Protocol):
    """Changes logits of single tokens. It keeps what it needs to know of one answer."""

    def asks(self) -> bool:
        """Whether there is anything to change now."""

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Change `logits` (vocabulary,) in place."""

    def accept(self, token: int) -> None:
        """Record that `token` became part of the answer."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Keeps some of the candidates that are left, by the values of its parameters.

    `keep` gets the candidates and the values, and returns places among them, ascending, or a mask;
    None keeps all. At least one always stays. It may use all of the scratch but `some` and
    `adjusted`. `sweep` does the same, by a mask, with `SweptCandidates`; None: `keep` does both.
    """

    parameters: tuple[str, ...]  # the first one's neutral value turns it off
    keep: Callable[..., Ids | Mask | None]
    loses_best: bool = False  # whether the likeliest candidate may go
    sweep: Callable[..., Ids | Mask | None] | None = None

    def apply(self, candidates: Candidates, *values: float) -> None:
        """Keep what is to be kept."""
        keep = self.sweep if self.sweep is not None and candidates.whole else self.keep
        candidates.keep(keep(candidates, *values))

    def is_off(self, value: float) -> bool:
        """Whether a value of its first parameter keeps all."""
        return value == BY_NAME[self.parameters[0]].off
