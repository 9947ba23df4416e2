"""Draft models at boot: loaded before those they guess for, and refused by name where they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.boot import models
from appliance.errors import BootError
from appliance.policy import Policy, load
from tests.support import server
from tests.support.engines import kernels


def _nothing(done: int, total: int) -> None:
    pass


def _policy(folder: Path, files: dict[str, Path]) -> Policy:
    """A policy in which "tiny" has the other model for a draft; "tiny" is the first."""
    policy = load(server.write_policy(folder, files)).policy
    second, first = sorted(policy.models, key=lambda model: model.name == "tiny")
    return policy.model_copy(update={"models": (first.model_copy(update={"draft_model": second.name}), second)})


def test_a_draft_is_loaded_first_and_used(tiny_model: Path, tmp_path: Path) -> None:
    """The order is that of need; the engine has a drafter on the draft's weights."""
    policy = _policy(tmp_path, {"tiny": tiny_model, "small": tiny_model})
    assert ["small", "tiny"] == [model.name for model in models.drafts_first(policy.models)]
    small = models.load(policy.models[1], policy.limits, tiny_model, None, _nothing, kernels=kernels())
    tiny = models.load(policy.models[0], policy.limits, tiny_model, None, _nothing, kernels=kernels(), draft=small)
    assert tiny.engine._drafter is not None
    tiny.close()
    small.close()


def test_another_vocabulary_is_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    """Both models, the field and the key that differs are named."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes().replace("▁ba".encode(), "▁bA".encode(), 1))
    policy = _policy(tmp_path, {"tiny": tiny_model, "other": other})
    draft = models.load(policy.models[1], policy.limits, other, None, _nothing, kernels=kernels())
    with pytest.raises(BootError, match=r"model tiny, draft_model other: .*tokenizer\.ggml\.tokens") as caught:
        models.load(policy.models[0], policy.limits, tiny_model, None, _nothing, kernels=kernels(), draft=draft)
    assert "draft-vocabulary" == caught.value.code
    draft.close()
