"""Adjustments of single tokens: biases of the caller's, and penalties for what there is already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from appliance.engine.decode.chain.candidates import Logits
from appliance.engine.decode.chain.scratch import Scratch


class Bias:
    """`logit_bias` is added to the logits of the tokens that it names."""

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.fromiter(bias.keys(), np.int64)
        self._bias = np.fromiter(bias.values(), np.float32)

    def asks(self) -> bool:
        """Tell whether the request asks for it."""
        return bool(self._ids.size)

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        some = scratch.pick(logits, self._ids)
        logits[self._ids] = np.add(some, self._bias, out=some)

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""


class Repeats:
    """`repeat_penalty`, over the distinct tokens among the last so many of prompt and answer.

    A positive logit is divided by it, any other multiplied by it.
    """

    def __init__(self, penalty: float, last: int, prompt: Sequence[int]) -> None:
        self._penalty, self._last = penalty, last
        self._tail = list(prompt[-last:]) if last else []

    def asks(self) -> bool:
        """Tell whether the request asks for it."""
        return self._penalty != 1.0 and bool(self._tail)

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        ids, penalty = np.unique(np.array(self._tail, np.int64)), np.float32(self._penalty)
        some, mask = scratch.pick(logits, ids), scratch.mask[:ids.size]
        np.greater(some, 0, out=mask)
        np.divide(some, penalty, out=some, where=mask)
        np.multiply(some, penalty, out=some, where=np.logical_not(mask, out=mask))
        logits[ids] = some

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""
        self._tail.append(token)
        if len(self._tail) > self._last:
            del self._tail[: -self._last or None]


class CountPenalty:
    """`frequency_penalty` times how often the answer has a token, and `presence_penalty` once, are
    subtracted."""

    def __init__(self, frequency: float, presence: float) -> None:
        self._frequency, self._presence = frequency, presence
        self._counts: Counter[int] = Counter()

    def asks(self) -> bool:
        """Tell whether the request asks for it."""
        return (self._frequency != 0.0 or self._presence != 0.0) and bool(self._counts)

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        ids = np.fromiter(self._counts.keys(), np.int64)
        times = np.fromiter(self._counts.values(), np.float64)
        some = scratch.pick(logits, ids)
        logits[ids] = np.subtract(some, (times * self._frequency + self._presence).astype(np.float32), out=some)

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""
        self._counts[token] += 1
