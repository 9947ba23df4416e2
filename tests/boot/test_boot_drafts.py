"""Draft models at boot: loaded before those they guess for, and refused by name where they do not fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.boot.running import load as models
from appliance.errors import BootError
from appliance.models.catalogue import ModelFile
from appliance.models.file import gguf
from appliance.policy import Policy, load
from appliance.sealing import sealing
from tests.support import memory, server
from tests.support.engines import kernels
from tests.support.environment import unmeasured
from tests.support.require import absent
from tests.support.sealed_models import KEY


def _policy(folder: Path, files: dict[str, Path]) -> Policy:
    """A policy in which "tiny" has the other model for a draft; "tiny" is the first."""
    policy = load(server.write_policy(folder, files)).policy
    second, first = sorted(policy.models, key=lambda model: model.name == "tiny")
    return policy.model_copy(update={"models": (first.model_copy(update={"draft_model": second.name}), second)})


def test_a_draft_is_loaded_first_and_used(tiny_model: Path, tmp_path: Path) -> None:
    """The order is that of need; the engine has a drafter on the draft's weights."""
    policy = _policy(tmp_path, {"tiny": tiny_model, "small": tiny_model})
    assert ["small", "tiny"] == [model.name for model in models.drafts_first(policy.models)]
    small = models.load(policy.models[1], ModelFile(tiny_model), models.Loading(policy.limits, kernels=kernels()))
    tiny = models.load(policy.models[0], ModelFile(tiny_model), models.Loading(
        policy.limits, kernels=kernels(), draft=small))
    assert tiny.engine._helper is not None
    tiny.close()
    small.close()


def test_another_vocabulary_is_refused_by_name(tiny_model: Path, tmp_path: Path) -> None:
    """Both models, the field and the key that differs are named."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes().replace("▁ba".encode(), "▁bA".encode(), 1))
    policy = _policy(tmp_path, {"tiny": tiny_model, "other": other})
    draft = models.load(policy.models[1], ModelFile(other), models.Loading(policy.limits, kernels=kernels()))
    with pytest.raises(BootError, match=r"model tiny, draft_model other: .*tokenizer\.ggml\.tokens") as caught:
        models.load(policy.models[0], ModelFile(tiny_model), models.Loading(
            policy.limits, kernels=kernels(), draft=draft))
    assert "draft-vocabulary" == caught.value.code
    draft.close()


BOOTED = """
import contextlib, sys
from pathlib import Path
from appliance.boot.checks import Operator
from appliance.boot.sequence import prepare
from appliance.policy import load

policy = Path(sys.argv[1])
booted = prepare(load(policy), contextlib.ExitStack(), operator=Operator(log_sink=policy.with_name("log")))
source = booted.models["helper"].source
print(source.plaintext_nbytes - source.alive_limit, flush=True)
sys.stdin.readline()
"""


def test_every_user_of_a_draft_counts_as_plaintext(tiny_model: Path, tmp_path: Path) -> None:
    """Of a draft that must be streamed and has three users, as many copies of vectors are in memory as the bound has
    that is compared with the plaintext budget."""
    body, random = bytearray(tiny_model.read_bytes()), np.random.default_rng(4)
    vectors = [info for info in gguf.parse(bytes(body)).tensors.values() if len(info.shape) == 1]
    for info in vectors:  # other ones than those of its users
        body[info.offset:info.offset + info.nbytes] = random.normal(1, 0.1, info.columns).astype("<f4").tobytes()
    (tmp_path / "helper.gguf").write_bytes(body)
    (tmp_path / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(KEY.hex())
    made = sealing.seal(tmp_path / "helper.gguf", tmp_path / "helper.sealed", KEY, tile_size=16384)
    more = f"""streaming_decrypt = true
      sealed_header_sha256 = "{made.header_sha256.hex()}"
      key {{
        provider = "file"
        path     = "{tmp_path / "key"}"
      }}"""
    policy = server.write_policy(tmp_path, dict.fromkeys("abc", tmp_path / "tiny.gguf"),
                                 model='draft_model = "helper"')
    policy.write_text(policy.read_text() + server.MODEL.format(name="helper", file="helper.sealed",
                                                               sha256=made.sha256.hex(), more=more))
    with subprocess.Popen([sys.executable, "-c", BOOTED, policy], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=unmeasured(), text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        bound = int(child.stdout.readline())
        try:
            found = [memory.count(child.pid, bytes(body[info.offset:info.offset + info.nbytes])) for info in vectors]
        except PermissionError:
            absent("reading another process's memory needs root")
        finally:
            child.stdin.write("\n")
    assert [5] * len(vectors) == found  # as handed out, as its own engine keeps it, and each user
    assert bound == sum(copies * info.nbytes for copies, info in zip(found, vectors, strict=True))
