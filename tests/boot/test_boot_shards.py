"""A sharded model under a policy: checked, planned, answered with and served as one, each shard pinned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.boot import checks
from appliance.cli.main import main
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from tests.cli.test_engine_infer import KEY, POLICY
from tests.support import server, shard_files
from tests.support.engines import synthetic_model

DATA = synthetic_model("Q8_0")
FIRST = shard_files.name("m", 1, 3)


def _policy(folder: Path, shards: list[str] | None, sha256: str, schema: int = 2) -> Path:
    text = POLICY.format(sha256=sha256, key=KEY).replace('"tiny.gguf"', f'"{FIRST}"')
    if shards is not None:
        text = text.replace("  chat_template_fallback", f"  shards = {json.dumps(shards)}\n  chat_template_fallback")
    if schema > 1:
        text = text.replace("temperature {", 'bound "temperature" {')
    path = folder / "policy.hcl"
    path.write_text(text.replace("schema = 1", f"schema = {schema}"))
    return path


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """A model in three shards."""
    return shard_files.shards(DATA, 3, tmp_path)


@pytest.fixture
def pinned(paths: list[Path], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """What `appliance model pin` says of it."""
    assert main(["model", "pin", str(paths[0]), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_whole_way(paths: list[Path], pinned: dict[str, object], tmp_path: Path,
                       capsys: pytest.CaptureFixture[str]) -> None:
    """Pin, inspect, check, plan and ask; the answer is the whole file's."""
    assert sum(path.stat().st_size for path in paths) == pinned["size"]
    assert main(["model", "pin", str(paths[0])]) == 0
    block = capsys.readouterr().out
    assert all(f'    "{digest}",\n' in block for digest in pinned["shards"])
    assert main(["model", "inspect", str(paths[0])]) == 0
    said = capsys.readouterr().out
    assert "shards          3\n" in said
    assert "runs here       yes" in said

    policy = _policy(tmp_path, pinned["shards"], pinned["sha256"])
    assert main(["check", str(policy)]) == 0
    assert "valid, schema 2" in capsys.readouterr().out
    assert main(["plan-memory", str(policy), "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)
    assert "tiny" in json.dumps(weights)

    ask = ["--raw", "--prompt", "hello there", "--seed", "4", "--max-tokens", "8", "--json", "--threads", "1"]
    assert main(["infer", str(policy), *ask]) == 0
    sharded = json.loads(capsys.readouterr().out)
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / FIRST).write_bytes(DATA)
    whole = _policy(tmp_path / "whole", None, server.sha256(DATA))
    assert main(["infer", str(whole), *ask]) == 0
    assert sharded["tokens"] == json.loads(capsys.readouterr().out)["tokens"]


def test_a_policy_that_pins_no_shards(paths: list[Path], pinned: dict[str, object], tmp_path: Path,
                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Each shard is to be pinned; the refusal says by what."""
    assert main(["infer", str(_policy(tmp_path, None, pinned["sha256"])), "--raw", "--prompt", "hello"]) == 2
    said = capsys.readouterr().err
    assert "is in 3 shards, and the policy does not pin each" in said
    assert "appliance model pin" in said


def test_pins_that_contradict_each_other(paths: list[Path], pinned: dict[str, object], tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """The order of shards counts, and `sha256` must be theirs: told before a file is looked at."""
    policy = _policy(tmp_path, pinned["shards"][::-1], pinned["sha256"])
    assert main(["check", str(policy)]) == 1
    assert "not the pin of these shards in this order" in capsys.readouterr().out
    assert main(["check", str(_policy(tmp_path, pinned["shards"], pinned["sha256"], schema=1))]) == 1
    assert "shards" in capsys.readouterr().out


def test_another_shard_is_refused_by_name(paths: list[Path], pinned: dict[str, object], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """One bit of one shard ends it, and the error has the file's name."""
    data = bytearray(paths[2].read_bytes())
    data[-3] ^= 1
    paths[2].write_bytes(data)
    policy = _policy(tmp_path, pinned["shards"], pinned["sha256"])
    assert main(["infer", str(policy), "--raw", "--prompt", "hello"]) == 2
    assert f"{paths[2].name} has SHA-256" in capsys.readouterr().err


def test_a_missing_shard_is_told_before_the_boot(paths: list[Path], pinned: dict[str, object],
                                                 tmp_path: Path) -> None:
    """With the other findings, and with its own name."""
    paths[1].unlink()
    policy = load(_policy(tmp_path, pinned["shards"], pinned["sha256"])).policy
    catalogue = Catalogue(checks.find_models(policy, [tmp_path]))
    assert any(paths[1].name in finding for finding in checks.model_files(catalogue.paths))
    assert paths == list(catalogue.files())


def test_a_service(paths: list[Path], pinned: dict[str, object], tmp_path: Path) -> None:
    """It boots, in its sandbox, with the shards in a folder of their own, and names the model by its pin."""
    away = tmp_path / "away"
    away.mkdir()
    for path in paths:
        path.rename(away / path.name)
    policy = server.write_policy(tmp_path, {"tiny": away / FIRST}, schema=2,
                                 model=f"shards = {json.dumps(pinned['shards'])}")
    of_first = server.sha256((away / FIRST).read_bytes())  # where the pin of the whole belongs, and in the list
    policy.write_text(policy.read_text().replace(of_first, str(pinned["sha256"]), 1))
    running = server.Server(policy, [away / FIRST], measured=False).wait_ready()
    try:
        assert running.client().completions.create(model="tiny", prompt="hello", max_tokens=4).choices[0].text
    finally:
        assert running.stop() == 0
