"""Each sampler against llama.cpp's, where it has one: the same candidates stay.

llama.cpp computes in float32, we in float64. So a candidate that lies on the border within its rounding may fall to
the other side; `_settled` says for each sampler what moves the border by one part in 10^5, and a case counts where that
changes nothing. Other differences, which these tests go around:

| sampler | llama.cpp | here | why |
|---|---|---|---|
| penalties | frequency and presence count the prompt, too | count the answer | as OpenAI has them |
| temperature 0 | with `dynatemp_range`, from 0 to that | 0 is greedy | a caller who asks for greedy gets it |
| typical_p | a probability that is 0 in float32 makes the entropy a NaN | adds nothing | a fault of theirs |
| mirostat | penalties and DRY are off with it | they are not | nothing is silently without effect |
| dry | the exponent ends at a whole number, where the power leaves float32 | the power ends there | no answer differs |
| xtc | draws by a Mersenne twister of its own | by the seed and the position | an answer can be replayed |
| tfs_z | is no longer there | as it was | clients send it |
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from appliance.engine.decode.chain.candidates import Candidates
from appliance.engine.decode.chain.dry import Dry
from appliance.engine.decode.chain.mirostat import Mirostat
from appliance.engine.decode.chain.narrowings.table import NARROWINGS
from appliance.engine.decode.chain.penalties import Repeats
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.temperature import cool
from tests.support.engines import kernels
from tests.support.llama_samplers import FLOAT, INT, SIZE, Peer

SCRATCH = Scratch(5000, kernels())


def _candidates(logits):
    return Candidates(logits, SCRATCH, lambda _domain: 0.0)


def _ids(candidates):
    return set(range(candidates.count)) if candidates.ids is None else set(candidates.ids.tolist())


def _kept(name, logits, *values):
    candidates = _candidates(logits)
    candidates.keep(NARROWINGS[name].keep(candidates, *values))
    return _ids(candidates)


def _settled(kept, value):
    """What stays, if the border is not so near that rounding decides; else None."""
    around = [kept(value * (1 + nudge)) for nudge in (-1e-5, 0, 1e-5)]
    return around[1] if around[0] == around[1] == around[2] else None


def _rows(count=4):
    rng = np.random.default_rng(17)
    for size in (1, 2, 10, 100, 1000, 5000):
        for spread in (0.5, 2, 6):
            for _ in range(count):
                yield rng.normal(0, spread, size).astype(np.float32)


NARROWED = {
    "top_k": ([1, 2, 7, 40, 3000], lambda k: Peer("top_k", INT(k))),
    "top_p": ([0.05, 0.3, 0.5, 0.9, 0.95, 0.99], lambda p: Peer("top_p", FLOAT(p), SIZE(1))),
    "min_p": ([0.001, 0.05, 0.1, 0.5, 0.99], lambda p: Peer("min_p", FLOAT(p), SIZE(1))),
    "typ_p": ([0.05, 0.2, 0.5, 0.9, 0.95], lambda p: Peer("typical", FLOAT(p), SIZE(1))),
    "xtc": ([0.01, 0.05, 0.1, 0.3, 0.5], lambda t: Peer("xtc", FLOAT(1), FLOAT(t), SIZE(1), ctypes.c_uint32(1))),
    "top_n_sigma": ([0.1, 0.5, 1.0, 1.9, 3.0], lambda n: Peer("top_n_sigma", FLOAT(n))),
}


@pytest.mark.parametrize("name", NARROWED)
def test_the_same_candidates_stay(name):
    """Over sizes, spreads and values; next to none lie on a border."""
    values, peer = NARROWED[name]
    cases = near = 0
    for value in values:
        for logits in _rows():
            theirs = set(peer(value).apply(logits).logits)
            ours = (_kept(name, logits, value) if isinstance(value, int) else
                    _settled(lambda v, logits=logits: _kept(name, logits, *([1.0] if name == "xtc" else []), v), value))
            if name == "typ_p" and logits.size == 5000 and ours is not None and len(ours ^ theirs) == 2:
                ours = None  # two neighbours, whose order an entropy in float32 turns around
            cases, near = cases + 1, near + (ours is None)
            assert ours is None or ours == theirs, (value, logits.size)
    assert near <= cases // 20


@pytest.mark.parametrize(("temperature", "spread", "exponent"), [
    (0.7, 0.0, 1.0), (1.0, 0.5, 1.0), (0.4, 0.9, 1.0), (1.5, 0.5, 0.5), (1.0, 0.8, 2.0)])
def test_the_same_temperature(temperature, spread, exponent):
    """The differences of logits are divided by the same number, which may follow the entropy."""
    for logits in _rows(2):
        candidates = _candidates(logits)
        cool(candidates, temperature, spread, exponent)
        left = Peer("temp_ext", FLOAT(temperature), FLOAT(spread), FLOAT(exponent)).apply(logits).logits
        high, low = int(logits.argmax()), int(logits.argmin())
        expected = float(logits[high]) - float(logits[low])
        if high != low:
            assert left[high] - left[low] == pytest.approx(expected / candidates.temperature, rel=1e-4)


def test_repetitions_are_penalised_alike():
    """With `repeat_penalty` alone, over the last tokens of prompt and answer."""
    rng = np.random.default_rng(3)
    for last, penalty in ((1, 1.1), (8, 1.5), (64, 0.8), (64, 2.0)):
        tokens = rng.integers(0, 30, 40).tolist()
        logits = rng.normal(0, 3, 50).astype(np.float32)
        peer = Peer("penalties", INT(50), INT(last), FLOAT(penalty), FLOAT(0), FLOAT(0))  # of a vocabulary of 50
        peer.accept(tokens)
        ours, changed = Repeats(penalty, last, tokens), logits.copy()
        ours.apply(changed, SCRATCH)
        theirs = peer.apply(logits).logits
        assert [pytest.approx(theirs[i], rel=1e-6) for i in range(50)] == changed.tolist()


@pytest.mark.parametrize("breakers", [(), ((3,),), ((3,), (1, 2)), ((0, 1, 1), (0,), (2,))])
@pytest.mark.parametrize("last", [-1, 5, 40])
def test_dry_penalties_are_alike(breakers, last):
    """The same tokens get the same penalties, as an answer grows."""
    rng, penalised = np.random.default_rng(9), 0
    for multiplier, base, allowed in ((0.8, 1.75, 2), (5.0, 1.0, 1), (1.0, 3.0, 0)):
        tokens = rng.integers(0, 4, 120).tolist()
        peer, ours = Peer.dry(multiplier, base, allowed, 1000 if last < 0 else last, breakers), Dry(
            multiplier, base, allowed, last, tokens[:60], breakers)
        peer.accept(tokens[:60])
        for token in tokens[60:]:
            logits = rng.normal(0, 3, 6).astype(np.float32)
            changed = logits.copy()
            if ours.asks():
                ours.apply(changed, SCRATCH)
            theirs = peer.apply(logits).logits
            assert [pytest.approx(theirs[i], rel=1e-5, abs=1e-4) for i in range(6)] == changed.tolist()
            penalised += int((changed != logits).sum())
            peer.accept([token])
            ours.accept(token)
    assert penalised > 0


@pytest.mark.parametrize("version", [1, 2])
def test_mirostat_keeps_the_same(version):
    """The same candidates over thirty tokens of an answer, which llama.cpp draws: its state is ours."""
    rng = np.random.default_rng(4)
    for target, rate in ((3.0, 0.1), (5.0, 0.3)):
        size = 1000
        peer = (Peer("mirostat", INT(size), ctypes.c_uint32(5), FLOAT(target), FLOAT(rate), INT(100)) if version == 1
                else Peer("mirostat_v2", ctypes.c_uint32(5), FLOAT(target), FLOAT(rate)))
        ours = Mirostat(version, target, rate, size)
        for _ in range(30):
            logits = rng.normal(0, 3, size).astype(np.float32)
            left, candidates = peer.apply(logits), _candidates(logits)
            ours.narrow(candidates)
            kept = _ids(candidates)
            assert len(kept ^ set(left.logits)) <= len(kept) // 200  # on the border
            weights = candidates.weights()
            place = sorted(kept).index(left.chosen)
            ours.drew(candidates, place, float(weights.sum()))
            ours.accept()
