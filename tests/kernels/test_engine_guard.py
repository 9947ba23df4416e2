"""A debug build of the kernels: the same bits, and what would leave its memory is refused inside the kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.engine.engine import Engine, EngineOptions
from tests.support import debug_pass, family_models, step_tables
from tests.support.engines import kernels, opened, synthetic_model
from tests.support.environment import children_unmeasured

pytest.importorskip("numba")


@pytest.mark.guests  # kernels of another build
@pytest.mark.parametrize("kind", ["q8"])
def test_debug_build(kind):
    """A whole pass has the bits of the release build; each spoiled word is found as what it is, and nothing is hurt."""
    with children_unmeasured():
        done = subprocess.run([sys.executable, "-m", "tests.support.debug_pass", kind], cwd=Path(__file__).parents[2],
                              capture_output=True, text=True, check=False)
    assert 0 == done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert ("jit", True) == (found["origin"], found["debug"])
    with opened(synthetic_model(debug_pass.MODEL)) as source, Engine.open(
            source, EngineOptions(context_length=debug_pass.CONTEXT, slots=2, threads=1, kv_cache=kind),
            kernels=kernels()) as engine:
        assert debug_pass.digest(engine) == found["digest"]
    assert ["none", "weight, by a kernel"] == found["fetched"]
    assert ["nothing"] == found["packed"]
    expected = {name: fault for name, (_, _, _, fault) in debug_pass.SPOILED.items()}
    assert expected | {"nothing": "none"} == found["faults"]
    expected = {name: fault for name, (_, _, _, fault) in debug_pass.SPOILED_EXPERTS.items()}
    with opened(family_models.model(debug_pass.MIXTURE)) as source, Engine.open(
            source, EngineOptions(context_length=128, slots=1, threads=1), kernels=kernels()) as engine:
        assert debug_pass.mixture_digest(engine) == found["mixture"]["digest"]
    assert expected == found["mixture"]["faults"]
    for model, words in debug_pass.SPOILED_STATES.items():
        with opened(family_models.model(model)) as source, Engine.open(
                source, EngineOptions(context_length=128, slots=1, threads=1), kernels=kernels()) as engine:
            assert debug_pass.state_digest(engine) == found["states"][model]["digest"]
        assert {name: fault for name, (_, _, _, fault) in words.items()} == found["states"][model]["faults"]


def test_every_fault_is_tried():
    """The words that are spoiled show every fault there is."""
    assert step_tables.FAULTS == {fault for _, _, _, fault in debug_pass.SPOILED.values()}
