"""How long each test takes: on the clock, and of a processor, its child processes included.

A pytest plugin, loaded by `tests/conftest.py`. Each run writes `build/tests/times.json`: files, tests and fixtures with
their seconds, dearest first. With `--quick` the run fails, and names the test, when a test that is not marked `slow`
takes more than `DEAR` seconds of a processor. A processor's speed is measured first (`pace`): such seconds are those of
the machine on which `_PACE` was measured, so that a slow machine finds the same tests dear.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TIMES = ROOT / "build" / "tests" / "times.json"
DEAR = 5.0  # seconds of a processor, for the body of one test that is not marked
LISTED = 0.1  # seconds, from which a test or a fixture is listed
_PACE = 0.0070  # seconds that `_work` takes of a Zen 4 processor at its usual speed
_TICKS = os.sysconf("SC_CLK_TCK")
_TAKEN = pytest.StashKey[float]()
_FIXTURES = pytest.StashKey[list[tuple[str, float, float]]]()


def _work() -> int:
    """A little of what tests do most: Python's own loops, and some hashing."""
    data = b"".join(number.to_bytes(4, "big") for number in range(60_000))
    return len(hashlib.sha256(data).digest()) + sum(number & 3 for number in range(60_000))


def pace() -> float:
    """How many times as long a processor here takes for the same work; the best of five short tries."""
    tries = []
    for _ in range(5):
        began = time.process_time()
        _work()
        tries.append(time.process_time() - began)
    return min(tries) / _PACE


def processor_time() -> float:
    """Seconds of a processor that this process, and all processes below it, have used so far."""
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system + _below(os.getpid()) / _TICKS


def _below(pid: int) -> int:
    """Clock ticks of the processes that live below `pid`, by proc(5). Children that ended count as
    their parents'."""
    ticks = 0
    for child in _children(pid):
        try:
            stat = Path(f"/proc/{child}/stat").read_text()
        except OSError:  # it has ended in between
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15])) + _below(child)
    return ticks


def _children(pid: int) -> list[int]:
    """The children of all threads. Where one ends meanwhile, another has its children, so all are read again."""
    for _ in range(10):
        try:
            return [int(child) for thread in Path(f"/proc/{pid}/task").iterdir()
                    for child in (thread / "children").read_text().split()]
        except OSError:
            if not Path(f"/proc/{pid}").exists():
                break
    return []


def _measured(item: pytest.Item) -> Iterator[None]:
    before = processor_time()
    try:
        return (yield)
    finally:
        item.stash[_TAKEN] = processor_time() - before


class Times:
    """The plugin. Each worker of a run measures its own tests; the process that they report to adds up and writes."""

    def __init__(self, quick: bool) -> None:
        self.quick, self.pace, self.began = quick, pace(), time.monotonic()
        self.tests: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.fixtures: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.dear = list[str]()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test's setup, with the fixtures that are made for it."""
        item.stash[_FIXTURES] = []
        return (yield from _measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test's body."""
        return (yield from _measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test's end, with the fixtures that end with it."""
        return (yield from _measured(item))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Iterator[Any]:
        """Measure a fixture, with the fixtures that it asks for while it is made."""
        began, before = time.monotonic(), processor_time()
        try:
            return (yield)
        finally:
            seconds = time.monotonic() - began, processor_time() - before
            if max(seconds) >= LISTED:
                name = f"{fixturedef.baseid}::{fixturedef.argname}"
                request._pyfuncitem.stash[_FIXTURES].append((name, *seconds))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Give the report what was measured: it travels from a worker to the process that writes."""
        report = yield
        report.processor = item.stash.get(_TAKEN, 0.0)
        report.fixtures = item.stash[_FIXTURES] if call.when == "setup" and _FIXTURES in item.stash else []
        report.slow = any(item.get_closest_marker(name) for name in ("slow", "guests"))
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a phase of a test to its sum."""
        if not hasattr(report, "processor"):  # of a worker that crashed
            return
        for seconds, more in ((self.tests[report.nodeid], (report.duration, report.processor)),
                              *((self.fixtures[name], taken) for name, *taken in report.fixtures)):
            for place, each in enumerate(more):
                seconds[place] += each
        if report.when == "call" and not report.slow and report.processor > DEAR * self.pace:
            self.dear.append(f"{report.nodeid}: {report.processor:.1f} s")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file; fail where a test is dear and not marked."""
        if hasattr(session.config, "workerinput") or not self.tests:
            return
        if self.quick and self.dear and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for name, seconds in self.tests.items():
            for place, each in enumerate(seconds):
                files[name.split("::")[0]][place] += each
        TIMES.parent.mkdir(parents=True, exist_ok=True)
        TIMES.write_text(json.dumps({
            "wall": round(time.monotonic() - self.began, 1), "processor": round(processor_time(), 1),
            "pace": round(self.pace, 2), "columns": ["name", "seconds", "processor seconds"],
            "files": _rows(files, 0.0), "tests": _rows(self.tests, LISTED), "fixtures": _rows(self.fixtures, LISTED),
        }, indent=1) + "\n")

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name tests that are dear and not marked, and say where the times are."""
        if self.dear:
            terminalreporter.section(f"more than {DEAR * self.pace:.1f} s of a processor, and not marked `slow`")
            for line in self.dear:
                terminalreporter.line(line)


def _rows(seconds: dict[str, list[float]], least: float) -> list[list[str | float]]:
    """Names with their seconds, dearest first."""
    ordered = sorted(seconds.items(), key=lambda row: (-row[1][1], -row[1][0], row[0]))
    return [[name, *(round(each, 2) for each in row)] for name, row in ordered if max(row) >= least]
