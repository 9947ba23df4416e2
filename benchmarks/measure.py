"""The measurements and their order: every engine does the same thing once a round, one after the
other."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.process import Engine, Refused

SAMPLE_SECONDS = 0.6
"""How long one engine's share of a round should take (for what can be repeated: decode and batch)."""

PAUSE_SECONDS = 0.3
"""Before each turn: threads of LLVM's OpenMP go on spinning for 0.2 s after their work, beside whoever comes next."""

BATCH_DEPTH = 32
_BATCH_CONTEXT = 192


@dataclass(frozen=True)
class Plan:
    """Which rows to measure."""

    prompts: tuple[int, ...] = (32, 128, 512, 2048)
    depths: tuple[int, ...] = (0, 512, 2048, 4096)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    rounds: int = 7


QUICK = Plan(prompts=(32, 512), depths=(0, 2048), batches=(1, 8, 32), rounds=3)


@dataclass
class Row:
    """One thing measured: tokens a second of every engine in every round."""

    model: str
    threads: int
    kind: str  # prefill | decode | batch
    size: int  # prompt tokens, depth, sequences
    speeds: dict[str, list[float]] = field(default_factory=dict)
    limits: list[float] = field(default_factory=list)  # read bandwidth in bytes/s, in the same rounds
    lines: list[float] = field(default_factory=list)  # seconds of a line from thread to thread, before each round

    @property
    def own(self) -> str:
        """The name of our engine."""
        return next(iter(self.speeds))

    @property
    def peer(self) -> str | None:
        """The fastest of the others, by median."""
        others = [name for name, speeds in self.speeds.items() if name != self.own and speeds]
        return max(others, key=lambda name: statistics.median(self.speeds[name]), default=None)

    @property
    def ratios(self) -> list[float]:
        """Ours over the peer's, round by round."""
        if self.peer is None:
            return []
        return [ours / theirs for ours, theirs in zip(self.speeds[self.own], self.speeds[self.peer], strict=False)]

    @property
    def median(self) -> float:
        """Our median speed in tokens a second; 0 where it could not run."""
        return statistics.median(self.speeds[self.own]) if self.speeds[self.own] else 0.0


def _sample(engine: Engine, row: Row, tokens: int) -> float:
    """One measurement of one engine, in tokens a second."""
    time.sleep(PAUSE_SECONDS)
    if row.kind == "prefill":
        return row.size / float(engine.ask("first", tokens=row.size)["seconds"])
    if row.kind == "decode":
        return tokens / float(engine.ask("decode", depth=row.size, tokens=tokens)["seconds"])
    seconds = engine.ask("batch", sequences=row.size, depth=BATCH_DEPTH, tokens=tokens)["seconds"]
    return row.size * tokens / float(seconds)


def _steps(speeds: list[float], row: Row) -> int:
    """Tokens of a sample, so that the slowest engine takes about SAMPLE_SECONDS."""
    most = _BATCH_CONTEXT - BATCH_DEPTH if row.kind == "batch" else 64
    steps = min(speeds) / (row.size if row.kind == "batch" else 1) * SAMPLE_SECONDS
    return max(4, min(most, round(steps)))


def measure(engines: list[Engine], row: Row, rounds: int) -> None:
    """Warm every engine up, then `rounds` rounds in which each has one turn; fills the row.

    An engine that refuses (a context it cannot hold) has no speeds in this row. The order turns
    from round to round, so that none always runs after the same other one.
    """
    first: dict[str, float] = {}
    for engine in engines:
        row.speeds[engine.name] = []
        try:
            first[engine.name] = _sample(engine, row, 4)
        except Refused as refusal:
            print(refusal, file=sys.stderr)
    able = [engine for engine in engines if engine.name in first]
    if not able:
        return
    steps = _steps(list(first.values()), row)
    for turn in range(rounds):
        if row.threads > 1 and engines[0] in able:
            row.lines.append(float(engines[0].ask("line")["seconds"]))
        for engine in able[turn % len(able):] + able[:turn % len(able)]:
            row.speeds[engine.name].append(_sample(engine, row, steps))
        if row.kind == "decode" and engines[0] in able:
            time.sleep(PAUSE_SECONDS)
            row.limits.append(float(engines[0].ask("limits", peak=False)["bandwidth"]))


def rows_of(model: str, threads: int, plan: Plan) -> list[Row]:
    """All rows of a model and thread count, in the order in which they are measured."""
    rows = [Row(model, threads, "prefill", size) for size in plan.prompts]
    rows += [Row(model, threads, "decode", depth) for depth in plan.depths]
    return rows + [Row(model, threads, "batch", count) for count in plan.batches]


def cold(makers: list[Callable[[], Engine]], path: Path, threads: int, rounds: int = 3) -> dict[str, list[float]]:
    """Seconds from the start of a process to the first token of a 16-token prompt, by engine; files
    are cached."""
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for make in makers:
            start = time.perf_counter()
            engine = make()
            engine.ask("open", model=str(path), threads=threads, context=512, slots=1)
            engine.ask("first", tokens=16)
            seconds.setdefault(engine.name, []).append(time.perf_counter() - start)
            engine.close()
    return seconds


def run(engines: list[Engine], path: Path, threads: int, plan: Plan,
        bar: tqdm[Any]) -> tuple[list[Row], dict[str, Any]]:
    """Measure one model with one thread count; the rows, and the limits and load times of this
    setting."""
    context = max((*plan.prompts, *(depth + 64 for depth in plan.depths)), default=0)
    facts: dict[str, Any] = {"model": path.name, "threads": threads, "load_seconds": {}}
    rows = rows_of(path.name, threads, plan)
    shape: tuple[int, int] | None = None
    for row in rows:
        wanted = (_BATCH_CONTEXT, max(plan.batches)) if row.kind == "batch" else (context, 1)
        if wanted != shape:
            for engine in engines:
                answer = engine.ask("open", model=str(path), threads=threads, context=wanted[0], slots=wanted[1])
                facts["load_seconds"].setdefault(engine.name, answer["seconds"])
                for key in ("origin", "target", "bare", "resident"):  # the first: before limits are measured
                    if key in answer:
                        facts.setdefault(key, answer[key])
            if shape is None:
                facts |= engines[0].ask("limits", peak=True)
            shape = wanted
        bar.set_postfix_str(f"{path.name} {threads}t {row.kind} {row.size}")
        measure(engines, row, plan.rounds)
        bar.update()
    return rows, facts
