"""Every target that this CPU runs gives the same bits through the whole forward pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from appliance.engine.kernels import targets
from tests.support.engines import kernels, synthetic_model
from tests.support.forward_bits import digests


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2"])
def test_same_bits_on_another_target(target, tmp_path):
    """300 positions of a Q4_K and Q6_K model with every format of the cache, in a process for the other target."""
    best = targets.detect().name
    if target == best or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    model = tmp_path / "mixed.gguf"
    model.write_bytes(synthetic_model("mixed"))
    expected = digests(model, 2, kernels())
    found = subprocess.run([sys.executable, "-m", "tests.support.forward_bits", model, target],
                           cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True, timeout=280)
    assert expected == found.stdout.split()
