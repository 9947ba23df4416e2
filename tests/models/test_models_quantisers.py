"""The test suite's own quantisers: a decoder must give back what they wrote, within a step of the format."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.models.file.quants import FORMATS
from tests.support.decoders import dequantise
from tests.support.quantisers import quantise

# the largest error allowed, as a share of the largest weight
STEPS = {"F32": 0.0, "F16": 1e-3, "BF16": 8e-3, "Q8_0": 5e-3, "Q8_1": 5e-3, "Q6_K": 0.035, "Q5_1": 0.035, "Q5_0": 0.07,
         "Q5_K": 0.05, "Q4_1": 0.07, "Q4_0": 0.13, "Q4_K": 0.1, "Q3_K": 0.26, "Q2_K": 0.5,
         "IQ4_NL": 0.13, "IQ4_XS": 0.14, "MXFP4": 0.26}


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_gives_back_the_weights(name: str) -> None:
    """Normally distributed weights, and rows of zeros, survive within the format's step."""
    weights = np.random.default_rng(3).normal(size=(8, 512)).astype(np.float32)
    weights[3] = 0
    weights[5, :256] *= 100
    decoded = dequantise(FORMATS[name], quantise(name, weights), 8, 512)
    for row in (slice(0, 3), slice(3, 4), slice(6, 8)):
        error = np.abs(decoded[row] - weights[row]).max()
        assert error <= STEPS[name] * np.abs(weights[row]).max()
