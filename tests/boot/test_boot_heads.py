"""A layer that guesses, at boot: loaded where the policy asks for it, and refused by name where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.boot.planning import footprint
from appliance.boot.running import load as models
from appliance.errors import EngineError
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.policy import load
from tests.support import guess_models, server
from tests.support.engines import kernels


def test_it_is_loaded_and_counted(tmp_path: Path) -> None:
    """`plan-memory` counts its weights, its keys and values, and logs of guesses."""
    path = tmp_path / "m.gguf"
    path.write_bytes(guess_models.model())
    policy = load(server.write_policy(tmp_path, {"tiny": path})).policy
    plain, model = policy.models[0], policy.models[0].model_copy(update={"speculation": "heads"})
    found, less = (footprint.read(each, policy, Catalogue({"tiny": path})) for each in (model, plain))
    assert found.weights > less.weights
    assert found.cache(2) > less.cache(2)
    assert found.activations(32, 1) > less.activations(32, 1)
    running = models.load(model, ModelFile(path), models.Loading(policy.limits, kernels=kernels(), threads=1))
    helper, cache = running.engine._helper, running.engine._cache
    own = cache.nbytes + cache.states.nbytes + helper._cache.nbytes
    assert abs(found.cache(running.engine.slots) - own) <= 0.03 * own
    running.close()


def test_a_file_without_one_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    """The model and the fix are named."""
    policy = load(server.write_policy(tmp_path, {"tiny": tiny_model})).policy
    model = policy.models[0].model_copy(update={"speculation": "heads"})
    with pytest.raises(EngineError, match="model tiny: the model has no layer that guesses") as caught:
        models.load(model, ModelFile(tiny_model), models.Loading(policy.limits, kernels=kernels(), threads=1))
    assert caught.value.code == "guess-head"
