"""The plan of a model whose layers keep states: what a text takes, what is kept of earlier ones, how long one may be;
and what is seen when the model runs."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import pytest

from appliance.boot.planning import budget, forecast
from appliance.boot.planning.footprint import Share, read
from appliance.cli.main import main
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.states import division, least_nbytes, log_nbytes
from appliance.models.catalogue import Catalogue
from appliance.policy import Policy, load
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.server import Server, write_policy

FAMILIES = ("lfm2", "qwen35", "granitehybrid", "nemotron_h_moe")


def _policy(folder: Path, name: str, **more: Any) -> tuple[Path, Policy, Catalogue]:
    file = folder / "m.gguf"
    file.write_bytes(family_models.model(name))
    path = write_policy(folder, {"tiny": file}, schema=2, **more)
    return path, load(path).policy, Catalogue({"tiny": file})


def _locked() -> int:
    found = re.search(r"VmLck:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_seen_is_what_was_said(name: str, tmp_path: Path) -> None:
    """The memory that a model locks for texts and passes is within 3% of the lines of the plan; states of earlier texts
    are as many as it says, and a state has as many bytes."""
    _, policy, catalogue = _policy(tmp_path, name, model='prefix_cache { size = "64MiB" }')
    each, share = read(policy.models[0], policy, catalogue), Share(40, 64)
    said = sum(line.nbytes for line in each.lines(share, 2)
               if re.match(r"tiny: (keys and values|activations)", line.what))
    options = EngineOptions(context_length=each.context, slots=40, threads=2, rows=64, prefix_nbytes=each.prefixes)
    with opened(family_models.model(name)) as source:
        gc.collect()  # what earlier tests left would be let go of in between
        before = _locked()
        with Engine.open(source, options, kernels=kernels()) as engine:
            seen, page, stride = _locked() - before, engine.page, engine._cache.states.stride
    found = each.snapshots(share)
    assert found is not None
    assert (found.count, found.state) == (page.states, stride)
    assert abs(seen - said) <= 0.03 * said


@pytest.mark.parametrize("page", [16384, 400])
@pytest.mark.parametrize(("state", "slots", "tenants"), [(3072, 4, 1), (109824, 40, 3), (3072, 1, 100)])
def test_the_least_room(page: int, state: int, slots: int, tenants: int) -> None:
    """With the least that is said each tenant has a state; with a byte less one has none."""
    least = least_nbytes(page, state, slots, tenants)
    assert tenants == division(least, page, state, slots)[1]
    assert tenants > division(least - 1, page, state, slots)[1]


@pytest.mark.slow
def test_no_room_for_a_state_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By check, at the line, by plan-memory, and by the boot; and with the size that they name nothing is said."""
    def said(size: str) -> list[str]:
        path, *_ = _policy(tmp_path, "granitehybrid", model=f'prefix_cache {{ size = "{size}" }}')
        assert 0 == main(["check", "--json", str(path)])
        found = [each for each in json.loads(capsys.readouterr().out)["diagnostics"] if each["code"] == "prefix-cache"]
        assert 0 == main(["plan-memory", "--no-speed", str(path)])
        table = capsys.readouterr()
        server = Server(path, [tmp_path / "m.gguf"]).wait_ready()
        [boot] = [step["detail"] for step in server.http().get("/health").json()["boot"] if step["step"] == "models"]
        assert 0 == server.stop()
        return [*[f"{each['severity']} {each['summary']}; {each['fix']}" for each in found],
                *re.findall(r"warning: model .*prefix_cache.*", table.err),
                *re.findall(r"tiny: prefix_cache.*?is \w+", boot)]
    lacks = said("1MiB")
    assert 3 == len(lacks)
    size = re.search(r"the least size that keeps some of each is (\w+)", lacks[0])
    assert size is not None
    assert [] == said(size[1])


@pytest.mark.parametrize("name", ["lfm2", "granitehybrid", "llama"])
def test_the_longest_context(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A policy with the longest context that is said fits, and with a page more it does not; what a text takes is what
    is reckoned of one more of them."""
    path, policy, catalogue = _policy(tmp_path, name)
    room = budget.divide(forecast._with_context(policy, policy.models[0], 200), catalogue, None).nbytes
    least = budget.divide(forecast._with_context(policy, policy.models[0], 200), catalogue, 1).nbytes
    assert least < room
    assert main(["plan-memory", "--no-speed", "--json", "--memory", str(-(-least // 2**20)), str(path)]) in (0, 1)
    [text] = json.loads(capsys.readouterr().out)["texts"]
    fits = [budget.divide(forecast._with_context(policy, policy.models[0], count), catalogue,
                          -(-least // 2**20) << 20).refusal is None
            for count in (text["longest_context"], text["longest_context"] + 64)]
    assert 200 <= text["longest_context"] <= family_models.CONTEXT
    assert fits[0]
    assert not fits[1] or text["longest_context"] + 64 > family_models.CONTEXT
    each = read(policy.models[0], policy, catalogue)
    pages = -(-text["context"] // 64)
    assert each.cache(2) - each.cache(1) == pages * (text["page_nbytes"] + 8) + (
        text["state_nbytes"] + log_nbytes(each.shape))  # what guesses would do to it is logged
    assert (text["state_nbytes"] > 0) == (name != "llama")
