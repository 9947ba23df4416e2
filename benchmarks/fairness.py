"""`python -m benchmarks.fairness`: what a tenant with short prompts feels of another with long
ones.

One tenant keeps ten prompts of 1,800 tokens in flight. The other sends prompts of ten tokens, one
after the other, first alone, then beside them. The table has passes of the engine, which do not
depend on how busy the machine is, and milliseconds, which do: close other programs first. Exit code
1 says that a promise was not kept: the first token within five passes at p99, and the median gap
between tokens within twice the gap without the other tenant.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.packing import Packing
from appliance.engine.handle import Handle
from appliance.engine.scheduler import Scheduler
from appliance.kernels.runtime import table
from appliance.models.sources.resident import open_resident
from benchmarks import commandline, report

LONG_TOKENS, LONG_PROMPTS, SHORT_TOKENS = 1800, 10, 10
ANSWER_TOKENS, LONG_ANSWER_TOKENS = 24, 8
FIRST_PASSES, GAP_RATIO = 5, 2.0
HEADING = f"{'tenant with short prompts':34}{'p50':>9}{'p99':>9}{'most':>9}"


@dataclass
class Tokens:
    """When an answer's tokens came."""

    asked: float
    passes: int
    at: list[tuple[float, int]] = field(default_factory=list)  # seconds, and passes until then

    @property
    def first(self) -> tuple[float, int]:
        """Milliseconds and passes to the first token."""
        return 1e3 * (self.at[0][0] - self.asked), self.at[0][1] - self.passes

    @property
    def gaps(self) -> list[tuple[float, int]]:
        """Milliseconds and passes between passes that gave tokens: speculation gives several at
        once."""
        ends = {passes: seconds for seconds, passes in self.at}
        times = sorted(ends.items())
        return [(1e3 * (late - soon), last - since) for (since, soon), (last, late) in itertools.pairwise(times)]


class Bench:
    """An engine, its scheduler, and a count of its passes."""

    def __init__(self, engine: Engine) -> None:
        self.passes = 0
        self._engine, self._draw = engine, np.random.default_rng(1)
        self.scheduler = Scheduler(engine, queue=64)
        batcher: Any = self.scheduler._batcher  # the engine's own: measured versions differ in what they count
        self._run: Callable[[], Any] = batcher.run
        batcher.run = self._pass
        self.long: list[Handle] = []
        self._going = False
        self.long_done = 0

    def _pass(self, *plan: Any) -> Any:
        self.passes += 1
        return self._run(*plan)

    def _request(self, prompt: int, tokens: int) -> GenerationRequest:
        ids = self._draw.integers(3, self._engine.tokenizer.vocab_size, prompt).tolist()
        return GenerationRequest(ids, tokens, Sampling(seed=1), ignore_end=True)

    def short(self) -> Tokens:
        """One short prompt of the second tenant."""
        found = Tokens(time.perf_counter(), self.passes)
        handle = self.scheduler.submit(self._request(SHORT_TOKENS, ANSWER_TOKENS), "short",
                                       lambda advance: found.at.append((time.perf_counter(), self.passes)))
        handle.wait()
        return found

    def _one_more(self) -> None:
        def ended(advance: Advance) -> None:
            if advance.finish_reason == "length" and self._going:
                self.long_done += 1
                self._one_more()
        self.long.append(self.scheduler.submit(self._request(LONG_TOKENS, LONG_ANSWER_TOKENS), "long", ended))

    def begin_long(self) -> None:
        """The first tenant's prompts; each is followed by another."""
        self._going = True
        for _ in range(LONG_PROMPTS):
            self._one_more()

    def end_long(self) -> None:
        """No more of them."""
        self._going = False
        for handle in self.long:
            handle.cancel()
        for handle in self.long:
            handle.wait()

    def long_alone(self) -> float:
        """Rows a second of one long prompt that nobody disturbs."""
        handle = self.scheduler.submit(self._request(LONG_TOKENS, 1), "long", lambda advance: None)
        handle.wait()
        assert handle.timings is not None
        return LONG_TOKENS / handle.timings.prompt_seconds


def quantiles(values: Sequence[float]) -> list[float]:
    """The median, the 99th percentile and the most."""
    return [statistics.median(values), float(np.percentile(values, 99, method="higher")), max(values)]


def measure(bench: Bench, rounds: int) -> dict[str, Any]:
    """Both tenants, one alone at first."""
    for _ in range(3):
        bench.short()
    found: dict[str, Any] = {"long_rows_per_second_alone": statistics.median(bench.long_alone() for _ in range(3))}
    answers = {"alone": [bench.short() for _ in range(rounds)]}
    bench.begin_long()
    start = time.perf_counter()
    answers["beside"] = [bench.short() for _ in range(rounds)]
    found |= {"seconds_beside": time.perf_counter() - start, "long_prompts_done": bench.long_done}
    bench.end_long()
    for name, all_of in answers.items():
        firsts, gaps = [each.first for each in all_of], [gap for each in all_of for gap in each.gaps]
        for what, pairs in (("first_token", firsts), ("gap", gaps)):
            found[f"{what}_ms_{name}"] = quantiles([ms for ms, _ in pairs])
            found[f"{what}_passes_{name}"] = quantiles([passes for _, passes in pairs])
    return found


def table_of(found: dict[str, Any]) -> list[str]:
    """The table's lines."""
    lines = [HEADING]
    for what in ("first_token", "gap"):
        for unit in ("passes", "ms"):
            lines += [f"{what.replace('_', ' ') + f', {unit}, {name}':34}" + "".join(
                f"{value:9.1f}" for value in found[f"{what}_{unit}_{name}"]) for name in ("alone", "beside")]
    ratios = [late / soon for late, soon in zip(found["gap_ms_beside"], found["gap_ms_alone"], strict=True)]
    lines.append(f"{'gap, ratio to alone':34}" + "".join(f"{ratio:9.1f}" for ratio in ratios))
    lines.append(f"long prompts: {found['long_rows_per_second_alone']:.0f} rows/s alone; beside short ones "
                 f"{found['long_prompts_done']} done in {found['seconds_beside']:.1f} s")
    return lines


def kept(found: dict[str, Any]) -> bool:
    """Whether both promises were kept."""
    return bool(found["first_token_passes_beside"][1] <= FIRST_PASSES
                and found["gap_ms_beside"][0] <= GAP_RATIO * found["gap_ms_alone"][0])


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fairness", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=100, help="short prompts (default: %(default)s)")
    parser.add_argument("--threads", type=commandline.THREADS, default=None)
    commandline.options(parser, "fairness.json")
    args = commandline.parse(parser)
    kernels = table.load()
    source = open_resident(commandline.model(args.model, args.work), interleave=Packing(kernels))
    with source, Engine.open(
            source, EngineOptions(context_length=LONG_TOKENS + 64, slots=16, threads=args.threads),
            kernels=kernels) as engine:
        bench = Bench(engine)
        found = measure(bench, args.rounds)
        bench.scheduler.close()
    found |= {"machine": report.machine(), "load_average": os.getloadavg()[0], "rounds": args.rounds}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(*table_of(found), f"load average {found['load_average']:.1f}", sep="\n")
    return int(not kept(found))


if __name__ == "__main__":
    commandline.run(main)
