"""The sampler's exponentials, logarithms and sums: near the truth, and the same bits whatever numpy does."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.errors import EngineError
from appliance.kernels.runtime import targets
from examples import plain_engine
from tests.support import libraries
from tests.support.engines import kernels

EDGES = [0.0, -0.0, -1e-300, 1e-17, -0.34657359027997264, 0.5, 709.0, 710.0, 1e6, -708.0, math.nextafter(-708, -709),
         -745.0, -1e300, -math.inf]


def _samples(count):
    rng = np.random.default_rng(5)
    return np.concatenate([EDGES, -np.abs(rng.normal(0, 60, count)), rng.normal(0, 1, count)])


def test_exponentials_are_near_the_truth():
    """Within one unit in the last place, and 0 where they would be less than e^-708; the twin's bits."""
    x = _samples(3000)
    found = [exact.exp(value) for value in x.tolist()]
    assert found == plain_engine.exp(x).tolist()
    with localcontext() as context:
        context.prec = 40
        for given, power in zip(x.tolist(), found, strict=True):
            if given < -708:
                assert power == 0.0
                continue
            true = Decimal(min(given, 709.0)).exp()
            assert abs(Decimal(power) - true) <= Decimal(math.ulp(power)), given


HOT = [1.0, 0.7, 3.0, 1e-3, 1e-300, 1e300]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 6000])
@pytest.mark.parametrize("temperature", HOT)
def test_weights_are_exponentials(size, temperature):
    """The same bits for a logit alone, among many, and as the plain engine has them; logits stay as they are."""
    logits = np.random.default_rng(size).normal(0, 30, size).astype(np.float32)
    logits[size // 2:size // 2 + 3] = logits[-1:] = -np.inf
    logits[0] = 99.0
    before, scratch = logits.tobytes(), Scratch(size, kernels())
    found = exact.weights(logits, temperature, scratch)
    with np.errstate(over="ignore"):
        x = np.maximum((logits.astype(np.float64) - float(logits.max())) / temperature, -1000.0)
    assert found.tobytes() == plain_engine.exp(x).tobytes()
    assert found.tolist() == [exact.exp(value) for value in x.tolist()]
    assert before == logits.tobytes()


def test_rows_that_no_kernel_may_read_are_refused():
    """Longer than the memory for results, with gaps, or of other numbers."""
    scratch = Scratch(300, kernels())
    with pytest.raises(EngineError, match=r"logits are float32\[513\]; expected float32\[1..512\], without gaps"):
        exact.weights(np.zeros(513, np.float32), 1.0, scratch)
    for row in (np.zeros(300), np.zeros((2, 9), np.float32), np.zeros(40, np.float32)[::2], np.zeros(0, np.float32)):
        with pytest.raises(EngineError, match="logits are"):
            exact.weights(row, 1.0, scratch)
    with pytest.raises(EngineError, match="numbers to be summed up are"):
        exact.total(np.zeros(513), scratch)


def test_logarithms_are_near_the_truth():
    """Within three units in the last place; the twin's bits."""
    rng = np.random.default_rng(6)
    values = [1.0, 0.5, 2.0, 5e-324, 1.7976931348623157e308, math.nextafter(1.0, 0), math.nextafter(1.0, 2),
              *(rng.random(2000) * 10.0 ** rng.uniform(-300, 300, 2000)).tolist(), *rng.uniform(0.5, 2, 2000).tolist()]
    with localcontext() as context:
        context.prec = 40
        for value in values:
            found = exact.ln(value)
            assert abs(Decimal(found) - Decimal(value).ln()) <= 3 * Decimal(math.ulp(found)), value
            assert found == plain_engine.ln(value)
    assert exact.ln(1.0) == 0.0


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1000, 70_001])
def test_sums_are_near_the_truth(size):
    """Against exact fractions; and the bits of the plain engine, of each running sum."""
    values = np.exp(np.random.default_rng(size).normal(0, 9, size))
    scratch = Scratch(size, kernels())
    assert exact.running_sums(values, scratch).tobytes() == plain_engine.sums(values).tobytes()
    found = exact.total(values, scratch)
    assert abs(Fraction(found) / sum(map(Fraction, values.tolist())) - 1) < Fraction(1, 2**48)


ANSWERS = [Sampling(**values, seed=index) for index, values in enumerate([
    {}, {"top_p": 0.9}, {"typical_p": 0.7}, {"tfs_z": 0.9}, {"mirostat": 1}, {"mirostat": 2}, {"eta_cutoff": 30.0},
    {"top_n_sigma": 1.5, "dynatemp_range": 0.5}, {"top_logprobs": 3},
    {"min_p": 0.03, "dry_multiplier": 0.8, "dry_allowed_length": 1}])]


def digest(table):
    """SHA-256 of tokens, log-probabilities, weights and sums as this process computes them with these kernels."""
    rng, scratch, made = np.random.default_rng(8), Scratch(5000, table), hashlib.sha256()
    for temperature in HOT:
        made.update(exact.weights(_samples(2000).clip(-1e30, 9).astype(np.float32), temperature, scratch).tobytes())
    for sampling in ANSWERS:
        sampler = Sampler(sampling, [1, 2, 3], 5000, scratch)
        for _ in range(30):
            logits = rng.normal(0, 3, 5000).astype(np.float32)
            chosen = sampler.choose(logits)
            sampler.accept(chosen.token)
            made.update(f"{chosen} {exact.total(scratch.powers[:700], scratch)!r}".encode())
    return made.hexdigest()


def _elsewhere(target, library, **variables):
    """The digest of a process of its own, with a target's kernels."""
    script = "import sys; from pathlib import Path; from appliance.kernels.runtime import table; " \
             "from tests.engine.decode import test_engine_exact as t; " \
             "print(t.digest(table.load(sys.argv[1], *map(Path, sys.argv[2:]))))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script, target, *library], capture_output=True,
                          env={**os.environ, **variables}, text=True, check=True)
    return done.stdout.strip()


def test_no_cpu_feature_changes_a_bit():
    """With all that numpy has for this CPU, and with nothing but its baseline."""
    best = targets.detect().name
    assert _elsewhere(best, [], NPY_DISABLE_CPU_FEATURES=" ".join(__cpu_dispatch__)) == digest(kernels())


@pytest.mark.guests
@pytest.mark.parametrize("target", ["avx2", "portable"])
def test_no_target_changes_a_bit(target):
    """Weights, sums and tokens with the kernels of other targets."""
    if target == targets.detect().name or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    assert _elsewhere(target, [libraries.library(target)]) == digest(kernels())
