"""A served cadence: the same answers, late passes that are told, and intervals that the machine cannot hold."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.boot.planning import footprint
from appliance.boot.running import load as models
from appliance.boot.running.interval import Interval, interval_of
from appliance.cli.main import main
from appliance.errors import BootError
from appliance.kernels.runtime import table
from appliance.models.catalogue import Catalogue, ModelFile
from appliance.policy import load
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, Server, write_policy

PRIVACY = 'timing_padding {{\n cadence = "{0}"\n first_token = "{0}"\n total = "{0}"\n}}\nsize_padding = "1KiB"\n'
LIMITS = "concurrent_requests = 2\n  prompt_tokens = 500\n  generation_tokens = 24"


def _policy(folder: Path, tiny_model: Path, speculation: str = "hidden", **more: Any) -> Path:
    return write_policy(folder, {"tiny": tiny_model}, **{
        "schema": 2, "limits": LIMITS, "privacy": PRIVACY.format("40ms"), "model": f'speculation = "{speculation}"',
        **more})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server that keeps a cadence, and hides its guesses."""
    running = Server(_policy(tmp_path_factory.mktemp("cadence"), tiny_model), [tiny_model]).wait_ready()
    yield running
    running.stop()


def _metrics(server: Server) -> dict[str, float]:
    with server.http(AUDITOR_KEY) as http:
        lines = http.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_answers_are_the_same(server: Server, service: Server) -> None:
    """Whole and streamed, those of a server without a cadence."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": "one two one two one two", "max_tokens": 20, "seed": 5}
    expected = service.client().completions.create(**asked).choices[0].text
    assert expected == server.client().completions.create(**asked).choices[0].text
    streamed = server.client().completions.create(**asked, stream=True)
    assert expected == "".join(each.choices[0].text for each in streamed if each.choices)


def test_late_passes_are_told(server: Server) -> None:
    """A host that stops the machine makes a pass late: the metrics say how many and by how much, in intervals; so does
    the audit log, once it counts."""
    before = _metrics(server)['appliance_late_passes{model="tiny"}']
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)  # the host's doing: the time that the process lacks
    server.process.send_signal(signal.SIGCONT)
    waiting.until(lambda: _metrics(server)['appliance_late_passes{model="tiny"}'] > before, "a late pass")
    most = _metrics(server)['appliance_late_seconds_max{model="tiny"}']
    assert most >= 0.2
    assert pytest.approx(0) == abs(most / 0.04 - round(most / 0.04))
    server.stop()
    counted = sum(each.get("late_passes", {}).get("tiny", 0) for each in server.audit("requests.counted"))
    assert counted > before


def test_an_interval_that_does_not_hold_stops_the_boot(tmp_path: Path, tiny_model: Path) -> None:
    """The boot says what a pass takes, what the interval allows, and which would hold."""
    policy = _policy(tmp_path, tiny_model, privacy=PRIVACY.format("1ms"),
                     limits="concurrent_requests = 64\n  prompt_tokens = 400\n  generation_tokens = 100")
    server = Server(policy, [tiny_model])
    assert 0 != server.process.wait(waiting.STALL_SECONDS)
    said = server.text("stderr")
    assert "boot stopped at step models: model tiny: a pass of 65 rows, one for each of 64 answers" in said
    assert "cadence is 1 ms: it allows 0.8 ms" in said
    assert 'write cadence = \\"' in said
    assert "or more, or lower limits.concurrent_requests" in said


@pytest.mark.parametrize(("seconds", "models_", "allowed", "least"), [(0.2, 1, 0.15, 134), (0.2, 3, 0.05, 400)])
def test_models_share_an_interval(seconds: float, models_: int, allowed: float, least: int) -> None:
    """Passes of a model take three quarters of an interval at most, or its part of them."""
    interval = Interval(seconds, models_)
    assert pytest.approx(allowed) == interval.allowed
    assert least == interval.least(0.1)


def test_an_interval_is_held_with_the_most_rows(tmp_path: Path, tiny_model: Path) -> None:
    """A model that is loaded gets as many rows as its interval holds; one that does not fit is refused, and closed."""
    policy = load(_policy(tmp_path, tiny_model)).policy
    assert Interval(0.04) == interval_of(policy)
    given = models.Loading(policy.limits, kernels=table.load(), interval=Interval(60.0))
    running = models.load(policy.models[0], ModelFile(tiny_model), given)
    assert running.engine.row_bounds[1] == running.engine.pass_rows
    assert f"{running.engine.pass_rows} rows in each pass" in models.description(
        {"tiny": running}, {"tiny": "it fits"}, tolerant=True)
    running.close()
    given = models.Loading(policy.limits, kernels=table.load(), interval=Interval(1e-6))
    with pytest.raises(BootError, match=r"^model tiny: a pass of 3 rows") as caught:
        models.load(policy.models[0], ModelFile(tiny_model), given)
    assert "cadence" == caught.value.code


def test_seats_of_dummy_rows_are_reckoned(tmp_path: Path, tiny_model: Path) -> None:
    """The plan has the bytes that the engine's cache has beside those of answers."""
    policy = load(_policy(tmp_path, tiny_model)).policy
    found = {steady: footprint.read(policy.models[0], each, Catalogue({"tiny": tiny_model})).activations(512, 1)
             for steady, each in ((True, policy), (False, policy.model_copy(update={
                 "privacy": policy.privacy.model_copy(update={"timing_padding": None})})))}
    given = models.Loading(policy.limits, kernels=table.load(), interval=Interval(60.0))
    running = models.load(policy.models[0], ModelFile(tiny_model), given)
    engine = running.engine
    seats, cache = engine._seats.dummies, engine._cache
    expected = len(seats) * cache.row_stride + cache.nbytes - cache.page_stride * engine.pages
    running.close()
    assert expected == found[True] - found[False]


def test_the_planner_says_the_price(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before a boot: tokens a second and core-seconds an hour; or that an interval is too short, with exit code 1."""
    policy = _policy(tmp_path, tiny_model, privacy=PRIVACY.format("500ms"))
    assert 0 == main(["plan-memory", str(policy), "--models", str(tiny_model.parent), "--json"])
    [price] = json.loads(capsys.readouterr().out)["cadence"]
    assert (2.0, 2, None) == (price["tokens_per_second"], price["answers"], price["refusal"])
    assert 0 < price["core_seconds_an_hour"] < 3600 * 0.75 * 1024
    slow, fast = price["prompt_tokens_per_second"]
    assert fast == 2.0 * price["rows"]
    assert slow == 2.0 * (price["rows"] - 1)
    assert 0 == main(["plan-memory", str(policy), "--models", str(tiny_model.parent)])
    assert "2 tokens/s for each of 2 answers" in capsys.readouterr().out
    policy = _policy(tmp_path, tiny_model, privacy=PRIVACY.format("1ms"),
                     limits="concurrent_requests = 64\n  prompt_tokens = 400\n  generation_tokens = 100")
    assert 1 == main(["plan-memory", str(policy), "--models", str(tiny_model.parent)])
    assert "tiny: cadence does not hold: a pass of 65 rows" in capsys.readouterr().out


@pytest.mark.parametrize(("speculation", "schema", "severity"), [
    ("on", 2, "warning"), ("hidden", 2, None), ("off", 2, None)])
def test_guesses_that_show_are_warned_of(speculation: str, schema: int, severity: str | None, tmp_path: Path,
                                         tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` warns of a cadence under which guesses show; any of the three boots."""
    assert 0 == main(["check", "--json", str(_policy(tmp_path, tiny_model, speculation, schema=schema))])
    found = json.loads(capsys.readouterr().out)["diagnostics"]
    assert ([] if severity is None else [(severity, 'model "tiny".speculation')]) == [
        (each["severity"], each["path"]) for each in found if "timing_padding" not in each["path"]]
