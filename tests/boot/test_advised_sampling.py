"""The sampling that a model's file advises (`general.sampling.*`), as `appliance model pin` prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from appliance.boot.planning import advice
from appliance.cli.main import main
from appliance.policy.explaining.checking import check_bytes
from tests.support import family_models
from tests.support.ggufs import F32, I32, STRING, kv
from tests.support.server import write_policy

# As llama.cpp's converter writes Qwen3's and Magistral's, and a file that says all it can.
ADVISED: dict[str, Any] = {
    "temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_repeat": 1.05, "penalty_last_n": 64,
    "xtc_probability": 0.5, "xtc_threshold": 0.2, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.25,
    "sequence": "penalties;top_k;top_p;min_p;xtc;temperature"}
READ = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "repeat_penalty": 1.05, "repeat_last_n": 64,
        "xtc_probability": 0.5, "xtc_threshold": 0.2, "mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.25,
        "samplers": "penalties;top_k;top_p;min_p;xtc;temperature"}


def _file(folder: Path, advised: dict[str, Any]) -> Path:
    kinds = {int: I32, float: F32, str: STRING}
    path = folder / "m.gguf"
    path.write_bytes(family_models.model("llama", more=tuple(
        kv(f"general.sampling.{key}", kinds[type(value)], value) for key, value in advised.items())))
    return path


def test_pin_prints_the_block(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers as their makers wrote them, though files have 32 bits; a policy takes the printed block."""
    path = _file(tmp_path, ADVISED)
    assert 0 == main(["model", "pin", str(path)])
    printed = capsys.readouterr().out
    assert "\n  sampling { # as the file advises\n    bound \"temperature\" { default = 0.6 }\n" in printed
    assert '    bound "xtc_probability" { default = 0.5 }\n' in printed
    written = write_policy(tmp_path, {"m": path}, schema=2).read_text()
    begin = written.index("model ")
    found = check_bytes((written[:begin] + printed + written[written.index("\n}\n", begin) + 3:]).encode())
    assert found.valid, found.diagnostics
    sampling = found.policy.models[0].sampling
    assert READ == {name: sampling.samplers if name == "samplers" else sampling.bound(name).default for name in READ}


def test_a_sealed_file_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """When it is sealed, and when its pins are printed."""
    monkeypatch.chdir(tmp_path)
    path = _file(tmp_path, ADVISED)
    assert 0 == main(["model", "key", "k"])
    for words in (["seal", str(path), "-o", "m.sealed", "--key", "k"], ["pin", "m.sealed"]):
        assert 0 == main(["model", *words])
        printed = capsys.readouterr().out
        assert '  sampling { # as the file advises\n    bound "temperature" { default = 0.6 }\n' in printed


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the names of the policy; nothing where the file advises nothing."""
    for advised, expected in ((ADVISED, READ), ({}, {})):
        assert 0 == main(["model", "pin", "--json", str(_file(tmp_path, advised))])
        assert expected == json.loads(capsys.readouterr().out)["sampling"]
    assert 0 == main(["model", "pin", str(tmp_path / "m.gguf")])
    assert "sampling" not in capsys.readouterr().out


@pytest.mark.parametrize("advised", [
    {"temp": 9.0}, {"temp": float("nan")}, {"temp": "hot"}, {"top_k": -1}, {"top_k": 20.5}, {"top_p": True},
    {"penalty_last_n": -1}, {"mirostat": 7}, {"sequence": "top_k;brand_new"}, {"sequence": "top_k;top_k"},
    {"sequence": ""}, {"sequence": 3}, {"other": 1}])
def test_what_a_policy_could_not_say_is_left_out(advised: dict[str, Any]) -> None:
    """Values beyond the default bounds, of another kind, and samplers that are not known."""
    assert {} == advice.of({f"general.sampling.{key}": value for key, value in advised.items()})


def test_other_names_of_samplers() -> None:
    """Sequences have llama.cpp's names."""
    assert {"samplers": "top_k;typ_p;temperature"} == advice.of({"general.sampling.sequence": "top_k;typical;temp"})
