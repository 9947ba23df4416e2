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
from appliance.engine.decode.chain.scratch import BLOCK, Scratch
from appliance.engine.decode.sampler import Sampler, Sampling
from examples import plain_engine

EDGES = [0.0, -0.0, -1e-300, 1e-17, -0.34657359027997264, 0.5, 709.0, 710.0, 1e6, -708.0, math.nextafter(-708, -709),
         -745.0, -1e300, -math.inf]


def _samples(count):
    rng = np.random.default_rng(5)
    return np.concatenate([EDGES, -np.abs(rng.normal(0, 60, count)), rng.normal(0, 1, count)])


def test_exponentials_are_near_the_truth():
    """Within one unit in the last place, and 0 where they would be less than e^-708."""
    x = _samples(3000)
    scratch = Scratch(x.size)
    found = exact.exponentials(x.copy(), scratch.powers, scratch)
    with localcontext() as context:
        context.prec = 40
        for given, power in zip(x.tolist(), found.tolist(), strict=True):
            if given < -708:
                assert power == 0.0
                continue
            true = Decimal(min(given, 709.0)).exp()
            assert abs(Decimal(power) - true) <= Decimal(math.ulp(power)), given


def test_one_by_one_in_blocks_and_in_the_twin():
    """The same bits for a number alone, in a block of many, and as the plain engine has them."""
    x = np.tile(_samples(3000), 6)
    assert 2 * BLOCK < x.size
    scratch = Scratch(x.size)
    found = exact.exponentials(x.copy(), scratch.powers, scratch)
    assert found.tobytes() == plain_engine.exp(x).tobytes()
    assert found[:6000].tolist() == [exact.exp(value) for value in x[:6000].tolist()]


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
    """Against exact fractions; and the bits of the plain engine."""
    values = np.exp(np.random.default_rng(size).normal(0, 9, size))
    scratch = Scratch(size)
    found = exact.total(values, scratch)
    assert found == plain_engine.total(values)
    assert abs(Fraction(found) / sum(map(Fraction, values.tolist())) - 1) < Fraction(1, 2**48)


ANSWERS = [Sampling(**values, seed=index) for index, values in enumerate([
    {}, {"top_p": 0.9}, {"typical_p": 0.7}, {"tfs_z": 0.9}, {"mirostat": 1}, {"mirostat": 2}, {"eta_cutoff": 30.0},
    {"top_n_sigma": 1.5, "dynatemp_range": 0.5}, {"min_p": 0.03, "dry_multiplier": 0.8, "dry_allowed_length": 1}])]


def digest():
    """SHA-256 of tokens, log-probabilities and exponentials as this process computes them."""
    rng, scratch, made = np.random.default_rng(8), Scratch(5000), hashlib.sha256()
    made.update(exact.exponentials(_samples(2000), scratch.powers, scratch).tobytes())
    for sampling in ANSWERS:
        sampler = Sampler(sampling, [1, 2, 3], 5000, scratch)
        for _ in range(30):
            logits = rng.normal(0, 3, 5000).astype(np.float32)
            token = sampler.choose(logits).token
            sampler.accept(token)
            made.update(f"{token} {exact.total(scratch.powers[:700], scratch)!r}".encode())
    return made.hexdigest()


def test_no_cpu_feature_changes_a_bit():
    """With all that numpy has for this CPU, and with nothing but its baseline."""
    script = "from tests.engine.decode import test_engine_exact as t; print(t.digest())"
    environment = {**os.environ, "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__)}
    plain = subprocess.run([sys.executable, "-W", "ignore", "-c", script], env=environment, capture_output=True,
                           text=True, check=True)
    assert plain.stdout.strip() == digest()
