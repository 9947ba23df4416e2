"""Counts in place of records: bounded, recorded within a minute and at the end, and kept where the disk is full."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from appliance.api.problems import PROBLEMS
from appliance.audit import counted, endpoints
from appliance.audit.counted import CountedRequests
from appliance.audit.log import AuditLog
from appliance.audit.sink import AUDIT_FULL
from appliance.boot.stdlib import Silence
from appliance.errors import AuditError
from appliance.keys.providers import Secret
from appliance.service.attesting import checkpoints
from appliance.service.counting.records import OwnRecords
from appliance.state import room
from appliance.state.audit_sink import StateSink
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES

MOST_LINE_BYTES = 64 << 10  # of a record: docs/formats/audit-log-2.md
MOST_COUNT = (1 << 53) - 1


class Sink(io.BytesIO):
    """A log in memory with so much room."""

    left = 1 << 20

    def room(self, *, own: bool) -> int:
        return self.left


def _log(sink: Any = None) -> tuple[AuditLog, Any]:
    sink = Sink() if sink is None else sink
    log = AuditLog(sink, strict=True)
    log.admit_codes(PROBLEMS)
    return log, sink


def _records(sink: io.BytesIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in sink.getvalue().splitlines()]


def test_the_longest_record_of_counts_is_a_line() -> None:
    """Every endpoint refused with every code, as often as can be counted: still no longer than a record may be."""
    log, sink = _log()
    for endpoint in endpoints.NAMES:
        for code in (None, *PROBLEMS):
            log.counted.request(endpoint, code)
    for how in counted.CONNECTIONS:
        log.counted.connection(how)
    log.counted.exception()
    log.words.tenants.admit(f"{number:064}" for number in range(counted.MOST_TENANTS + 3))
    for number in range(counted.MOST_TENANTS + 3):
        log.counted.request("/health", None, f"{number:064}")
    for what in log.counted._counts:
        log.counted._counts[what] = MOST_COUNT
    log.fold()
    assert max(map(len, sink.getvalue().splitlines())) < MOST_LINE_BYTES
    record, more = _records(sink)
    assert (counted.MOST_TENANTS, 3) == (len(record["tenants"]), len(more["tenants"]))
    assert set(log.words.tenants.words) == {*record["tenants"], *more["tenants"]}
    assert set(endpoints.NAMES) == set(record["answered"]) == set(record["refused"])
    assert {MOST_COUNT} == {count for codes in record["refused"].values() for count in codes.values()}


def test_counts_are_recorded_once() -> None:
    """A record has what came since the last one and for how long; without any there is none; the end has the rest."""
    times = iter([10.0, 71.6, 80.0, 80.0])
    log, sink = _log()
    log.counted = CountedRequests(lambda: next(times))
    log.fold()
    assert [] == _records(sink)
    for _ in range(5):
        log.counted.request("/health", None)
    log.counted.request("/v1/models", "invalid_api_key")
    log.fold()
    log.fold()
    (record,) = _records(sink)
    assert (62, {"/health": 5}, {"/v1/models": {"invalid_api_key": 1}}) == (
        record["seconds"], record["answered"], record["refused"])
    log.counted.connection("handshake")
    kept = sink.getvalue()
    sink.close = lambda: None
    log.close()
    assert ["requests.counted", "audit.closed"] == [each["event"] for each in _records(sink)[1:]]
    assert kept == sink.getvalue()[:len(kept)]


def test_counts_that_find_no_room_are_kept() -> None:
    """They stay until there is some, with the time of the first; the log is not broken, and its numbers have no gap."""
    log, sink = _log()
    log.write("service.draining", in_flight=0)
    log.counted.request("/health", None)
    sink.left = 100
    for _ in range(3):
        with pytest.raises(AuditError) as caught:
            log.fold()
        assert AUDIT_FULL == caught.value.code
        assert "make the disk larger" in (caught.value.hint or "")
        log.counted.request("/health", None)
    sink.left = 1 << 20
    log.fold()
    assert [(0, "service.draining"), (1, "requests.counted")] == [
        (each["seq"], each["event"]) for each in _records(sink)]
    assert {"/health": 4} == _records(sink)[1]["answered"]


def test_a_key_has_some_records_a_minute() -> None:
    """Sixty, whatever others have; and again in the next minute."""
    now = [1000.0]
    own = OwnRecords(lambda: now[0])
    assert [True] * 60 + [False] * 40 == [own.take(b"one") for _ in range(100)]
    assert own.take(b"two")
    now[0] += 60
    assert own.take(b"one")


def test_counts_come_each_minute_and_seldom_where_room_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every turn where there is room; else every sixtieth."""
    monkeypatch.setattr(checkpoints, "COUNTING_SECONDS", 0.0)
    for ample, expected in ((True, 120), (False, 2)):
        log, sink = _log()
        turns = itertools.count()

        def look(log: AuditLog = log, ample: bool = ample, turns: Any = turns) -> bool:
            if next(turns) >= (120 if ample else 118):  # two of 120 turns do not ask
                raise asyncio.CancelledError
            log.counted.request("/health", None)
            return ample

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(checkpoints.record_counts(log, look, lambda error: None))
        assert expected == len(_records(sink)), ample


def test_exceptions_in_plenty_are_counted(capfd: pytest.CaptureFixture[str]) -> None:
    """Of a thousand in a row twenty are told, in the log and on standard error; the rest is a number."""
    log, sink = _log()
    silence = Silence(log)
    for _ in range(1000):
        silence.exception("asyncio", ValueError, None)
    log.fold()
    events = [each["event"] for each in _records(sink)]
    assert (20, 1, "requests.counted") == (events.count("runtime.exception"), events.count("requests.counted"),
                                           events[-1])
    assert 980 == _records(sink)[-1]["exceptions"]
    assert 20 == len(capfd.readouterr().err.splitlines())


@pytest.mark.parametrize(("left", "state"), [
    (700_000, "ample"), (room.OWN_BYTES + (1 << 18), "ample"), (room.OWN_BYTES + (1 << 18) - 1, "reserve"),
    (room.OWN_BYTES + room.UNDER_WAY_BYTES, "reserve"), (room.OWN_BYTES + room.UNDER_WAY_BYTES - 1, "full"),
    (0, "full")])
def test_states_of_the_room(left: int, state: str) -> None:
    """A quarter of a log of 1 MiB is kept for tenants, and 128 KiB for the log itself."""
    assert state == room.LogRoom(1 << 20, left).state


def test_a_large_disk_keeps_no_more_than_64_mib() -> None:
    """The reserve is bounded."""
    whole = 1 << 40
    assert "ample" == room.LogRoom(whole, (64 << 20) + room.OWN_BYTES).state
    assert "reserve" == room.LogRoom(whole, (64 << 20) + room.OWN_BYTES - 1).state


def test_the_log_writes_its_own_records_where_others_find_no_room(tmp_path: Path) -> None:
    """On a disk on which no request is recorded any more, the end of the log is."""
    path = tmp_path / "disk"
    path.write_bytes(bytes(MIN_DISK_BYTES))
    disk = StateDisk(path, Secret(bytearray(range(32))))
    sink = StateSink()
    log, _ = _log(sink)
    sink.attach(disk)
    while disk.room.others > 0:
        disk.append(AUDIT, b"x" * 4000 + b"\n")
    refused = {"request": "req-" + "0a" * 16, "endpoint": "other", "status": 404, "code": "not_found"}
    with pytest.raises(AuditError):
        log.write("request.refused", **refused)
    log.write("service.stopped", requests=1, refused=0)
    log.close()
    disk.close()
