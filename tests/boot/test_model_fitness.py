"""Whether a model file can run here: every command says so at once, with the decisive reason, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.boot import checks
from appliance.boot.planning import fitness, forecast
from appliance.cli.main import main
from appliance.errors import BootError
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.models.file import gguf_kind
from appliance.policy import load
from appliance.text.template import ChatTemplate
from tests.support.server import write_policy
from tests.support.unfit_files import CUT, UNFIT

ALL = UNFIT | CUT


def _policy(folder: Path, data: bytes) -> Path:
    """A policy in a folder, with its model's file beside it."""
    path = folder / "m.gguf"
    path.write_bytes(data)
    return write_policy(folder, {"tiny": path})


@pytest.mark.parametrize("name", ALL)
def test_the_decisive_reason(name: str, tmp_path: Path) -> None:
    """What kind of file it is comes before its architecture, this before features, tensors, tokenizer and template."""
    data, words = ALL[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refusal = forecast.of_file(path).refusal
    assert refusal is not None
    assert words in refusal.summary
    assert refusal.hint


@pytest.mark.parametrize("name", UNFIT)
def test_inspect_and_pin_say_so(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect` prints all that it knows, and that the file does not run; `pin` prints the pin and warns."""
    data, words = UNFIT[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    assert 0 == main(["model", "inspect", str(path), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert not found["runs"]
    assert words in found["reason"]
    assert 0 == main(["model", "inspect", str(path)])
    assert f"{'runs here':<16}no: {found['reason']}" in capsys.readouterr().out
    assert 0 == main(["model", "pin", str(path), "--json"])
    output = capsys.readouterr()
    assert (False, found["reason"]) == tuple(json.loads(output.out)[key] for key in ("runs", "reason"))
    assert output.err.startswith(f"note: this file cannot run here: {found['reason']}\n")


def test_inspect_knows_formats_that_do_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The block formats of a file are listed also where one of them does not run here."""
    path = tmp_path / "m.gguf"
    path.write_bytes(UNFIT["iq3_s"][0])
    assert 0 == main(["model", "inspect", str(path), "--json"])
    assert [["IQ3_S", 1, 256, 110]] == [list(each.values()) for each in json.loads(capsys.readouterr().out)["formats"]]


@pytest.mark.parametrize("name", ALL)
def test_check_warns_where_the_file_is_at_hand(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy is valid whatever its files are; a warning at the model's file says that it cannot run, and why."""
    data, words = ALL[name]
    policy = _policy(tmp_path, data)
    assert 0 == main(["check", str(policy), "--json"])
    [warning] = [each for each in json.loads(capsys.readouterr().out)["diagnostics"] if each["code"] == "model-file"]
    assert ("warning", 'model "tiny".file') == (warning["severity"], warning["path"])
    assert words in warning["summary"]
    assert "m.gguf" in warning["source"]


def test_check_looks_where_it_is_told(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are looked for beside the policy and in `--models`; one that runs, or is not there, is no finding."""
    policy = write_policy(tmp_path, {"tiny": tiny_model})
    assert 0 == main(["check", str(policy), "--models", str(tiny_model.parent)])
    assert f"{policy}: valid, schema 1; this version boots it\n" == capsys.readouterr().out
    other = tmp_path / "other"
    other.mkdir()
    (other / tiny_model.name).write_bytes(UNFIT["kimi-linear"][0])
    assert 0 == main(["check", str(policy), "--models", str(other)])
    said = capsys.readouterr().out
    assert "architecture is kimi-linear" in said
    assert (f"{policy}: valid, schema 1 (1 warning); this version boots it, but not with 1 of the model files that are "
            "here") == said.splitlines()[0]


@pytest.mark.parametrize("name", ALL)
def test_plan_memory_makes_no_plan(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot run has no memory and no speed: exit code 2, as for one that is missing."""
    data, words = ALL[name]
    assert 2 == main(["plan-memory", str(_policy(tmp_path, data))])
    output = capsys.readouterr()
    assert "" == output.out
    assert words in output.err
    assert "model tiny: " in output.err


@pytest.mark.parametrize("name", ALL)
def test_the_boot_says_so_first(name: str, tmp_path: Path) -> None:
    """The boot's first step names it, before memory, self-test or pin."""
    data, words = ALL[name]
    loaded = load(_policy(tmp_path, data))
    with pytest.raises(BootError) as caught:
        checks.check(loaded, checks.Operator(), Catalogue({"tiny": tmp_path / "m.gguf"}))
    assert caught.value.summary.startswith(f"model tiny: {tmp_path}/m.gguf: ")
    assert words in caught.value.summary
    assert "memory:" not in caught.value.summary


@pytest.mark.parametrize("name", [
    "kimi-linear", "adapter", "second of two parts", "heads of 100", "kimi-linear cut short"])
def test_infer_says_so_first(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is compiled or loaded for a file that cannot run."""
    data, words = ALL[name]
    assert 2 == main(["infer", str(_policy(tmp_path, data)), "--prompt", "x"])
    said = capsys.readouterr().err
    assert said.startswith(f"error[model-unsupported]: model tiny: {tmp_path}/m.gguf: ")
    assert words in said


def test_draft_models_are_looked_at_too(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A draft model that cannot run is named as the model that it is."""
    (tmp_path / "draft.gguf").write_bytes(UNFIT["draft head"][0])
    (tmp_path / "tiny.gguf").write_bytes(tiny_model.read_bytes())
    policy = write_policy(tmp_path, {"tiny": tmp_path / "tiny.gguf", "small": tmp_path / "draft.gguf"})
    policy.write_text(policy.read_text().replace('file   = "tiny.gguf"', 'draft_model = "small"\n  file = "tiny.gguf"'))
    for words in (["plan-memory"], ["infer", "--model", "tiny", "--prompt", "x"]):
        assert 2 == main([words[0], str(policy), *words[1:]])
        said = capsys.readouterr().err
        assert "model small: " in said
        assert "a draft head" in said


def test_sealed_files_are_looked_at_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sealing a file that cannot run says so before the work; inspecting and pinning the sealed one say it again."""
    path, out, key = (str(tmp_path / name) for name in ("m.gguf", "m.sealed", "k"))
    Path(path).write_bytes(UNFIT["kimi-linear"][0])
    assert 0 == main(["model", "key", key])
    for words in (["seal", path, "-o", out, "--key", key], ["pin", out], ["inspect", out]):
        capsys.readouterr()
        assert 0 == main(["model", *words])
        output = capsys.readouterr()
        assert "architecture is kimi-linear" in (output.out if words[0] == "inspect" else output.err)


def test_a_model_that_runs(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect` says that it runs, and `pin` prints nothing else."""
    assert 0 == main(["model", "inspect", str(tiny_model), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (True, None, []) == (found["runs"], found["reason"], found["warnings"])
    assert 0 == main(["model", "pin", str(tiny_model)])
    assert "" == capsys.readouterr().err


def test_the_template_comes_last(tmp_path: Path, tiny_model: Path) -> None:
    """A policy's broken template is a reason of its own, once everything else runs."""
    header = fitness.header(ModelFile(tiny_model))
    assert forecast.of_header(header).runs
    refusal = forecast.of_header(header, template="{{ messages.nothing.more }}").refusal
    assert refusal is not None
    assert "no chat can be put into the model's template" in refusal.summary


@pytest.mark.parametrize(("metadata", "tensors"), [
    ({}, None), ({"general.type": "model"}, 3), ({"general.type": "model", "split.count": 1, "split.no": 0}, 3),
    ({"split.count": 0}, 3), ({"general.architecture": "bertrand"}, 3), ({"tokenizer.ggml.tokens": ["a"]}, None)])
def test_what_may_be_a_model(metadata: dict[str, Any], tensors: int | None) -> None:
    """A whole model is not taken for another kind, nor one that says nothing."""
    gguf_kind.check(metadata, tensors)


def test_no_template_is_no_reason(tiny_model: Path) -> None:
    """A base model runs."""
    assert ChatTemplate.of_model(fitness.header(ModelFile(tiny_model)).metadata) is None
    assert forecast.of_file(tiny_model).runs
