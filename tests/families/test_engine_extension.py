"""Positions beyond those of a model's file, by the policy's `rope`: as if the file itself had its publisher's keys."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from appliance.cli.main import main
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import UnsupportedError
from appliance.families.extension import Extension
from examples import plain_engine
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of
from tests.support.server import write_policy

IDS = [1, *np.random.default_rng(7).integers(3, family_models.VOCABULARY, 150).tolist()]
KEYS = {"context_length": 512, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128}
SHORT = {"context_length": 128}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """The same weights in a file of 128 positions, and in one whose keys extend them to 512."""
    made = []
    for keys in (SHORT, KEYS):
        monkeypatch.setitem(family_models.MODELS, "qwen3", family_models.MODELS["qwen3"] | keys)
        made.append(family_models.model.__wrapped__("qwen3"))
    short, long = made
    return short, long


def _logits(data: bytes, rope: Extension | None = None) -> tuple[np.ndarray, str, Extension | None]:
    options = EngineOptions(threads=1, slots=1, rope=rope)
    with opened(data) as source, Engine.open(source, options, kernels=kernels()) as engine:
        assert len(IDS) < engine.context == 512
        return logits_of(engine, IDS, last=20), engine.page.arithmetic, engine.rope


def test_the_bits_of_a_file_with_its_publishers_keys(files: tuple[bytes, bytes]) -> None:
    """Beyond the positions of the file, in the engine and in the plain one; its kept pages are others'."""
    short, long = files
    expected, plain_pages, none = _logits(long)
    found, pages, rope = _logits(short, Extension(4.0))
    assert np.array_equal(expected.view(np.uint32), found.view(np.uint32))
    assert (None, Extension(4.0, 128)) == (none, rope)
    assert plain_pages != pages
    plain = plain_engine.Model(short, context=512, rope={"factor": 4.0, "original_context": 128}).logits(IDS, 20)
    assert np.array_equal(plain.view(np.uint32), found.view(np.uint32))


def test_a_file_that_scales_itself_is_refused(files: tuple[bytes, bytes]) -> None:
    """By the name of the policy's field."""
    with opened(files[1]) as source, pytest.raises(UnsupportedError, match="the policy's rope extends the context"):
        Engine.open(source, EngineOptions(threads=1, slots=1, rope=Extension(2.0)), kernels=kernels())


def _policy(folder: Path, file: Path, rope: str) -> Path:
    return write_policy(folder, {"tiny": file}, schema=2, limits="prompt_tokens = 300\ngeneration_tokens = 20",
                        model=f"context_length = 400\n{rope}")


def test_a_policy_extends(files: tuple[bytes, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt that is longer than the file's context is answered, the plain engine agrees, and the plan has room
    for it; without the block the prompt is refused."""
    file, answer = tmp_path / "tiny.gguf", tmp_path / "answer.json"
    file.write_bytes(files[0])
    ask = ["--prompt", "a" * 140, "--raw", "--max-tokens", "6", "--seed", "4", "--json", "--threads", "1"]
    policy = str(_policy(tmp_path, file, "rope {\n    factor = 4.0\n  }"))
    assert 0 == main(["infer", policy, *ask])
    answer.write_text(capsys.readouterr().out)
    assert {"factor": 4.0, "original_context": 128} == json.loads(answer.read_text())["rope"]
    assert 0 == plain_engine.main([str(file), str(answer), "--context", "400"])
    capsys.readouterr()
    sizes = []
    for rope in ("rope {\n    factor = 4.0\n  }", ""):
        policy = str(_policy(tmp_path, file, rope))
        assert 0 == main(["plan-memory", policy, "--json", "--no-speed"])
        sizes.append(json.loads(capsys.readouterr().out)["nbytes"])
    assert sizes[0] > sizes[1]
    assert 2 == main(["infer", policy, *ask])
    assert "the context has 128" in capsys.readouterr().err


def test_check_refuses_it_where_the_file_scales_itself(files: tuple[bytes, bytes], tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is loaded."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(files[1])
    assert 0 == main(["check", str(_policy(tmp_path, file, "rope {\n    factor = 4.0\n  }"))])
    assert "the policy's rope extends the context, but the model's file scales positions" in capsys.readouterr().out


def test_the_digest_has_it(files: tuple[bytes, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another factor is another policy."""
    file = tmp_path / "tiny.gguf"
    file.write_bytes(files[0])
    digests = set()
    for rope in ("", "rope {\n    factor = 2.0\n  }", "rope {\n    factor = 4.0\n  }",
                 "rope {\n    factor = 4.0\n    original_context = 64\n  }"):
        assert 0 == main(["digest", str(_policy(tmp_path, file, rope))])
        digests.add(capsys.readouterr().out)
    assert 4 == len(digests)
