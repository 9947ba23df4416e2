"""A debug build of the kernels: the same bits, and what would leave its memory is refused inside the kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.engine.engine import Engine
from appliance.engine.kernels.boundary import Ranges
from appliance.engine.kernels.step_layout import FAULTS
from appliance.errors import EngineError
from tests.support import debug_pass
from tests.support.engines import kernels, opened, synthetic_model

pytest.importorskip("numba")

REFUSED = "a kernel refused what is outside of its range: "


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["q8"])
def test_debug_build(kind):
    """A whole pass has the bits of the release build; each spoiled word is found as what it is, and nothing is hurt."""
    done = subprocess.run([sys.executable, "-m", "tests.support.debug_pass", kind], cwd=Path(__file__).parents[1],
                          capture_output=True, text=True, check=False, timeout=280)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert ("jit", True) == (found["origin"], found["debug"])
    with opened(synthetic_model(debug_pass.MODEL)) as source, Engine.open(
            source, context_length=debug_pass.CONTEXT, slots=2, threads=1, kernels=kernels(), kv_cache=kind) as engine:
        assert debug_pass.digest(engine) == found["digest"]
    assert ["none", REFUSED + "weight"] == found["fetched"]
    assert ["nothing"] == found["packed"]
    assert {name: REFUSED + fault
            for name, (_, _, _, fault) in debug_pass.SPOILED.items()} == found["faults"]


def test_every_fault_is_tried():
    """The words that are spoiled show every fault there is."""
    assert set(FAULTS) - {"none"} == {fault for _, _, _, fault in debug_pass.SPOILED.values()}


@pytest.mark.parametrize(("address", "nbytes"), [(0, 8), (-64, 8), (64, 0), (64, -1)])
def test_ranges_that_are_none(address, nbytes):
    """Null, negative and empty ranges are refused."""
    with pytest.raises(EngineError):
        Ranges().add(address, nbytes, 1)
