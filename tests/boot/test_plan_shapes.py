"""`appliance plan-memory --shape`: a plan for a model that is not at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.models.file import gguf
from tests.support import server


def _plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert 0 == main(["plan-memory", *words, "--json", "--no-speed", "--memory", "4096"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("how", ["json", "gguf"])
@pytest.mark.parametrize("streaming", ["false", '"auto"'])
def test_a_shape_is_planned_as_its_file(how: str, streaming: str, tmp_path: Path, tiny_model: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    """By what `model inspect --shape` prints, or by the beginning of the file, every line is the same. The file itself
    need not be there."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}, model=f"streaming_decrypt = {streaming}"))
    shape, data = tmp_path / "shape", tiny_model.read_bytes()
    if how == "json":
        assert 0 == main(["model", "inspect", str(tiny_model), "--shape"])
        shape.write_text(capsys.readouterr().out)
    else:
        shape.write_bytes(data[:gguf.parse(data).data_offset])
    expected = _plan(capsys, policy, "--models", str(tiny_model.parent))
    found = _plan(capsys, policy, "--shape", f"tiny={shape}")
    assert (expected["lines"], expected["reasons"]) == (found["lines"], found["reasons"])


def test_a_shape_has_a_speed(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured here with another file; one line says what it takes, what stays encrypted, and how fast it is."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}))
    assert 0 == main(["model", "inspect", str(tiny_model), "--shape"])
    (tmp_path / "shape").write_text(capsys.readouterr().out)
    assert 0 == main(["plan-memory", policy, "--shape", f"tiny={tmp_path / 'shape'}", "--memory", "4096"])
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("tiny: about")]
    assert "tokens/s for one request" in line
    assert line.endswith("and 0 MiB of weights stay encrypted")
    assert ["policy.hcl", "shape"] == sorted(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize(("text", "said"), [
    ("{}", "neither the beginning of a GGUF file nor a shape"), ("x", "nor a shape"),
    ('{"metadata": {}, "tensors": {"a": ["Q9", [1, 2]]}}', "nor a shape"),
    ('{"metadata": {}, "tensors": {"a": ["F32", [0, 2]]}}', "nor a shape"),
    ('{"metadata": {"a": {}}, "tensors": {}}', "nor a shape"),
    ('{"metadata": {"general.architecture": "none"}, "tensors": {"a": ["F32", [2]]}}', "architecture is none"),
    ('{"metadata": {"general.architecture": "llama"}, "tensors": {"a": ["F32", [2]]}}', "llama.block_count"),
    ("GGUF", "the version")])
def test_what_is_no_shape_is_refused(text: str, said: str, tmp_path: Path, tiny_model: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """One error that names the file and what is wrong with it."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}))
    (tmp_path / "shape").write_text(text)
    assert 2 == main(["plan-memory", policy, "--shape", f"tiny={tmp_path / 'shape'}"])
    assert said in capsys.readouterr().err


def test_a_shape_of_no_model(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the policy does not have is refused with those that it has."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}))
    assert 2 == main(["plan-memory", policy, "--shape", "other=x"])
    assert "no model other; it has tiny" in capsys.readouterr().err
