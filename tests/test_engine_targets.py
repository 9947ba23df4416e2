"""Every target that this CPU runs gives the same bits through the whole forward pass."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.kernels import targets
from appliance.engine.kernels.attention_layout import CACHE_FORMATS
from appliance.engine.kernels.table import KernelTable
from tests.support import synthetic
from tests.support.engines import kernels, running

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 299).tolist()]

PROGRAM = """
import sys
from appliance.engine.kernels import table
kernels = table.load(sys.argv[1])
from tests.test_engine_targets import digests
print(*digests(1, kernels))
"""


def digests(threads: int, table: KernelTable) -> list[str]:
    """SHA-256 of the logits with each format of the cache."""
    found = []
    for kind in CACHE_FORMATS:
        with running("mixed", threads=threads, kv_cache=kind, table=table) as engine:
            found.append(hashlib.sha256(engine.logits(IDS).tobytes()).hexdigest())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2"])
def test_same_bits_on_another_target(target):
    """300 positions of a Q4_K and Q6_K model with every format of the cache, in a process for the other target."""
    best = targets.detect().name
    if target == best or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    expected = digests(2, kernels())
    root = Path(__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", PROGRAM, target], cwd=root, capture_output=True, text=True,
                           check=True, timeout=280)
    assert expected == found.stdout.split()
