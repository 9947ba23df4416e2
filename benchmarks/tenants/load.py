"""`python -m benchmarks.tenants.load`: 64 clients of four tenants stream for minutes.

Prompts have 10 to 3,000 tokens, a quarter of them just ten; answers have up to 64. The table has
what the clients saw. A pass is counted as others see it: by the tokens of the stream that got most
between the request and its first token. Exit code 1 says that a promise was not kept:

    every request finishes, or is refused with 429 and a time to come again
    p99 of the gaps between tokens is at most three times their median
    memory after the first quarter of the time does not grow, but for room that was made at boot
    the first token after a prompt of ten tokens comes within five passes at p99

Ten-token prompts are counted where a place was free: who waits for one waits for others to end.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import json
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.served import MODEL, Deployment, Memory, Served, key_of
from benchmarks.tenants.wire import Connection

TENANTS = ("red", "green", "blue", "white")
SHORT, LONGEST, ANSWER = 10, 3000, 64  # tokens
PASSES, GAP_RATIO = 5, 3.0
GROWTH, GROWTH_BYTES = 0.02, 16 << 20  # of memory that a flat course may have
SAMPLE_SECONDS = 2.0
KEPT_BIAS = -100.0  # of tokens that would end an answer
ENDS = (0, 1, 2)


@dataclass
class Course:
    """Everything that the clients saw."""

    places: int
    in_flight: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    tokens: dict[int, list[float]] = field(default_factory=dict)  # when each stream's tokens came
    shorts: list[tuple[float, float, int]] = field(default_factory=list)  # asked, first token, stream
    firsts: list[tuple[int, float]] = field(default_factory=list)  # tokens of the prompt, seconds
    memory: list[tuple[float, Memory]] = field(default_factory=list)

    def passes(self, asked: float, first: float, stream: int) -> int:
        """The passes between two times, as another stream saw them."""
        counts = [bisect.bisect_right(times, first) - bisect.bisect_right(times, asked)
                  for number, times in self.tokens.items() if number != stream and times[-1] >= asked]
        return max(1, *counts) if counts else 1


class Client:
    """One of the clients: a tenant's, with a request at a time."""

    def __init__(self, number: int, port: int, course: Course) -> None:
        self._number, self._port, self._course = number, port, course
        self._key = key_of(TENANTS[number % len(TENANTS)])
        self._draw = np.random.default_rng(number)

    def _body(self) -> tuple[int, dict[str, Any]]:
        length = SHORT if self._draw.random() < 0.25 else round(float(np.exp(self._draw.uniform(
            np.log(SHORT), np.log(LONGEST)))))
        prompt = self._draw.integers(300, 30_000, length).tolist()
        return length, {"model": MODEL, "prompt": prompt, "stream": True, "temperature": 1.0, "seed": self._number,
                        "max_tokens": int(self._draw.integers(16, ANSWER + 1)),
                        "logit_bias": {str(token): KEPT_BIAS for token in ENDS}}

    async def run(self, until: float, streams: Any) -> None:
        """Ask until the time is over."""
        connection = await Connection.to(self._port)
        while time.monotonic() < until:
            length, body = self._body()
            await self._one(connection, length, body, next(streams))
        connection.close()

    async def _one(self, connection: Connection, length: int, body: dict[str, Any], stream: int) -> None:
        course, room = self._course, self._course.in_flight < self._course.places
        course.in_flight += 1
        try:
            reply = await connection.ask("POST", "/v1/completions", self._key, body)
        finally:
            course.in_flight -= 1
        course.statuses[str(reply.status)] += 1
        if reply.status == 429:
            if "retry-after" not in reply.headers:
                course.broken.append("429 without a time to come again")
            await asyncio.sleep(float(reply.headers.get("retry-after", 1)))
            return
        times = reply.tokens_at
        if reply.status != 200 or not reply.whole or not times:
            course.broken.append(f"{reply.status}: {reply.body[-200:].decode(errors='replace')}")
            return
        course.tokens[stream] = times
        course.firsts.append((length, times[0] - reply.asked))
        if length == SHORT and room:
            course.shorts.append((reply.asked, times[0], stream))


async def drive(served: Served, clients: int, places: int, seconds: float) -> Course:
    """Have the clients ask, and look at the memory meanwhile."""
    course, start, streams = Course(places), time.monotonic(), itertools.count()

    async def watch() -> None:
        while True:
            course.memory.append((time.monotonic() - start, served.memory))
            await asyncio.sleep(SAMPLE_SECONDS)
    watching = asyncio.create_task(watch())
    await asyncio.gather(*(Client(number, served.port, course).run(start + seconds, streams)
                           for number in range(clients)))
    watching.cancel()
    return course


def spread(values: list[float]) -> list[float]:
    """The median, the 99th percentile and the most."""
    return [statistics.median(values), float(np.percentile(values, 99, method="higher")), max(values)]


def summary(course: Course, seconds: float) -> dict[str, Any]:
    """The figures of a course."""
    gaps = [1e3 * (late - soon) for times in course.tokens.values() for soon, late in itertools.pairwise(times)]
    warm = [memory.other for at, memory in course.memory if at <= seconds / 4]
    later = [memory.other for at, memory in course.memory if at > seconds / 4]
    return {
        "seconds": seconds, "statuses": dict(course.statuses), "broken": course.broken[:20],
        "requests": course.statuses.total(), "finished": len(course.tokens), "gap_ms": spread(gaps),
        "tokens_per_second": sum(map(len, course.tokens.values())) / seconds,
        "first_token_passes": spread([course.passes(*each) for each in course.shorts]),
        "short_prompts": len(course.shorts),
        "first_token_ms_short": spread([1e3 * (first - asked) for asked, first, _ in course.shorts]),
        "first_token_ms": spread([1e3 * each for _, each in course.firsts]),
        "memory_warm": max(warm), "memory_later": max(later), "memory_end": later[-1],
        "memory_protected": max(memory.protected for _, memory in course.memory)}


def promises(found: dict[str, Any]) -> dict[str, bool]:
    """Which promises were kept."""
    return {"every request finishes or gets a time at which to come again": not found["broken"],
            "p99 of gaps within 3 medians": found["gap_ms"][1] <= GAP_RATIO * found["gap_ms"][0],
            "memory is flat": found["memory_later"] <= found["memory_warm"] * (1 + GROWTH) + GROWTH_BYTES,
            "first token within 5 passes": found["first_token_passes"][1] <= PASSES}


def table_of(found: dict[str, Any]) -> list[str]:
    """The table's lines."""
    lines = [f"{'':34}{'p50':>9}{'p99':>9}{'most':>9}"]
    for what in ("gap_ms", "first_token_ms", "first_token_ms_short", "first_token_passes"):
        lines.append(f"{what.replace('_', ' '):34}" + "".join(f"{value:9.1f}" for value in found[what]))
    lines.append(f"{found['requests']} requests in {found['seconds']:.0f} s: {found['statuses']}; "
                 f"{found['finished']} answers, {found['tokens_per_second']:.1f} tokens/s, "
                 f"{found['short_prompts']} of ten tokens")
    lines.append("memory, MiB: " + ", ".join(f"{name} {found[f'memory_{name}'] >> 20}"
                                             for name in ("warm", "later", "end", "protected")))
    return [*lines, *(f"not finished: {each}" for each in found["broken"]),
            *(f"{'kept' if kept else 'BROKEN':8}{promise}" for promise, kept in promises(found).items())]


def deployment(args: argparse.Namespace) -> Deployment:
    """Four tenants, each with places of its own as far as they go."""
    return Deployment(
        commandline.model(args.model, args.work), dict.fromkeys(TENANTS, ""),
        model_block=f'  context_length = {LONGEST + ANSWER + 8}\n  kv_cache = "q8"\n'
                    '  prefix_cache {\n    size = "256MiB"\n  }',
        limits=f'  concurrent_requests = {args.places}\n  queued_requests = {args.queue}\n  prompt_tokens = {LONGEST}\n'
               f'  generation_tokens = {ANSWER}\n  first_token_timeout = "10m"\n  request_size = "128KiB"')


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.load", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--minutes", type=numbers.whole(1, 600), default=10, help="how long (default: %(default)s)")
    parser.add_argument("--clients", type=numbers.whole(1, 512), default=64, help="default: %(default)s")
    parser.add_argument("--places", type=numbers.whole(1, 512), default=64,
                        help="requests that the policy lets in at the same time (default: %(default)s)")
    parser.add_argument("--queue", type=numbers.whole(0, 512), default=0,
                        help="requests that it lets wait (default: %(default)s)")
    commandline.options(parser, "load.json")
    args = commandline.parse(parser)
    with Served(deployment(args)) as served:
        course = asyncio.run(drive(served, args.clients, args.places, 60.0 * args.minutes))
        alive = served.alive
    found = {**summary(course, 60.0 * args.minutes), "machine": report.machine(), "load_average": os.getloadavg()[0],
             "clients": args.clients, "places": args.places, "alive": alive}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(*table_of(found), f"load average {found['load_average']:.1f}", sep="\n")
    return int(not (alive and all(promises(found).values())))


if __name__ == "__main__":
    commandline.run(main)
