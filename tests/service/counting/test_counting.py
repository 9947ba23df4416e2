"""Counts that are told: usage by key and day, hits with noise, pages by rounded lengths."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from appliance.api.problems import RequestError
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.service.counting import usage
from appliance.service.counting.claims import Claims, pages_for
from appliance.service.counting.hits import EPSILON, STEP, WINDOW_SECONDS, Hits, noise
from appliance.service.counting.usage import DAYS, Ledger, RequestCounts, days_of

ONE, TWO = b"\1" * 32, b"\2" * 32


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.day = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
        self.seconds = 0.0

    def now(self) -> datetime:
        return self.day

    def monotonic(self) -> float:
        return self.seconds


def test_rows_are_of_a_key_a_day_and_a_model() -> None:
    """Requests of one key, day and model are one row; the next day, in UTC, begins another, whatever the time zone."""
    clock = Clock()
    ledger = Ledger(clock.now)
    ledger.add(ONE, "a", "m", RequestCounts(1, 0, 64, 16, 0))
    ledger.add(ONE, "a", "m", RequestCounts(1, 1, 64, 0, 32))
    ledger.add(ONE, "a", None, RequestCounts(1, 1))
    clock.day = (clock.day + timedelta(minutes=2)).astimezone()
    ledger.add(ONE, "a", "m", RequestCounts(1, 0, 1, 2, 3))
    rows = ledger.rows(key=ONE, everybody=False).data
    assert [("2026-01-31", None, 1, 1, 0, 0, 0), ("2026-01-31", "m", 2, 1, 128, 16, 32),
            ("2026-02-01", "m", 1, 0, 1, 2, 3)] == [
        (row.day, row.model, row.requests, row.refused, row.prompt_tokens, row.completion_tokens, row.cached_tokens)
        for row in rows]
    assert ["2026-02-01"] == [row.day for row in ledger.rows(key=ONE, everybody=False, days=1).data]


def test_a_key_sees_itself_and_an_auditor_sees_all_without_what_was_cached() -> None:
    """Another key's rows are told to those alone who may know everybody's, and its cached tokens to nobody else."""
    ledger = Ledger(Clock().now)
    for key, tenant in ((ONE, "a"), (TWO, "b")):
        ledger.add(key, tenant, "m", RequestCounts(1, 0, 64, 16, 32))
    assert [("a", 32)] == [(row.tenant, row.cached_tokens) for row in ledger.rows(key=ONE, everybody=False).data]
    assert [("a", None), ("b", 32)] == [(row.tenant, row.cached_tokens)
                                        for row in ledger.rows(key=TWO, everybody=True).data]
    assert [] == ledger.rows(key=b"\3" * 32, everybody=False).data


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest rows go first, and days that are long over are not told."""
    monkeypatch.setattr(usage, "MAX_ROWS", 3)
    clock = Clock()
    ledger = Ledger(clock.now)
    days = []
    for _ in range(5):
        days.append(clock.day.date().isoformat())
        ledger.add(ONE, "a", "m", RequestCounts(1))
        clock.day += timedelta(days=1)
    assert days[-3:] == [row.day for row in ledger.rows(key=ONE, everybody=False).data]
    clock.day += timedelta(days=DAYS)
    assert [] == ledger.rows(key=ONE, everybody=False).data


@pytest.mark.parametrize("values", [["0"], ["32"], ["1", "1"], ["x"], ["-1"], [""], ["1.5"], ["\u0661"], ["9" * 5000]])
def test_days_that_are_refused(values: list[str]) -> None:
    """One whole number of days in digits, from 1 to those that are kept."""
    with pytest.raises(RequestError) as caught:
        days_of(values)
    assert ("invalid_value", "days") == (caught.value.code, caught.value.param)
    assert (DAYS, 1, 31) == (days_of([]), days_of(["1"]), days_of(["31"]))


def test_hits_are_told_of_whole_windows_in_steps() -> None:
    """A window's count is told in the next one, with one draw of noise for all who ask, and no later."""
    clock, draws = Clock(), iter([7, -100, 3])
    hits = Hits(clock.monotonic, lambda: next(draws))
    for _ in range(21):
        hits.add()
    assert 0 == hits.noisy
    clock.seconds = WINDOW_SECONDS
    assert [30, 30] == [hits.noisy, hits.noisy]  # 21 and 7 are 28
    clock.seconds = 2 * WINDOW_SECONDS - 0.1
    hits.add()
    assert 30 == hits.noisy
    clock.seconds = 2 * WINDOW_SECONDS
    assert 0 == hits.noisy  # 1 - 100, and no less than 0
    clock.seconds = 9 * WINDOW_SECONDS
    assert 0 == hits.noisy % STEP
    assert 0 == hits.noisy  # nothing in the window before: 3


def test_noise_hides_one_request() -> None:
    """The best guess whether a window has one hit more is right no more often than ε allows: of two counts that differ
    by one, no told value is likelier by more than e^ε."""
    many = 200_000
    drawn = Counter(noise() for _ in range(many))
    alpha = math.exp(-EPSILON)
    assert 0 == pytest.approx(sum(value * count for value, count in drawn.items()) / many, abs=0.15)
    for value in (0, 1, 5, 20):
        expected = (1 - alpha) / (1 + alpha) * alpha**value
        assert expected == pytest.approx(drawn[value] / many, abs=5 * math.sqrt(expected / many))
        assert expected == pytest.approx(drawn[-value] / many, abs=5 * math.sqrt(expected / many))
    edge = [sum(count for value, count in drawn.items() if value + hits > 10) / many for hits in (10, 11)]
    assert 0.5 + (edge[1] - edge[0]) / 2 < math.exp(EPSILON) / (1 + math.exp(EPSILON)) + 0.005 < 0.53


def test_pages_are_of_rounded_lengths() -> None:
    """Each answer counts as long as it may become, its prompt as a multiple, and a negative prompt as another one."""
    plain = GenerationRequest([1] * 65, 60)
    guided = GenerationRequest([1] * 65, 60, Sampling(guidance_scale=2.0), negative_ids=[1])
    assert (2, 3, 2) == (pages_for([plain], 1, 512), pages_for([plain], 100, 512), pages_for([plain], 100, 128))
    assert 6 == pages_for([plain, plain], 100, 512)
    assert 2 + 1 == pages_for([guided], 1, 512)
    claims = Claims()
    claims.add("m", 6)
    claims.add("m", -4)
    assert (2, 0) == (claims.of("m"), claims.of("n"))
