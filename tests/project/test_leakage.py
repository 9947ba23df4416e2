"""The leakage harness: its arithmetic on leaks of known size, its examples; no policy waits for enforcement."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from appliance.cli.main import main
from appliance.policy import load, unenforced
from benchmarks.leakage import __main__ as leakage
from benchmarks.leakage import bounds, deployed, features, pairs, relay, trials
from benchmarks.tenants.wire import Reply

ROOT = Path(__file__).parents[2]
POLICIES = sorted([*ROOT.glob("policies/*.hcl"), *ROOT.glob("examples/**/*.hcl")])


def _channel(wrong: float, trials_: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are the secret, but for a share that is flipped: a binary symmetric channel."""
    draw = np.random.default_rng(seed)
    secrets = draw.random(trials_) < 0.5
    seen = secrets ^ (draw.random(trials_) < wrong)
    return np.where(seen, 0.9, 0.1), secrets


@pytest.mark.parametrize("wrong", [0.01, 0.1, 0.25, 0.4])
def test_bits_of_a_symmetric_channel(wrong: float) -> None:
    """A channel that flips a share p tells 1 - h(p) bits, and 1 - p of the answers are right."""
    known = 1 + wrong * math.log2(wrong) + (1 - wrong) * math.log2(1 - wrong)
    found = [bounds.judged(*_channel(wrong, 4000, seed)) for seed in range(40)]
    assert abs(np.mean([each.bits for each in found]) - known) < 0.006
    assert abs(np.mean([each.share for each in found]) - (1 - wrong)) < 0.004
    assert sum(each.bits_at_most >= known for each in found) >= 34  # 38 of 40 are expected
    assert sum(each.bits_at_least <= known for each in found) >= 34
    assert sum(each.at_most >= 1 - wrong for each in found) >= 34


def test_no_leak_is_none() -> None:
    """Scores that know nothing: no bits but for the bias, and a bound that shrinks with the number of trials."""
    draw = np.random.default_rng(3)
    found = [bounds.judged(draw.random(10_000), draw.random(10_000) < 0.5) for _ in range(20)]
    assert max(each.bits for each in found) < 0.003
    assert max(each.bits_at_most for each in found) < 0.005
    assert sum(each.at_most <= 0.52 for each in found) >= 18


def test_a_bound_of_the_share_bounds_the_bits() -> None:
    """Hellman and Raviv: no channel tells more bits than twice what its best guesser is above chance."""
    for wrong in (0.01, 0.1, 0.3, 0.49):
        found = bounds.judged(*_channel(wrong, 20_000, 1))
        assert found.bits <= 2 * found.share - 1


@pytest.mark.parametrize("pair", pairs.PAIRS)
def test_both_kinds_of_a_pair_have_one_size(pair: str) -> None:
    """In bytes, whatever is drawn; and they differ."""
    make = pairs.Maker("demo", random.Random(1))
    made = [pairs.PAIRS[pair](make, bool(number % 2)) for number in range(40)]
    assert {pairs.BODY_BYTES} == {len(body) for each in made for body in (
        each.body, each.before, each.elsewhere, *each.neighbours) if body is not None}
    assert made[0] != made[1]


def test_records_are_found_wherever_a_stream_is_cut() -> None:
    """The sizes are those of RFC 8446, 5.1: five bytes of header, and as many as it says."""
    sizes = [0, 1, 300, 16640]
    data = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + bytes(size) for size in sizes)
    for step in (1, 4, 7, 5000, len(data)):
        found = list[int]()
        records = relay.Records(lambda size, kind, found=found: found.append(size))
        for place in range(0, len(data), step):
            records.feed(data[place:place + step])
        assert [size + 5 for size in sizes] == found


def test_each_part_of_a_run_has_both_secrets() -> None:
    """A run that ends early, wherever it does, has as many of one as of the other, but for a part of a round."""
    listed = trials.drawn(["length", "topic"], 200, random.Random(1))
    assert 400 == len(listed)
    for end in range(400):
        for pair in ("length", "topic"):
            secrets = [each.secret for each in listed[end:] if each.pair == pair]
            assert abs(2 * sum(secrets) - len(secrets)) <= trials.ROUND
    assert listed != trials.drawn(["length", "topic"], 200, random.Random(2))


@pytest.mark.parametrize(("pair", "secret", "status", "wrong"), [
    ("cached", True, 200, False), ("cached", False, 400, True), ("refused", True, 404, False),
    ("refused", False, 400, True), ("refused", True, 200, True)])
def test_a_pair_compares_what_it_says(pair: str, secret: bool, status: int, wrong: bool) -> None:
    """A prompt that is too long would be refused in both kinds, and tell nothing."""
    seen = trials.Seen()
    seen.check(trials.Trial(pair, secret), Reply(0.0, status, pieces=[(0.0, b"too long")]))
    assert [f"{pair}: {status} too long"] * wrong == list(seen.wrong)


def test_what_a_trial_shows() -> None:
    """Events of its connection and time alone."""
    noted = [(relay.CAME, 7, 0.9, 10, 23), (relay.CAME, 7, 1.2, 20, 23), (relay.CAME, 8, 1.2, 30, 23),
             (relay.CAME, 7, 1.4, 40, 23), (relay.CAME, 7, 2.9, 50, 23)]
    trial = trials.Trial("length", True, port=7, asked=1.0, ended=2.0)
    seen = trials.Seen([trial, trials.Trial("length", False, port=8, asked=1.0, ended=2.0)])
    found = features.Observed(seen, np.array(noted, relay.EVENT), Path("/dev/null")).table("length", "socket")
    assert [[2, 60], [1, 30]] == found.rows[:, :2].tolist()
    assert [True, False] == found.secrets.tolist()


def test_an_onlooker_knows_the_cadence() -> None:
    """Each record's time is also one since a multiple of the clock: 10 ms here, of which these are 5, 2, 4 and 9."""
    noted = [(relay.SENT, 7, 1.005, 10, 23), (relay.CAME, 7, 1.012, 20, 23), (relay.CAME, 7, 1.024, 20, 23),
             (relay.CAME, 7, 1.039, 20, 23)]
    seen = trials.Seen([trials.Trial("length", True, port=7, asked=1.0, ended=2.0)])
    observed = features.Observed(seen, np.array(noted, relay.EVENT), Path("/dev/null"), 0.01)
    [shown] = observed.table("length", "socket").rows
    for phase in (0.005, 0.002, 0.004, 0.009):
        assert any(abs(each - phase) < 1e-6 for each in shown)


def test_readings_of_metrics_have_times_of_the_wire() -> None:
    """From request to answer, however long their client took to ask and to read: 20 and 30 ms here."""
    noted = [(kind, 9, at, 30, 23) for kind, at in (
        (relay.SENT, 1.10), (relay.CAME, 1.11), (relay.SENT, 1.2), (relay.CAME, 1.22), (relay.SENT, 1.4),
        (relay.CAME, 1.43))]
    readings = [(asked, ended, 9, f"appliance_requests_total{{}} {count}\n")
                for asked, ended, count in ((1.09, 1.12, 1), (1.15, 1.31, 2), (1.39, 1.6, 3))]
    seen = trials.Seen([trials.Trial("length", True, port=7, asked=1.1, ended=1.4)], readings)
    table = features.Observed(seen, np.array(noted, relay.EVENT), Path("/dev/null")).table("length", "metrics")
    assert [pytest.approx(0.02), pytest.approx(trials.METRICS_SECONDS + 0.03)] == table.rows[0, 10:12].tolist()


@pytest.mark.parametrize(("pair", "observer", "at_most", "above"), [
    ("refused", "socket", 0.53, True), ("refused", "socket", 0.52, False), ("refused", "receipts", 1.0, False),
    ("neighbour", "log", 0.9, False), ("neighbour", "socket", 0.9, True)])
def test_a_cell_that_shows_by_design_does_not_count(pair: str, observer: str, at_most: float, above: bool) -> None:
    """For the exit code: no receipt vouches for a refusal, and each request has its record."""
    assert above == leakage.is_above({"pair": pair, "observer": observer, "at_most": at_most}, 52)


@pytest.mark.parametrize("setting", deployed.SETTINGS)
def test_what_is_measured_is_the_example(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its tenants and listeners, the policy is that of the file."""
    model = tmp_path / "m.gguf"
    model.write_bytes(b"a model")
    monkeypatch.setattr(deployed.commandline, "model", lambda *_: model)
    made = tmp_path / "measured.hcl"
    made.write_text(deployed.measured(setting, 2, model="m").text())
    ours, example = load(made).policy, load(deployed.path_of(setting)).policy
    assert example.privacy == ours.privacy
    assert example.limits == ours.limits
    assert example.audit == ours.audit
    assert ["lane0", "lane1", "neighbour", "watcher"] == [each.name for each in ours.tenants.tenants]


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.stem)
def test_no_field_of_a_policy_waits_for_enforcement(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`appliance check` has no note on a field that nothing enforces, and this version boots it."""
    assert [] == unenforced(load(path).policy)
    assert 0 == main(["check", str(path)])
    told = capsys.readouterr().out
    assert "this version boots it" in told
    assert "unenforced" not in told
