"""Choose the next token from a row of logits: the same choice for the same seed, position and
logits.

Each step of the chain is a file of `chain/`. `ADJUSTMENTS` and `NARROWINGS` have their order, which
is llama.cpp's, with OpenAI's definitions of its own parameters:

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

Where an answer has a constraint, its mask comes after step 3: a token that it bars gets the logit
-inf.

The uniform number of draw n is the first 53 bits of SHA-256(domain ‖ seed ‖ n): it depends on
nothing else, so speculation and batching cannot change an answer, and an auditor can replay it. On
another CPU, too, but that the last bit of numpy's exp depends on it: a draw within some 1e-15 of a
border may fall to the neighbour. Log-probabilities are those of the model, from the logits before
step 1. Values of logits stay in `scratch`. This module knows nothing of text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain import allowed, min_p, top_k, top_p
from appliance.engine.decode.chain.ordering import descending, highest
from appliance.engine.decode.chain.penalties import Bias, Counts, Repeats
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Adjustment, Ids, Logits
from appliance.errors import EngineError
from appliance.policy.schema.sampling import PARAMETERS

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


# The order of the chain: what changes logits, then what keeps some of them.
ADJUSTMENTS: tuple[Callable[[Sampling, Sequence[int]], Adjustment], ...] = (
    lambda sampling, _prompt: Bias(sampling.logit_bias),
    lambda sampling, prompt: Repeats(sampling.repeat_penalty, sampling.repeat_last_n, prompt),
    lambda sampling, _prompt: Counts(sampling.frequency_penalty, sampling.presence_penalty),
)
NARROWINGS = (top_k.STAGE, top_p.STAGE, min_p.STAGE)


class Sampler:
    """The state of one answer's sampling: what was generated so far."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int, scratch: Scratch) -> None:
        """`scratch` for as many logits; samplers that choose one after the other may share it."""
        if any(not 0 <= token < vocabulary for token in sampling.logit_bias):
            raise EngineError(f"sampling.logit_bias names a token outside 0..{vocabulary - 1}")
        self.sampling, self._scratch = sampling, scratch
        self._adjustments = tuple(make(sampling, prompt) for make in ADJUSTMENTS)
        self._draws = 0

    def choose(self, logits: Logits, mask: bytes | None = None) -> Choice:
        """The next token for `logits` (vocabulary,), among those that have their bit in `mask`
        where there is one; does not change the state, so it can be repeated."""
        if not np.isfinite(logits.max()):
            raise EngineError("the model produced logits that are not numbers",
                              hint="the model file is damaged, or its weights overflow in this format")
        adjusted = self._adjusted(logits, mask)
        token = int(adjusted.argmax()) if self.sampling.temperature == 0 else self._draw(adjusted)
        if self.sampling.top_logprobs is None:
            return Choice(token)
        return Choice(token, *log_probabilities(logits, token, self.sampling.top_logprobs, self._scratch))

    def accept(self, token: int) -> None:
        """Record that `token` became part of the answer."""
        self._draws += 1
        for each in self._adjustments:
            each.accept(token)

    def _adjusted(self, logits: Logits, mask: bytes | None) -> Logits:
        """Steps 1 to 3, and the mask; `logits` itself where they change nothing."""
        asking = [each for each in self._adjustments if each.asks()]
        if not asking and mask is None:
            return logits
        out = self._scratch.adjusted[:logits.size]
        np.copyto(out, logits)
        for each in asking:
            each.apply(out, self._scratch)
        if mask is not None:
            allowed.restrict(out, mask, self._scratch)
        return out

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


def candidates(logits: Logits, sampling: Sampling, scratch: Scratch) -> Ids | None:
    """Ids, ascending, that the narrowings leave; None when all of the vocabulary stays."""
    ids = None
    for stage in NARROWINGS:
        value = getattr(sampling, stage.parameter)
        if value == stage.off:
            continue
        places = stage.keep(logits if ids is None else scratch.pick(logits, ids), value, scratch)
        if places is not None:
            ids = places if ids is None else ids[places]
    return ids


def invert(weights: NDArray[np.float64], uniform: float, scratch: Scratch) -> int:
    """The first place up to which the weights make more than the share `uniform` of their sum. Its
    weight is not 0.

    One running sum over a vocabulary takes most of a draw's time, so: over sums of chunks, then
    within one chunk.
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
    """The first place whose running sum is above `target`; where rounding left none, the first with
    the whole sum."""
    return int(np.searchsorted(sums, min(target, math.nextafter(sums[-1], 0.0)), side="right"))


def log_probabilities(logits: Logits, token: int, top: int,
                      scratch: Scratch) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of `token`, and the `top` best (token, log-probability), by a float64
    log-softmax."""
    total = float(logits.max()) + math.log(float(scratch.exponentials(logits).sum()))
    ids = descending(logits, highest(logits, min(top, logits.size), scratch), scratch) if top else ()
    return float(logits[token]) - total, tuple((int(i), float(logits[i]) - total) for i in ids)
