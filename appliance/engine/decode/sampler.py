"""Choose the next token from a row of logits: the same choice for the same seed, position and
logits, on every CPU.

A chain of stages works on the logits, in the order that `Sampling.samplers` gives. Its default is
llama.cpp's, with OpenAI's definitions of its own parameters:

 0. `guidance_scale`: logits go away from those of the negative prompt, whatever the order.
 1. `logit_bias` is added to the logits of the tokens named, whatever the order.
 2. `penalties`: `repeat_penalty` r, over the distinct tokens among the last `repeat_last_n` of prompt and answer:
    a positive logit is divided by r, any other multiplied by r. Then `frequency_penalty` × (times generated so far)
    and `presence_penalty` (once, if ever generated) are subtracted; tokens of the prompt do not count.
 3. `dry`: what would make a repetition longer gets a penalty.
 4. The narrowings, in `chain/narrowings`: each keeps some of the candidates. Ties are kept by lowest id; one
    candidate always stays.
 5. `temperature`: logits are divided by it; at 0 the highest logit wins, the lowest id among equals.
 6. One candidate is drawn by inverting the cumulative distribution in order of token id.

With `mirostat`, its own narrowing stands in the place of all others, after the temperature.

Where an answer has a constraint, the tokens that its mask bars are no candidates from the
beginning.

The uniform number of draw n is the first 53 bits of SHA-256(domain ‖ seed ‖ n): it depends on
nothing else, so speculation and batching cannot change an answer, and an auditor can replay it.
Exponentials, logarithms and sums are those of `chain/exact`. Log-probabilities are those of the
model, from the logits before step 0. Values of logits stay in `scratch`. This module knows nothing
of text.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain import allowed, exact
from appliance.engine.decode.chain.candidates import Adjustment, Candidates, Logits, Narrowing
from appliance.engine.decode.chain.dry import Dry
from appliance.engine.decode.chain.guidance import guide
from appliance.engine.decode.chain.mirostat import Mirostat
from appliance.engine.decode.chain.narrowings.table import NARROWINGS
from appliance.engine.decode.chain.ordering import descending, highest
from appliance.engine.decode.chain.penalties import Bias, CountPenalty, Repeats
from appliance.engine.decode.chain.scratch import CHUNK, Scratch
from appliance.engine.decode.chain.sweeping import MOST
from appliance.engine.decode.chain.sweeps.left import SweptCandidates
from appliance.engine.decode.chain.sweeps.tallies import TallyBias, TallyCounts, TallyDry, TallyRepeats
from appliance.engine.decode.chain.temperature import cool
from appliance.errors import EngineError
from appliance.policy.schema.sampling import BY_NAME, PARAMETERS, SAMPLERS, SamplingSettings

_DOMAIN = b"appliance sampler draw v1\0"
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling(SamplingSettings):
    """How to choose tokens. The defaults sample from the model's own distribution."""

    samplers: tuple[str, ...] = SAMPLERS  # in their order; what is left out is off
    dry_breakers: tuple[tuple[int, ...], ...] = ()  # sequences of tokens
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))
    seed: int = 0  # 0 .. 2**64 - 1
    top_logprobs: int | None = None  # None: no log-probabilities; 0: of the chosen token only

    def __post_init__(self) -> None:
        for each in PARAMETERS:
            value = getattr(self, each.name)
            if not each.low <= value <= each.high:  # false for NaN too
                raise EngineError(f"sampling.{each.name} is {value}; allowed: {each.low:g}..{each.high:g}")
        if len(set(self.samplers)) != len(self.samplers) or not set(self.samplers) <= set(SAMPLERS):
            raise EngineError(f"sampling.samplers is not some of: {', '.join(SAMPLERS)}, each once")
        if not all(self.dry_breakers):
            raise EngineError("sampling.dry_breakers has an empty sequence")
        if not 0 <= self.seed < 1 << 64:
            raise EngineError("sampling.seed is out of range; allowed: 0..2^64-1")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise EngineError(f"sampling.top_logprobs is {self.top_logprobs}; allowed: 0..{MAX_TOP_LOGPROBS}")
        if not all(math.isfinite(bias) for bias in self.logit_bias.values()):
            raise EngineError("sampling.logit_bias has a value that is not finite")

    @property
    def guided(self) -> bool:
        """Whether the logits of a negative prompt count."""
        return self.guidance_scale != BY_NAME["guidance_scale"].off

    def as_json(self) -> dict[str, Any]:
        """Everything that a choice depends on but for the seed, as JSON has it."""
        return {each.name: getattr(self, each.name) for each in PARAMETERS} | {
            "samplers": list(self.samplers), "dry_breakers": [list(each) for each in self.dry_breakers],
            "logit_bias": dict(self.logit_bias)}


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """A chosen token, and log-probabilities where they were asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # (token, log-probability), best first


MOST_LAST = 1024
"""The most last tokens that `repeat_penalty` and DRY look at by sweeps: each writes in all pages of a
row, and DRY compares each two of a prompt's."""
_COLDEST = 1e-30  # under sweeps: logits over less overflow, and the largest float32 marks tokens that are barred
Makers = Mapping[str, tuple[Callable[[Sampling, Sequence[int]], Adjustment], ...]]


def _makers(repeats: type[Repeats], counts: type[CountPenalty], dry: type[Dry]) -> Makers:
    """Functions that make the adjustments of an answer, by the names of samplers."""
    return MappingProxyType({
        "penalties": (
            lambda sampling, prompt: repeats(sampling.repeat_penalty, sampling.repeat_last_n, prompt),
            lambda sampling, _prompt: counts(sampling.frequency_penalty, sampling.presence_penalty)),
        "dry": (
            lambda sampling, prompt: dry(sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length,
                                         sampling.dry_penalty_last_n, prompt, sampling.dry_breakers),),
    })


ADJUSTMENTS = _makers(Repeats, CountPenalty, Dry)
SWEPT_ADJUSTMENTS = _makers(TallyRepeats, TallyCounts, TallyDry)
Stage = Callable[[Candidates], None]


class Sampler:
    """The state of one answer's sampling: what was generated so far."""

    def __init__(self, sampling: Sampling, prompt: Sequence[int], vocabulary: int, scratch: Scratch,
                 suppressed: Collection[int] = ()) -> None:
        """`scratch` for as many logits; samplers that choose one after the other may share it.
        `suppressed`: tokens that are never chosen."""
        if any(not 0 <= token < vocabulary for token in sampling.logit_bias):
            raise EngineError(f"sampling.logit_bias names a token outside 0..{vocabulary - 1}")
        if scratch.sweep is not None:
            check_sweeping(sampling)
        self.sampling, self._scratch, self._suppressed = sampling, scratch, suppressed
        self._adjustments: list[Adjustment] = []
        self._mirostat = Mirostat(sampling.mirostat, sampling.mirostat_tau, sampling.mirostat_eta,
                                  vocabulary) if sampling.mirostat else None
        self._chain = tuple(self._stages(prompt))
        self._draws = 0

    def choose(self, logits: Logits, mask: bytes | None = None, negative: Logits | None = None) -> ChosenToken:
        """The next token for `logits` (vocabulary,), among those that have their bit in `mask`
        where there is one; does not change the state, so it can be repeated. `negative`: the
        logits after the negative prompt, where the sampling is guided."""
        if not np.isfinite(logits.max()):
            raise EngineError("the model produced logits that are not numbers",
                              hint="the model file is damaged, or its weights overflow in this format")
        candidates = self._all(logits)
        if mask is not None or self._suppressed:
            candidates.allow(allowed.tokens(logits, mask, self._suppressed, self._scratch))
        if self.sampling.guided:
            if negative is None:
                raise EngineError("guidance_scale needs logits of a negative prompt")
            guide(candidates, negative, self.sampling.guidance_scale)
        for stage in self._chain:
            stage(candidates)
        token = self._draw(candidates)
        if self.sampling.top_logprobs is None:
            return ChosenToken(token)
        return ChosenToken(token, *log_probabilities(logits, token, self.sampling.top_logprobs, self._scratch))

    def _all(self, logits: Logits) -> Candidates:
        """All tokens."""
        sweep = self._scratch.sweep
        return (Candidates(logits, self._scratch, self._uniform) if sweep is None
                else SweptCandidates(logits, self._scratch, sweep, self._uniform))

    def accept(self, token: int) -> None:
        """Record that `token`, which was chosen last, became part of the answer."""
        self._draws += 1
        for each in self._adjustments:
            each.accept(token)
        if self._mirostat is not None:
            self._mirostat.accept()

    def _stages(self, prompt: Sequence[int]) -> Iterator[Stage]:
        """The stages that do something, in their order."""
        sampling, sweeps = self.sampling, self._scratch.sweep is not None
        yield self._adjusting((TallyBias if sweeps else Bias)(sampling.logit_bias))
        greedy = _is_greedy(sampling)
        for name in sampling.samplers:
            if name in ADJUSTMENTS:
                for make in (SWEPT_ADJUSTMENTS if sweeps else ADJUSTMENTS)[name]:
                    yield self._adjusting(make(sampling, prompt))
            elif name in NARROWINGS and not greedy and not sampling.mirostat:
                yield from self._narrowing(name)
            elif name == "temperature" and (sampling.temperature != 1.0 or sampling.dynatemp_range):
                yield functools.partial(cool, temperature=sampling.temperature, spread=sampling.dynatemp_range,
                                        exponent=sampling.dynatemp_exponent)
        if self._mirostat is not None:
            yield self._mirostat.narrow

    def _narrowing(self, name: str) -> Iterator[Stage]:
        count = int(self.sampling.top_k)
        if name == "top_k" and self._scratch.sweep is not None and 1 <= count <= MOST:
            yield functools.partial(_keep_highest, count=count)
        else:
            yield from _narrowing(NARROWINGS[name], self.sampling)

    def _adjusting(self, adjustment: Adjustment) -> Stage:
        """A stage that applies an adjustment of this answer, and a temperature that is due."""
        self._adjustments.append(adjustment)

        def adjust(candidates: Candidates) -> None:
            if candidates.temperature != 1.0:
                candidates.adjustable()
            if adjustment.asks():
                with np.errstate(over="ignore"):
                    adjustment.apply(candidates.adjustable(), candidates.scratch)
                candidates.bound()
        return adjust

    def _draw(self, candidates: Candidates) -> int:
        """Step 6."""
        plain = self._scratch.sweep is None and self._mirostat is None
        if plain and candidates.count == 1 and candidates.ids is not None:
            return candidates.token(0)
        weights = candidates.weights()
        place = invert(weights, self._uniform(_DOMAIN), self._scratch)
        if self._mirostat is not None:
            self._mirostat.drew(candidates, place, exact.total(weights, self._scratch))
        return candidates.token(place)

    def _uniform(self, domain: bytes) -> float:
        block = self.sampling.seed.to_bytes(8, "little") + self._draws.to_bytes(8, "little")
        digest = hashlib.sha256(domain + block).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) * 2.0**-53


def _is_greedy(sampling: Sampling) -> bool:
    """Whether the highest logit wins whatever narrows: so nothing has to."""
    names = sampling.samplers
    if sampling.temperature != 0.0 or "temperature" not in names:
        return False
    narrowing = [name for name in names if name in NARROWINGS and any(_narrowing(NARROWINGS[name], sampling))]
    first = next((index for index, name in enumerate(names) if name in narrowing), len(names))
    return not any(NARROWINGS[name].loses_best for name in narrowing) and not ADJUSTMENTS.keys() & set(names[first:])


def _keep_highest(candidates: Candidates, count: int) -> None:
    """Go on with a short list."""
    if isinstance(candidates, SweptCandidates):
        candidates.keep_highest(count)


def check_sweeping(sampling: Sampling) -> None:
    """EngineError, which names them, for samplers without a form that touches the same pages for
    all tokens."""
    penalised = {"penalties": sampling.repeat_penalty != 1.0 or sampling.frequency_penalty != 0.0
                 or sampling.presence_penalty != 0.0, "dry": sampling.dry_multiplier != 0.0}
    cut, late = False, list[str]()
    for name in sampling.samplers:
        late += [name] if cut and penalised.get(name) else []
        cools = name == "temperature" and (sampling.temperature == 0.0 or sampling.dynatemp_range != 0.0)
        narrows = name in NARROWINGS and not sampling.mirostat and any(_narrowing(NARROWINGS[name], sampling))
        cut |= cools or narrows
    wide = [window for window, sampler, on in (
        ("repeat_last_n", "penalties", sampling.repeat_penalty != 1.0), ("dry_penalty_last_n", "dry", penalised["dry"]))
        if on and sampler in sampling.samplers and not 0 <= getattr(sampling, window) <= MOST_LAST]
    if 0.0 < sampling.temperature < _COLDEST and "temperature" in sampling.samplers:
        raise EngineError(f'privacy.memory_access = "oblivious" goes with no temperature of {sampling.temperature}',
                          code="memory-access", hint=f"ask for 0, or for {_COLDEST} or more")
    if wide:
        raise EngineError(f'privacy.memory_access = "oblivious" goes with no {", ".join(wide)} of -1 (all) or more '
                          f"than {MOST_LAST}", code="memory-access", hint=f"ask for 0 to {MOST_LAST}")
    if late:
        raise EngineError(f'privacy.memory_access = "oblivious" goes with no {", ".join(late)} after samplers that '
                          "drop tokens", code="memory-access", hint="name penalties and dry first among samplers")


def _narrowing(stage: Narrowing, sampling: Sampling) -> Iterator[Stage]:
    """The stage of a narrowing; none where it is off."""
    values = tuple(getattr(sampling, name) for name in stage.parameters)
    if not stage.is_off(values[0]):
        yield lambda candidates: stage.apply(candidates, *values)


def invert(weights: NDArray[np.float64], uniform: float, scratch: Scratch) -> int:
    """The first place up to which the weights make more than the share `uniform` of their sum. Its
    weight is not 0.

    One running sum over a vocabulary takes most of a draw's time, so: over sums of chunks, then
    within one chunk.
    """
    sums = exact.running_sums(weights, scratch)
    if scratch.sweep is not None:
        return scratch.sweep.place(weights, sums, uniform)
    target = uniform * float(sums[-1])
    chunk = _passing(sums, target)
    before = float(sums[chunk - 1]) if chunk else 0.0
    some = weights[chunk * CHUNK:(chunk + 1) * CHUNK]
    return chunk * CHUNK + _passing(np.cumsum(some, out=scratch.wide[:some.size]), target - before)


def _passing(sums: NDArray[np.float64], target: float) -> int:
    """The first place whose running sum is above `target`; where rounding left none, the first with
    the whole sum."""
    return int(np.searchsorted(sums, min(target, math.nextafter(sums[-1], 0.0)), side="right"))


def log_probabilities(logits: Logits, token: int, top: int,
                      scratch: Scratch) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of `token`, and the `top` best (token, log-probability), by a float64
    log-softmax."""
    weights = exact.weights(logits, 1.0, scratch)
    total = float(logits.max()) + exact.ln(exact.total(weights, scratch))
    if scratch.sweep is not None:
        own, best = scratch.sweep.best(logits, token, top)
        return own - total, tuple((int(i), float(logit) - total) for i, logit in best)
    ids = descending(logits, highest(logits, min(top, logits.size), scratch), scratch) if top else ()
    return float(logits[token]) - total, tuple((int(i), float(logits[i]) - total) for i in ids)
