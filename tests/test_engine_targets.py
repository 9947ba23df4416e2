"""Every target that this CPU runs gives the same bits through the whole forward pass."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.kernels import targets
from tests.support import synthetic
from tests.support.engines import running

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 299).tolist()]

PROGRAM = """
import hashlib, sys
from appliance.engine.kernels import table
kernels = table.load(sys.argv[1])
from appliance.engine.engine import Engine
from tests.support.engines import opened, synthetic_model
from tests.test_engine_targets import IDS
with opened(synthetic_model("mixed")) as source, Engine.open(source, threads=1, kernels=kernels) as engine:
    print(hashlib.sha256(engine.logits(IDS).tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2"])
def test_same_bits_on_another_target(target):
    """300 positions of a Q4_K and Q6_K model, in a process that compiles for the other target."""
    best = targets.detect().name
    if target == best or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    with running("mixed", threads=2) as engine:
        expected = hashlib.sha256(engine.logits(IDS).tobytes()).hexdigest()
    root = Path(__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", PROGRAM, target], cwd=root, capture_output=True, text=True,
                           check=True, timeout=280)
    assert expected == found.stdout.strip()
