"""Whether periods ended when they were due, as the log of the product's own code tells under many clocks."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from appliance.audit.log import AuditLog
from appliance.auditor.claims.retention import lapsed
from tests.audit.test_audit_periods import FIELDS, HOUR, Clock, Store, _log

POLICY, DAY = "ab" * 48, 24 * HOUR


class Life:
    """One boot of an appliance that keeps records for a day, with the clock in the test's hands."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.out = clock, io.BytesIO()
        self.log: AuditLog = _log(self.out, Store().periods())
        self.log.write("boot.start", version="0.1.0", platform="sev-snp", policy_sha384=POLICY)
        self.log.write("boot.ready", duration_us=1, self_test_sha384="00" * 48, generation=1, models=0)

    def live(self, hours: float, *, expiring: bool = True, step: int = 60) -> None:
        """Requests, and the look of each minute."""
        for count in range(int(hours * HOUR) // step):
            self.clock.pass_by(step)
            if expiring:
                self.log.expire()
            if count % 10 == 0:
                self.log.write("request.done", **FIELDS)

    @property
    def records(self) -> list[dict[str, Any]]:
        """As they stand in the log."""
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> Life:
    """An appliance that has just booted."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(clock.mono * 1e9))
    return Life(clock)


def test_each_key_ends_in_time(life: Life) -> None:
    """Over a day and a half: as many as the log says, and the rest is left."""
    life.live(36)
    found = lapsed(life.records, POLICY, DAY)
    destroyed = [each for each in life.records if each["event"] == "audit.expired"]
    assert (len(destroyed), []) == (found.in_time, found.wrong)
    assert {each["period"] for each in life.records if "sealed" in each} - {
        each["period"] for each in destroyed} == found.left
    assert found.in_time > 8


@pytest.mark.parametrize("seconds", [-2 * DAY, -HOUR, HOUR, 3 * DAY])
def test_a_host_that_moves_its_clock_is_no_fault_of_the_appliance(life: Life, seconds: int) -> None:
    """Set back, the appliance's own clock goes on; set forward, keys go at once, and late for nobody."""
    life.live(12)
    life.clock.wall += seconds
    life.live(30)
    assert [] == lapsed(life.records, POLICY, DAY).wrong


FAULTS: dict[str, tuple[Callable[[Life], None], str]] = {
    "never": (lambda life: life.live(30, expiring=False), "still there"),
    "late": (lambda life: (life.live(25, expiring=False), life.live(1))[0], "destroyed at"),
    "early": (lambda life: (life.live(2), life.log.write("audit.expired", period=life.records[4]["period"]))[0],
              "before its time")}


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_an_appliance_that_breaks_its_promise_is_found(life: Life, fault: str) -> None:
    """And passed over where the boot was under another policy."""
    happens, said = FAULTS[fault]
    happens(life)
    found, others = lapsed(life.records, POLICY, DAY), lapsed(life.records, "cd" * 48, DAY)
    assert said in (found.early if fault == "early" else found.wrong)[0]
    assert [] == (found.wrong if fault == "early" else found.early) == others.early == others.wrong


def test_records_in_the_open_are_found() -> None:
    """Those of requests, in a boot under the policy."""
    made = {"epoch": 1, "time": "2026-01-01T00:00:00Z", "mono_ms": 0}
    found = lapsed([{**made, "seq": 0, "event": "boot.start", "policy_sha384": POLICY},
                    {**made, "seq": 1, "event": "request.done"}], POLICY, DAY)
    assert ["records of requests that are not sealed: 1, the first is record 1"] == found.wrong


def test_an_appliance_that_was_off_is_not_late() -> None:
    """A key that was due meanwhile is destroyed by the next boot; a day that there is not disturbs nothing."""
    def record(seq: int, epoch: int, time: str, event: str, **more: Any) -> dict[str, Any]:
        return {"seq": seq, "epoch": epoch, "time": time, "mono_ms": seq, "event": event, **more}

    period = 1_767_225_600  # 2026-01-01
    before = [record(0, 1, "2026-01-01T00:00:00Z", "boot.start", policy_sha384=POLICY),
              record(1, 1, "2026-01-01T00:00:01Z", "request.done", sealed="00", period=period)]
    after = [record(2, 2, "2026-03-01T00:00:00Z", "log.opened"),
             record(3, 2, "2026-03-01T00:00:00Z", "boot.start", policy_sha384=POLICY),
             record(4, 2, "2026-03-01T00:00:00Z", "audit.expired", period=period),
             record(5, 2, "2026-02-31T00:00:00Z", "boot.ready")]
    found = lapsed([*before, *after], POLICY, DAY)
    assert (1, [], set()) == (found.in_time, found.wrong, found.left)
    assert {period} == lapsed(before, POLICY, DAY).left
