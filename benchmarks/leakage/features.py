"""Trials as numbers: for each observer one row of features, for trees, and one sequence, for a
small network.

    socket    TLS records in both directions: when, and of how many bytes
    disk      reads of the process: when, and of how many bytes
    log       the lines of the audit log on this request, when they came, and the values in them
    metrics   how `/metrics` changed meanwhile, and when
    receipts  the values in the receipt of the answer
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.leakage.deployed import lane
from benchmarks.leakage.relay import CAME, LOGGED, READ, SENT
from benchmarks.leakage.trials import METRICS_SECONDS, Seen, Trial

OBSERVERS = ("socket", "disk", "log", "metrics", "receipts")
STEPS, FIRST, LAST = 64, 12, 4  # of a sequence, and steps whose times and sizes are features
MARGIN_SECONDS = 0.001
_SAMPLE = re.compile(r"^([a-z_]+(?:\{[^}]*\})?) ([0-9.e+-]+)$", re.MULTILINE)
_HEX = re.compile(r"[0-9a-f]{16,}|req-[0-9a-f]+")
Floats = NDArray[np.float64]
Steps = list[tuple[float, float]]  # seconds since the request, and a size


@dataclass(frozen=True)
class Table:
    """The features of some trials of one pair and observer: rows, sequences and secrets."""

    rows: Floats  # (trials, features)
    sequences: Floats  # (trials, 2 * STEPS)
    secrets: NDArray[np.bool_]


def summary(steps: Steps) -> list[float]:
    """Return a series as a fixed number of features."""
    times, sizes = [at for at, _ in steps], [size for _, size in steps]
    gaps = np.diff(times) if len(times) > 1 else np.zeros(1)
    size = np.array(sizes or [0.0])
    return [float(len(steps)), float(size.sum()), float(size.min()), float(size.max()), float(size.std()),
            float(len(set(sizes))), float(gaps.mean()), float(gaps.max()), float(gaps.std()), float(np.median(gaps)),
            *_fixed(times, FIRST), *_fixed(sizes, FIRST), *_fixed(times[::-1], LAST), *_fixed(sizes[::-1], LAST)]


def _fixed(values: Sequence[float], count: int) -> list[float]:
    return [*values[:count], *[-1.0] * (count - len(values))]


def sequence(steps: Steps) -> list[float]:
    """Return the first steps of a series: gaps in seconds and logarithms of sizes, in turns."""
    before, found = 0.0, list[float]()
    for at, size in steps[:STEPS]:
        found += [at - before, math.copysign(math.log1p(abs(size)), size)]
        before = at
    return [*found, *[0.0] * (2 * STEPS - len(found))]


def flat(value: Any, name: str = "") -> dict[str, float]:
    """Return the numbers in a document by their paths. A word counts by its hash, a random one by
    its length."""
    if isinstance(value, dict):
        return {path: number for key, each in value.items() for path, number in flat(each, f"{name}.{key}").items()}
    if isinstance(value, list):
        return {f"{name}#": float(len(value)), **{path: number for index, each in enumerate(value[:8])
                                                   for path, number in flat(each, f"{name}.{index}").items()}}
    if isinstance(value, str):
        words = 0.0 if _HEX.search(value) or len(value) > 64 else float(zlib.crc32(value.encode()) % 9973)
        return {f"{name}:": float(len(value)), f"{name}=": words}
    return {name: float(value or 0)}


class Columns:
    """Documents as rows: one column for each path that some document has."""

    def __init__(self, documents: Sequence[dict[str, float]]) -> None:
        names = sorted({name for each in documents for name in each})
        self.rows = [[each.get(name, -1.0) for name in names] for each in documents]


class Observed:
    """The observations of a run, by trial."""

    def __init__(self, seen: Seen, events: NDArray[Any], log: Path, interval: float = 0.0) -> None:
        """`interval`: seconds of the policy's cadence, whose multiples an onlooker may know."""
        self._seen, self._interval = seen, interval
        by_port = defaultdict[int, list[int]](list)
        for index, port in enumerate(events["port"]):
            by_port[int(port)].append(index)
        self._events = {port: events[indices] for port, indices in by_port.items()}
        self._polled = self._events.get(0, events[:0])
        self._lines = _lines(log, self._polled[self._polled["kind"] == LOGGED])
        self._counts = [(self._took(port, asked, ended), {name: float(value) for name, value in _SAMPLE.findall(text)})
                        for asked, ended, port, text in seen.metrics]
        self._times = np.array([ended for _, ended, _, _ in seen.metrics])

    def table(self, pair: str, observer: str) -> Table:
        """Return the features of a pair's trials for an observer."""
        trials = [each for each in self._seen.trials if each.pair == pair]
        found = [getattr(self, f"_{observer}")(each) for each in trials]
        documents = Columns([document for _, document in found]).rows
        rows = [[number for steps in series for number in summary(steps)] + document
                for (series, _), document in zip(found, documents, strict=True)]
        sequences = [sequence(_merged(series)) for series, _ in found]
        return Table(np.array(rows), np.array(sequences), np.array([each.secret for each in trials]))

    def _took(self, port: int, asked: float, ended: float) -> float:
        """Seconds on the wire from a request to the last record of its answer: how long its client
        took is not the appliance's."""
        events = self._events.get(port, self._polled[:0])
        events = events[(events["at"] >= asked) & (events["at"] <= ended)]
        sent, came = (events["at"][events["kind"] == kind] for kind in (SENT, CAME))
        return float(came[-1] - sent[0]) if len(sent) and len(came) else ended - asked

    def _between(self, trial: Trial, port: int, kind: int) -> Steps:
        events = self._events.get(port, self._polled[:0])
        first, last = np.searchsorted(events["at"], [trial.asked - MARGIN_SECONDS, trial.ended + MARGIN_SECONDS])
        part = events[first:last]
        part = part[part["kind"] == kind]
        return [(float(at) - trial.asked, float(size)) for at, size in zip(part["at"], part["first"], strict=True)]

    def _socket(self, trial: Trial) -> tuple[list[Steps], dict[str, float]]:
        sent, came = (self._between(trial, trial.port, kind) for kind in (SENT, CAME))
        begun = self._begun(trial)
        return [[(at - begun, size) for at, size in steps] for steps in (came, sent)], self._phases(trial, begun, came)

    def _begun(self, trial: Trial) -> float:
        """The time of the request's first record on the wire, from when it was made: how long its
        client took is not the appliance's."""
        return next((at for at, _ in self._between(trial, trial.port, SENT) if at >= 0), 0.0)

    def _phases(self, trial: Trial, begun: float, came: Steps) -> dict[str, float]:
        """Times as seconds since a multiple of the cadence."""
        if not self._interval:
            return {}
        first, *phases = [(trial.asked + at) % self._interval for at in (begun, *(at for at, _ in came))]
        shown = [first, *_fixed(phases, FIRST), *_fixed(phases[::-1], LAST)]  # no record has no time
        return {"phases": float(np.mean(phases or [-1.0])), "spread": float(np.std(phases or [-1.0])),
                **{f"phase {index}": phase for index, phase in enumerate(shown)}}

    def _disk(self, trial: Trial) -> tuple[list[Steps], dict[str, float]]:
        return [self._between(trial, 0, READ)], {}

    def _log(self, trial: Trial) -> tuple[list[Steps], dict[str, float]]:
        lines = self._lines[lane(trial.lane)]
        mine = [(at, line) for at, line in lines if trial.asked - MARGIN_SECONDS <= at <= trial.ended + 0.05]
        document = {f"{index}{path}": number for index, (_, line) in enumerate(mine[:4])
                    for path, number in flat(_without_place(json.loads(line))).items()}
        begun = trial.asked + self._begun(trial)
        return [[(at - begun, float(len(line))) for at, line in mine]], document

    def _metrics(self, trial: Trial) -> tuple[list[Steps], dict[str, float]]:
        """As of a reader that keeps its pace."""
        first = max(0, int(np.searchsorted(self._times, trial.asked)) - 1)
        count = 2 + round((trial.ended - trial.asked) / METRICS_SECONDS)
        readings = self._counts[first:first + count]
        steps = [(index * METRICS_SECONDS + took, _change(before, after))
                 for index, ((_, before), (took, after)) in enumerate(itertools.pairwise(readings))]
        before, after = readings[0][1], readings[-1][1]
        return [steps], {name: value - before.get(name, 0.0) for name, value in after.items()}

    def _receipts(self, trial: Trial) -> tuple[list[Steps], dict[str, float]]:
        envelope = trial.receipt.get("envelope", {})
        statement = json.loads(base64.b64decode(envelope.get("payload", "e30=")))
        return [[(0.0, float(len(json.dumps(trial.receipt))))]], flat(_without_place(statement))


def _change(before: dict[str, float], after: dict[str, float]) -> float:
    return sum(abs(number - before.get(name, 0.0)) for name, number in after.items())


def _without_place(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what only says when in the run it was made."""
    placed = ("seq", "time", "mono_ms", "mono_us", "prev", "leaf", "path", "checkpoint", "size", "period")
    return {name: _without_place(value) if isinstance(value, dict) else value
            for name, value in document.items() if name not in placed}


def _merged(series: Iterable[Steps]) -> Steps:
    """Return several series as one in the order of time; sizes of the second are negative."""
    return sorted((at, -size if index else size) for index, steps in enumerate(series) for at, size in steps)


def _lines(log: Path, polled: NDArray[Any]) -> dict[str, list[tuple[float, bytes]]]:
    """Return the log's lines by tenant, with the times at which they were first seen."""
    found, place = defaultdict[str, list[tuple[float, bytes]]](list), 0
    ends = polled["first"]
    for line in log.read_bytes().splitlines(keepends=True):
        place += len(line)
        index = int(np.searchsorted(ends, place))
        if index < len(ends) and line.endswith(b"\n"):
            found[str(json.loads(line).get("tenant", ""))].append((float(polled["at"][index]), line))
    return found
