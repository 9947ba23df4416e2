"""Choose the next token from a row of logits: the same choice for the same seed, position and logits.

Order of the steps (that of llama.cpp, with OpenAI's definitions of its own parameters):

 1. `logit_bias` is added to the logits of the tokens named.
 2. `repeat_penalty` r, over the distinct tokens among the last `repeat_last_n` of prompt and answer: a positive
    logit is divided by r, any other multiplied by r.
 3. `frequency_penalty` × (times generated so far) and `presence_penalty` (once, if ever generated) are subtracted;
    tokens of the prompt do not count.
 4. Temperature 0: the highest logit wins, the lowest id among equals. Otherwise:
 5. `top_k` keeps the k highest; `top_p` the shortest run of the most probable whose mass reaches p; `min_p` those
    with at least p times the probability of the best. Ties are kept by lowest id; one candidate always stays.
 6. Logits are divided by the temperature, and one candidate is drawn by inverting the cumulative distribution in
    order of token id.

The uniform number of draw n is the first 53 bits of SHA-256(domain ‖ seed ‖ n): it depends on nothing else, so
speculation and batching cannot change an answer, and an auditor can replay it. On another CPU, too, but that the last
bit of numpy's exp depends on it: a draw within some 1e-15 of a border may fall to the neighbour. Log-probabilities are
those of the model, from the logits before step 1. What has values of logits stays in `scratch`. This module knows
nothing of text.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.scratch import Scratch
from appliance.errors import EngineError
from appliance.policy.schema.sampling import PARAMETERS

Logits = NDArray[np.float32]

_DOMAIN = b"appliance sampler draw v1\0"
MAX_TOP_LOGPROBS = 20
_CHUNK = 256  # weights that are summed up at once


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens. The defaults sample from the model's own distribution."""

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    min_p: float = 0.0  # 0: off
    repeat_penalty: float = 1.0  # 1: off
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0  # 0 .. 2**64 - 1
    top_logprobs: int | None = None  # None: no log-probabilities; 0: of the chosen token only

    def __post_init__(self) -> None:
        for each in PARAMETERS:
            value = getattr(self, each.name)
            if not each.low <= value <= each.high:  # false for NaN too
                raise EngineError(f"sampling.{each.name} is {value}; allowed: {each.low:g}..{each.high:g}")
        if not 0 <= self.seed < 1 << 64:
            raise EngineError("sampling.seed is out of range; allowed: 0..2^64-1")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise EngineError(f"sampling.top_logprobs is {self.top_logprobs}; allowed: 0..{MAX_TOP_LOGPROBS}")
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise EngineError("sampling.logit_bias has a value that is not finite")


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, and log-probabilities where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), best first


class Sampler:
    """The state of one answer's sampling: what was generated so far."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int, scratch: Scratch) -> None:
        """`scratch` for as many logits; samplers that choose one after the other may share it."""
        if any(not 0 <= token < vocabulary for token in sampling.logit_bias):
            raise EngineError(f"sampling.logit_bias names a token outside 0..{vocabulary - 1}")
        self.sampling, self._scratch = sampling, scratch
        self._tail = list(prompt[-sampling.repeat_last_n:]) if sampling.repeat_last_n else []
        self._counts: Counter[int] = Counter()
        self._draws = 0
        self._bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)

    def choose(self, logits: Logits) -> Choice:
        """The next token for `logits` (vocabulary,); does not change the state, so it can be repeated."""
        if not np.isfinite(logits.max()):
            raise EngineError("the model produced logits that are not numbers",
                              hint="the model file is damaged, or its weights overflow in this format")
        adjusted = self._adjusted(logits)
        token = int(adjusted.argmax()) if self.sampling.temperature == 0 else self._draw(adjusted)
        if self.sampling.top_logprobs is None:
            return Choice(token)
        return Choice(token, *log_probabilities(logits, token, self.sampling.top_logprobs, self._scratch))

    def accept(self, token: int) -> None:
        """Record that `token` became part of the answer."""
        self._draws += 1
        self._counts[token] += 1
        self._tail.append(token)
        if len(self._tail) > self.sampling.repeat_last_n:
            del self._tail[: -self.sampling.repeat_last_n or None]

    def _adjusted(self, logits: Logits) -> Logits:
        """Steps 1 to 3; `logits` itself where they change nothing."""
        s = self.sampling
        repeats = s.repeat_penalty != 1.0 and bool(self._tail)
        counts = (s.frequency_penalty != 0.0 or s.presence_penalty != 0.0) and bool(self._counts)
        if not (repeats or counts or self._bias_ids.size):
            return logits
        scratch = self._scratch
        out = scratch.adjusted[:logits.size]
        np.copyto(out, logits)
        if self._bias_ids.size:
            some = scratch.pick(out, self._bias_ids)
            out[self._bias_ids] = np.add(some, self._bias, out=some)
        if repeats:
            ids = np.unique(np.array(self._tail, np.int64))
            self._penalise(out, ids, np.float32(s.repeat_penalty))
        if counts:
            ids = np.fromiter(self._counts.keys(), np.int64)
            times = np.fromiter(self._counts.values(), np.float64)
            some = scratch.pick(out, ids)
            out[ids] = np.subtract(some, (times * s.frequency_penalty + s.presence_penalty).astype(np.float32),
                                   out=some)
        return out

    def _penalise(self, out: Logits, ids: NDArray[np.int64], penalty: np.float32) -> None:
        """Step 2 for the tokens `ids`."""
        some, mask = self._scratch.pick(out, ids), self._scratch.mask[:ids.size]
        np.greater(some, 0, out=mask)
        np.divide(some, penalty, out=some, where=mask)
        np.multiply(some, penalty, out=some, where=np.logical_not(mask, out=mask))
        out[ids] = some

    def _draw(self, logits: Logits) -> int:
        """Steps 5 and 6."""
        scratch = self._scratch
        ids = candidates(logits, self.sampling, scratch)
        chosen = logits if ids is None else scratch.pick(logits, ids)
        at = invert(scratch.exponentials(chosen, self.sampling.temperature), self._uniform(), scratch)
        return at if ids is None else int(ids[at])

    def _uniform(self) -> float:
        block = self.sampling.seed.to_bytes(8, "little") + self._draws.to_bytes(8, "little")
        digest = hashlib.sha256(_DOMAIN + block).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def candidates(logits: Logits, sampling: Sampling, scratch: Scratch) -> NDArray[np.int64] | None:
    """Ids, ascending, that top-k, top-p and min-p leave; None when all of the vocabulary stays."""
    size = logits.shape[0]
    ids = None
    if 0 < sampling.top_k < size:
        ids = highest(logits, sampling.top_k, scratch)
    if sampling.top_p < 1.0:
        inside = _nucleus(logits if ids is None else scratch.pick(logits, ids), sampling.top_p, scratch)
        ids = inside if ids is None else ids[inside]
    if sampling.min_p > 0.0:
        floor = float(logits.max()) + math.log(sampling.min_p)
        wide = scratch.widened(logits if ids is None else scratch.pick(logits, ids))
        inside = np.flatnonzero(np.greater_equal(wide, floor, out=scratch.mask[:wide.size]))
        ids = inside if ids is None else ids[inside]
    return ids


def invert(weights: NDArray[np.float64], uniform: float, scratch: Scratch) -> int:
    """The first place up to which the weights make more than the share `uniform` of their sum. Its weight is not 0.

    One running sum over a vocabulary takes most of a draw's time, so: over sums of chunks, then within one chunk.
    """
    starts = np.arange(0, weights.size, _CHUNK)
    chunks = np.add.reduceat(weights, starts, out=scratch.wide[:starts.size])
    sums = np.cumsum(chunks, out=scratch.sums[:starts.size])
    target = uniform * float(sums[-1])
    chunk = _passing(sums, target)
    before = float(sums[chunk - 1]) if chunk else 0.0
    some = weights[starts[chunk]:starts[chunk] + _CHUNK]
    return int(starts[chunk]) + _passing(np.cumsum(some, out=scratch.wide[:some.size]), target - before)


def _passing(sums: NDArray[np.float64], target: float) -> int:
    """The first place whose running sum is above `target`; where rounding left none, the first with the whole sum."""
    return int(np.searchsorted(sums, min(target, math.nextafter(sums[-1], 0.0)), side="right"))


def _float(place: int) -> np.float32:
    """The number at a place in the order of all: 0 at place 0, the least number above it at 1, and so on."""
    return np.int32(place if place >= 0 else place ^ 0x7FFFFFFF).view(np.float32)


def _place(number: np.float32) -> int:
    """The place of a number, see `_float`."""
    bits = int(number.view(np.int32))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def highest(logits: Logits, count: int, scratch: Scratch) -> NDArray[np.int64]:
    """Ids, ascending, of the `count` highest logits; among equals at the border the lowest ids.

    Of `count` parts of the row, each has a logit that is no lower than the least of their maxima: what is lower
    than that is out at once.
    """
    values = scratch.wide.view(np.float32)
    starts = np.arange(count) * logits.size // count
    floor = np.maximum.reduceat(logits, starts, out=values[:count]).min()
    ids = np.flatnonzero(np.greater_equal(logits, floor, out=scratch.mask[:logits.size]))
    some, mask = np.take(logits, ids, out=values[:ids.size], mode="clip"), scratch.mask[:ids.size]
    low, high, found = _place(floor), _place(some.max()) + 1, ids.size
    while found != count and high - low > 1:  # not by numpy's sorting, which leaves values on the stack
        middle = (low + high) // 2
        found = int(np.count_nonzero(np.greater_equal(some, _float(middle), out=mask)))
        low, high = (middle, high) if found >= count else (low, middle)
    border = _float(low)
    above = ids[np.flatnonzero(np.greater(some, border, out=mask))]
    equal = ids[np.flatnonzero(np.equal(some, border, out=mask))][: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def _descending(logits: Logits, ids: NDArray[np.int64], scratch: Scratch) -> NDArray[np.int64]:
    """`ids`, ascending, in the order of their logits, the best first."""
    some = np.take(logits, ids, out=scratch.wide.view(np.float32)[:ids.size], mode="clip")
    return ids[np.argsort(np.negative(some, out=some), kind="stable")]


def _heavy(weights: NDArray[np.float64], target: float, scratch: Scratch) -> NDArray[np.int64]:
    """Places, ascending, of weights that may be in the shortest run of the heaviest whose sum is `target`.

    Outside of the run is `rest`. Of n weights, those lighter than rest / n weigh less than that, all together.
    """
    rest = float(weights.sum()) - target
    return np.flatnonzero(np.greater_equal(weights, rest / weights.size, out=scratch.mask[:weights.size]))


def _nucleus(logits: Logits, mass: float, scratch: Scratch) -> NDArray[np.int64]:
    """Ids, ascending, of the shortest run of the most probable whose share of the mass is `mass`."""
    weights = scratch.exponentials(logits)
    target = mass * float(weights.sum())
    ids = _heavy(weights, target, scratch)
    ids = ids[_heavy(np.take(weights, ids, out=scratch.sums[:ids.size], mode="clip"), target, scratch)]
    order = _descending(logits, ids, scratch)
    ordered = np.take(weights, order, out=scratch.wide[:order.size], mode="clip")
    cumulative = np.cumsum(ordered, out=scratch.sums[:order.size])
    return np.sort(order[: int(np.searchsorted(cumulative, target, side="left")) + 1])


def log_probabilities(logits: Logits, token: int, top: int,
                      scratch: Scratch) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of `token`, and the `top` best (token, log-probability), by a float64 log-softmax."""
    total = float(logits.max()) + math.log(float(scratch.exponentials(logits).sum()))
    ids = _descending(logits, highest(logits, min(top, logits.size), scratch), scratch) if top else ()
    return float(logits[token]) - total, tuple((int(i), float(logits[i]) - total) for i in ids)
