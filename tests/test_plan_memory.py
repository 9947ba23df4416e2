"""`appliance plan-memory`: the sum that a boot reckons, as a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.boot import budget
from appliance.boot.plan import plan
from appliance.cli.main import main
from appliance.policy import load
from tests.support import server


@pytest.mark.parametrize(("how", "streamed"), [("true", True), ("false", False), ('"auto"', False)])
def test_the_sum_is_the_boot_s(how: str, streamed: bool, tmp_path: Path, tiny_model: Path) -> None:
    """With room for everything the lines add up to what the boot reckons."""
    policy = load(server.write_policy(tmp_path, {"tiny": tiny_model}, model=f"streaming_decrypt = {how}")).policy
    found = plan(policy, {"tiny": tiny_model}, 1 << 40)
    need = budget.need(policy, policy.models[0], {"tiny": tiny_model}, 1 << 40)
    assert None is found.refusal
    assert abs(budget._total([need]) - found.nbytes) <= 1
    assert streamed == any("streamed" in line.what for line in found.lines)


def test_the_table(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What fits exits with 0; what does not, with 1 and the arithmetic; JSON has the bytes."""
    policy = str(server.write_policy(tmp_path, {"tiny": tiny_model}, model="streaming_decrypt = false"))
    assert 0 == main(["plan-memory", policy, "--models", str(tiny_model.parent), "--memory", "4096"])
    said = capsys.readouterr().out
    assert "tiny: resident weights" in said
    assert "4,096 MiB  there are" in said
    assert 1 == main(["plan-memory", policy, "--models", str(tiny_model.parent), "--memory", "64", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert 64 << 20 == told["room"]
    assert "are needed, there are 64 MiB" in told["refusal"]
    assert told["nbytes"] == sum(line["nbytes"] for line in told["lines"])
