"""The host owns the wall clock: whatever it says, the service answers, and records what it was told."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from appliance import hostclock
from appliance.api.answers import AnswerFacts
from appliance.api.shapes import ChatShape
from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.audit.log import AuditLog
from appliance.errors import BootError
from appliance.http.tls import RaTls
from appliance.policy.schema import Listener
from tests.support.server import AUDITOR_KEY, Server, write_policy

ROOT = Path(__file__).parents[2]
DAY = 86400
CLOCKS = [  # seconds since 1970, what the calendar says
    (-140_000 * DAY, "1586-09-11T00:00:00.000000Z"), (110_000 * DAY, "2271-03-04T00:00:00.000000Z"),
    (0, "1970-01-01T00:00:00.000000Z"), (2**31, "2038-01-19T03:14:08.000000Z"), (2**33, "2242-03-16T12:56:32.000000Z"),
    (10**18, "9998-12-31T00:00:00.000000Z"), (-10**18, "0002-01-01T00:00:00.000000Z")]


def _set(clock: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own clock as it is at such a time: it raises where nanoseconds do not fit into 64 bits."""
    def plain() -> float:
        if abs(clock) * 10**9 >= 2**63:
            raise OverflowError("timestamp too large to convert to C _PyTime_t")
        return clock

    monkeypatch.setattr(hostclock, "_plain", plain)
    monkeypatch.setattr(hostclock, "_plain_ns", lambda: int(plain()) * 10**9)
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: float(clock))


@pytest.mark.parametrize(("clock", "calendar"), CLOCKS)
def test_records_and_answers_tell_any_time(clock: int, calendar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit log has the calendar's date, an answer the seconds; outside of the calendar, its nearest day."""
    sink = io.BytesIO()
    _set(clock, monkeypatch)
    AuditLog(sink).write("service.draining", in_flight=0)
    assert calendar == json.loads(sink.getvalue())["time"]
    told = int((datetime.fromisoformat(calendar) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    assert told == ChatShape(AnswerFacts("req-1", "m", "fp"), with_usage=False).created
    assert told * 10**9 == hostclock.nanoseconds()


@pytest.mark.parametrize("year", [2, 1949, 9998, 9999])
def test_a_certificate_has_a_time_or_the_boot_a_reason(year: int) -> None:
    """X.509 knows 1950 to 9999: outside of that the clock is named; what lies within gets its certificate."""
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
    listener = Listener(name="api", kind="ra-tls", port=8443)
    at = datetime(year, 12, 31, tzinfo=UTC)
    if year == 9998:
        assert at + timedelta(hours=25) == RaTls(listener, attestor, now=lambda: at).certificate.not_valid_after_utc
        return
    with pytest.raises(BootError, match=f"the clock says 31 December {year}: a certificate is valid .*1950 and 9999"):
        RaTls(listener, attestor, now=lambda: at)


@pytest.fixture(scope="module", params=[110_000, -140_000, 3_000_000_000])
def preload(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that sets a program's clock so many days ahead, or back: to 2328, 1643, and beyond all calendars."""
    path = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-nostdlib", f"-DDAYS={request.param}L", "-o", path,
                    ROOT / "tests/support/clock.c"], check=True)
    return path


def test_commands_run_at_any_time(preload: Path) -> None:
    """Python's own libraries ask for the time when they are imported."""
    done = subprocess.run([sys.executable, "-m", "appliance", "digest", ROOT / "examples/demo.hcl"], cwd=ROOT,
                          text=True, capture_output=True, env={"LD_PRELOAD": str(preload)})
    assert (0, "") == (done.returncode, done.stderr)


def test_the_service_answers_at_any_time(preload: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Chats, streamed or not, health, models and metrics."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model],
                    environment={"LD_PRELOAD": str(preload)}, isolated=False).wait_ready()
    chat: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    try:
        with server.http() as http:
            found = [http.post("/v1/chat/completions", json={**chat, "stream": streamed}).status_code
                     for streamed in (False, True)]
            found += [http.get(path).status_code for path in ("/health", "/v1/models")]
        with server.http(AUDITOR_KEY) as http:
            found.append(http.get("/metrics").status_code)
    finally:
        assert 0 == server.stop()
    assert 5 * [200] == found
    assert [] == server.audit("runtime.exception")
