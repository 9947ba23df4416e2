"""Every target that this CPU runs gives the same bits through the whole forward pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.kernels.runtime import targets
from appliance.models.file import gguf
from appliance.models.file.quants import FORMATS
from tests.support import any_models, family_models, libraries
from tests.support.engines import kernels, synthetic_model
from tests.support.forward_bits import digests

ANY = (5, 11, 25)
"""Seeds: matrices of every type are among them."""
STATES = ("lfm2", "qwen35", "granitehybrid")


@pytest.mark.guests
@pytest.mark.parametrize("target", ["avx2"])
def test_same_bits_on_another_target(target, tmp_path):
    """300 positions of a Q4_K and Q6_K model, of models of any dimensions, and of models with states, with every format
    of the cache, in a process for the other target."""
    best = targets.detect().name
    if target == best or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    assert set(FORMATS) == {tensor.format.name for seed in ANY
                            for tensor in gguf.parse(any_models.model(seed)).tensors.values() if len(tensor.shape) == 2}
    models = []
    for data in (synthetic_model("mixed"), *map(any_models.model, ANY), *map(family_models.model, STATES)):
        models.append(tmp_path / f"{len(models)}.gguf")
        models[-1].write_bytes(data)
    expected = [digest for model in models for digest in digests(model, 2, kernels())]
    command = [sys.executable, "-m", "tests.support.forward_bits", target, libraries.library(target), *models]
    found = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert expected == found.stdout.split()
