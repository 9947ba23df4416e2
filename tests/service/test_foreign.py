"""llama.cpp in the place of our engine: when, why, and that it answers. Skipped where llama-cpp-python is missing."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from appliance.boot.oneshot import Ask, open_session
from appliance.boot.planning import budget
from appliance.boot.running import load as boot_models
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import PinError, UnsupportedError
from appliance.llamacpp import choice as backends
from appliance.llamacpp.engine import ForeignSource
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.policy import load
from benchmarks import models
from tests.support import server
from tests.support.engines import kernels
from tests.support.logits import logits_of
from tests.support.plain import open_resident

SHAPE = models.Shape(layers=9, width=256, hidden=512, heads=4, kv_heads=2, vocabulary=600)
BUILT = Path("build/bench/llama")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """llama_cpp can be imported: as installed, or the declarations and a build of the benchmarks."""
    if importlib.util.find_spec("llama_cpp") is not None:
        yield
        return
    found = sorted(BUILT.glob("*-native/bin/libllama.so"), reverse=True)  # gcc's first, as pip builds it
    if not found:
        pytest.skip("llama-cpp-python is not installed: pip install 'llama-cpp-python>=0.3.9'")
    package = tmp_path_factory.mktemp("package") / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").touch()
    for path in (BUILT / "source" / "llama_cpp").glob("*.py"):
        if path.name in ("llama_cpp.py", "_ctypes_extensions.py", "_ggml.py"):
            (package / path.name).symlink_to(path.resolve())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_CPP_LIB_PATH", str(found[0].parent.resolve()))
        patch.syspath_prepend(str(package.parent))
        yield
    for name in [name for name in sys.modules if name.startswith("llama_cpp")]:
        del sys.modules[name]


def _model(folder: Path, architecture: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(models.SHAPES, "tiny", SHAPE)
    return models.make("tiny", folder, architecture=architecture)


def test_a_file_in_memory(tmp_path: Path, tiny_model: Path) -> None:
    """What was read and checked is what an engine opens, whatever becomes of the disk; nobody can change it."""
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny_model.read_bytes())
    pin = hashlib.sha256(path.read_bytes()).digest()
    with pytest.raises(PinError):
        ForeignSource(path, bytes(32))
    with closing(ForeignSource(path, pin)) as source:
        path.write_bytes(b"something else")
        assert pin == hashlib.sha256(source.path.read_bytes()).digest() == source.sha256
        with pytest.raises(PermissionError), source.path.open("r+b") as file:
            file.write(b"x")


def test_which_models_are_given_away(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what our engine does not run, only for development, only where the library is there, never sealed."""
    strange = _model(tmp_path, "internlm2", monkeypatch)
    policy = load(server.write_policy(tmp_path, {"tiny": strange})).policy
    [model] = policy.models
    monkeypatch.setattr("appliance.llamacpp.engine.available", lambda: True)
    monkeypatch.setattr("appliance.llamacpp.engine.library", lambda: None)
    assert "internlm2" in str(backends.foreign_reason(model, ModelFile(strange), simulated=True))
    assert None is backends.foreign_reason(model, ModelFile(strange), simulated=False)
    assert None is backends.foreign_reason(model, ModelFile(tiny_model), simulated=True)
    for change in ({"sealed_header_sha256": "0" * 64}, {"streaming_decrypt": True}):
        assert None is backends.foreign_reason(model.model_copy(update=change), ModelFile(strange), simulated=True)
    found = budget.divide(policy, Catalogue({"tiny": strange}), None)
    assert found.reasons["tiny"] == found.shares["tiny"].foreign
    monkeypatch.setattr("appliance.llamacpp.engine.available", lambda: False)
    assert None is budget.divide(policy, Catalogue({"tiny": strange}), None).shares["tiny"].foreign
    with pytest.raises(UnsupportedError, match="internlm2"):
        boot_models.load(model, ModelFile(strange), boot_models.Loading(policy.limits, kernels=kernels()))


@pytest.mark.usefixtures("library")
def test_the_same_model_by_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights under another name: llama.cpp's logits point where ours do."""
    ids = [1, *np.random.default_rng(1).integers(300, 600, 40).tolist()]
    (tmp_path / "ours").mkdir()
    ours = _model(tmp_path / "ours", "llama", monkeypatch)
    with closing(open_resident(ours)) as source, Engine.open(
            source, EngineOptions(threads=1, slots=1), kernels=kernels()) as engine:
        expected = logits_of(engine, ids, last=8)
    theirs = _model(tmp_path, "internlm2", monkeypatch)
    policy = server.write_policy(tmp_path, {"tiny": theirs})
    with open_session(policy, folders=(tmp_path,)) as session:
        found = logits_of(session._running.engine, ids, last=8)
        assert "run by llama.cpp" == session._running.residency
        assert 3 == len(session.run(Ask("w1 w2", raw=True, max_tokens=3, temperature=0, seed=1)).tokens)
    for one, other in zip(expected, found, strict=True):
        assert 0.99 < np.corrcoef(one, other)[0, 1]


@pytest.mark.usefixtures("library")
def test_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service answers with it, inside of its sandbox, and tells why at /health."""
    strange = _model(tmp_path, "internlm2", monkeypatch)
    environment = {"PYTHONPATH": sys.path[0]} if "package" in sys.path[0] else {}
    running = server.Server(server.write_policy(tmp_path, {"tiny": strange}), [strange], environment=environment)
    try:
        running.wait_ready()
        answer = running.client().completions.create(model="tiny", prompt="w1 w2", max_tokens=4)
        assert 4 >= answer.usage.completion_tokens > 0
        with running.http(None) as client:
            assert "run by llama.cpp" in client.get("/health").text
    finally:
        running.stop()
