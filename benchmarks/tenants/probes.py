"""`python -m benchmarks.tenants.probes`: what a tenant can tell of another one's prefix cache.

Each trial draws two secret bits, and a prober tries to tell them:

    watch   a victim sends a text that it sent before (a hit), or a new one (a miss), while the prober has
            requests of its own under way
    ask     the victim sends some texts, or others; then the prober sends the first ones itself

The prober's observations are judged by kind, each kind by itself (`judging`):

    time      when each event of its answers came
    order     which of two answers of its own came first
    usage     the counts of its answers
    metrics   all differences of `/metrics`, which it may read
    errors    a refusal that depends on whether its requests are still in progress: code, headers, time

The prober is a co-tenant, and then the victim's own tenant: it must see the latter's hits, or the
probes are blind. Both are measured with padded times and without. Pairs of a victim and a prober
share one appliance (`--lanes`): more lanes take less time, and add noise. Where first tokens then
take longer than the grid, a metric may tell when the victim's request ended, and a warning says so.
Exit code 1 says that with padding a co-tenant told some bit better than `MOST` allows, or that
nobody within the tenant could tell `ask` well enough without it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.judging import Verdict, judge
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, Reply

KINDS = ("time", "order", "usage", "metrics", "errors")
TOKENS, SHORT = 384, 10  # of the texts that are told apart, and of a request that only watches
WATCHED, ASKED = 6, 2  # tokens of answers
PLACES = 3  # requests of a tenant at the same time
MOST, LEAST = 0.53, 0.90
EVENTS = 8  # of a stream that are looked at
IDLE_SECONDS = 5.0  # after which a connection is not used again: the appliance ends it at some time
CLIENT_SECONDS = 0.05  # from a multiple of the grid to the client's reading: no longer is late
LATE = 0.01  # of first tokens may miss the first multiple
STEPS = 10  # multiples of the grid over which lanes begin, so that they do not ask together
WARMING = 5  # trials of a lane that are not judged
_SAMPLE = re.compile(r"^([a-z_]+(?:\{[^}]*\})?) ([0-9.e+-]+)$", re.MULTILINE)
Features = list[float]


@dataclass
class Seen:
    """The observations of all trials, by bit and kind."""

    features: dict[tuple[str, str], list[Features]] = field(default_factory=lambda: defaultdict(list))
    bits: dict[str, list[bool]] = field(default_factory=lambda: defaultdict(list))
    seconds: list[float] = field(default_factory=list)  # that texts took which were read anew
    waits: list[float] = field(default_factory=list)  # seconds until the first part of each answer

    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        """How well each kind tells each bit."""
        return {(bit, kind): judge(_even(rows), self.bits[bit]) for (bit, kind), rows in self.features.items()}


def _even(rows: Sequence[Features]) -> list[Features]:
    """Rows of one length: metrics appear as they are first counted."""
    width = max(map(len, rows))
    return [[*row, *[0.0] * (width - len(row))] for row in rows]


def times_of(reply: Reply) -> Features:
    """Seconds from the request to the head, to each of the first events, and to the end."""
    events = [at - reply.asked for at, _ in reply.pieces[:EVENTS]]
    return [reply.head_at - reply.asked, *events, *[0.0] * (EVENTS - len(events)), reply.ended - reply.asked,
            float(len(reply.pieces))]


def begun(reply: Reply) -> float:
    """When the first part of an answer came."""
    return reply.pieces[0][0] if reply.pieces else reply.ended


def usage_of(reply: Reply) -> Features:
    """The counts that an answer tells, and its size."""
    usage: dict[str, Any] = next((event["usage"] for _, event in reply.events if event.get("usage")), {})
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return [float(cached), float(usage.get("prompt_tokens", 0)), float(usage.get("completion_tokens", 0)),
            float(len(reply.body))]


def refusal_of(reply: Reply) -> Features:
    """The facts of a refusal, or of an answer in its place."""
    error = (reply.value or {}).get("error", {})
    words = sum(map(ord, json.dumps(error)))  # tells one refusal from another
    return [float(reply.status), float(words), float(reply.headers.get("retry-after", -1)), float(len(reply.body)),
            float(len(reply.headers)), reply.ended - reply.asked]


class Numbers:
    """The samples of `/metrics`, in the order in which they were first seen."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def read(self, text: str) -> Features:
        """The values of a scrape."""
        found = dict(_SAMPLE.findall(text))
        for name in found:
            self._places.setdefault(name, len(self._places))
        return [float(found.get(name, 0)) for name in self._places]


def change(before: Features, after: Features) -> Features:
    """The differences of two scrapes, and what the later one says."""
    return [late - soon for late, soon in itertools.zip_longest(after, before, fillvalue=0.0)]


class Lane:
    """A victim and its prober."""

    def __init__(self, port: int, number: int, *, within: bool, numbers: Numbers, seen: Seen) -> None:
        self._port, self._numbers, self._seen = port, numbers, seen
        self._victim = key_of(f"victim{number}")
        self._prober = self._victim if within else key_of(f"prober{number}")
        self._draw = np.random.default_rng([number, within])
        self._idle: list[Connection] = []
        self._before: list[int] = self._text()  # that the victim sent

    def _text(self, tokens: int = TOKENS) -> list[int]:
        found: list[int] = self._draw.integers(300, 1000, tokens).tolist()
        return found

    async def _ask(self, key: str, prompt: list[int], tokens: int) -> Reply:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 1.0, "seed": 1,
                "stream_options": {"include_usage": True}}
        reply = await self._over("POST", "/v1/completions", key, body)
        if reply.status == 200:
            self._seen.waits.append(begun(reply) - reply.asked)
        return reply

    async def _over(self, method: str, path: str, key: str, body: dict[str, Any] | None = None) -> Reply:
        fresh = [each for each in self._idle if each.idle < IDLE_SECONDS]
        connection = fresh[0] if fresh else await Connection.to(self._port)
        self._idle = [each for each in fresh if each is not connection]
        reply = await connection.ask(method, path, key, body)
        self._idle.append(connection)
        return reply

    async def _scrape(self) -> Features:
        reply = await self._over("GET", "/metrics", self._prober)
        return self._numbers.read(reply.body.decode())

    async def trial(self, *, judged: bool) -> None:
        """One trial of each bit."""
        for bit, run in (("watch", self._watch), ("ask", self._probe)):
            secret = bool(self._draw.random() < 0.5)
            found = await run(secret)
            if judged:
                self._seen.bits[bit].append(secret)
                for kind, features in found.items():
                    self._seen.features[bit, kind].append(features)

    async def _watch(self, hit: bool) -> dict[str, Features]:
        """The victim sends a text again, or a new one, while the prober has all requests that it
        may, and one more."""
        text = self._before if hit else self._text()
        before = await self._scrape()
        victim = asyncio.create_task(self._ask(self._victim, text, ASKED))
        watching = [asyncio.create_task(self._ask(self._prober, self._text(SHORT), WATCHED)) for _ in range(PLACES + 1)]
        await asyncio.sleep(0)
        during = await self._scrape()
        first, second, third, more = await asyncio.gather(*watching)
        await victim
        after = await self._scrape()
        self._before = text
        order = [float(begun(first) < begun(second)), float(first.ended < second.ended),
                 float(second.ended < third.ended)]
        return {"time": times_of(first) + times_of(second), "order": order, "usage": usage_of(first) + usage_of(second),
                "metrics": change(before, during) + change(before, after), "errors": refusal_of(more)}

    async def _probe(self, same: bool) -> dict[str, Features]:
        """The victim sends three texts; the prober sends these, or three others."""
        sent = [self._text() for _ in range(3)]
        await asyncio.gather(*(self._ask(self._victim, text, ASKED) for text in sent))
        asked, ordered, repeated = sent if same else [self._text() for _ in range(3)]
        before = await self._scrape()
        reply = await self._ask(self._prober, asked, ASKED)
        after = await self._scrape()
        other = asyncio.create_task(self._ask(self._prober, self._text(), ASKED))
        await asyncio.sleep(0)
        mine, other_reply = await self._ask(self._prober, ordered, ASKED), await other
        order = [float(begun(mine) < begun(other_reply)), float(mine.ended < other_reply.ended)]
        errors = await self._refused(repeated)
        self._seen.seconds.append(other_reply.ended - other_reply.asked)
        return {"time": times_of(reply), "order": order, "usage": usage_of(reply), "metrics": change(before, after),
                "errors": errors}

    async def _refused(self, text: list[int]) -> Features:
        """Take all places but one with texts that are read anew, and the last one with `text`; once
        a hit would be over, ask for one more."""
        fresh = [asyncio.create_task(self._ask(self._prober, self._text(), WATCHED)) for _ in range(PLACES - 1)]
        last = asyncio.create_task(self._ask(self._prober, text, 1))
        await asyncio.sleep(0.6 * statistics.median(self._seen.seconds[-50:]) if self._seen.seconds else 0.01)
        reply = await self._ask(self._prober, self._text(SHORT), 1)
        await asyncio.gather(*fresh, last)
        return refusal_of(reply)

    async def run(self, trials: int, until: float, delay: float) -> None:
        """So many trials, and some before them, after a delay; no more once the time is over."""
        await asyncio.sleep(delay)
        await self._ask(self._victim, self._before, ASKED)
        for number in range(trials + WARMING):
            if time.monotonic() > until:
                break
            await self.trial(judged=number >= WARMING)
        for connection in self._idle:
            connection.close()


def deployment(args: argparse.Namespace, *, padded: bool) -> Deployment:
    """Pairs of tenants, with a prefix cache; times on a grid, or not."""
    names = [f"{who}{number}" for number in range(args.lanes) for who in ("victim", "prober")]
    grids = "\n".join(f'    {name} = "{args.grid}ms"' for name in ("first_token", "total"))
    padding = f"  timing_padding {{\n{grids}\n  }}\n" if padded else ""
    return Deployment(
        commandline.model(args.model, args.work), dict.fromkeys(names, f"    concurrent_requests = {PLACES}"),
        model_block='  context_length = 1024\n  prefix_cache {\n    size = "256MiB"\n  }',
        privacy=f"{padding}  token_count_rounding = 1", roles=dict.fromkeys(names, "admin"),
        limits=f"  concurrent_requests = {8 * args.lanes}\n  queued_requests = 64\n  prompt_tokens = 1000\n"
               "  generation_tokens = 16")


async def drive(port: int, args: argparse.Namespace, *, within: bool, trials: int) -> Seen:
    """So many trials against one appliance."""
    seen, names, spread = Seen(), Numbers(), STEPS * args.grid / 1000 / args.lanes
    lanes = [Lane(port, number, within=within, numbers=names, seen=seen) for number in range(args.lanes)]
    until = math.inf if args.minutes is None else time.monotonic() + 60.0 * args.minutes
    await asyncio.gather(*(lane.run(-(-trials // args.lanes), until, number * spread)
                           for number, lane in enumerate(lanes)))
    return seen


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each setting, bit and kind."""
    rows = []
    for padded in (True, False):
        with Served(deployment(args, padded=padded)) as served:
            for within in (False, True):
                start, trials = time.monotonic(), args.trials if padded and not within else args.others or args.trials
                seen = asyncio.run(drive(served.port, args, within=within, trials=trials))
                late = sum(wait > args.grid / 1000 + CLIENT_SECONDS for wait in seen.waits) / max(1, len(seen.waits))
                rows += [{"padded": padded, "within": within, "bit": bit, "kind": kind, "trials": verdict.trials,
                          "share": verdict.share, "at_most": verdict.at_most, "at_least": verdict.at_least,
                          "seconds": time.monotonic() - start, "late": late}
                         for (bit, kind), verdict in seen.verdicts().items()]
                if padded and late > LATE:
                    print(f"a grid of {args.grid} ms is too fine for {args.lanes} lanes: {100 * late:.1f}% of the "
                          f"first tokens came later; allowed: a coarser --grid or fewer --lanes", file=sys.stderr)
                for row in rows[-2 * len(KINDS):]:
                    print(line_of(row), flush=True)
    return rows


def line_of(row: dict[str, Any]) -> str:
    """A row in words."""
    who = "same tenant" if row["within"] else "co-tenant"
    return (f"{'padded' if row['padded'] else 'not padded':11}{who:12}{row['bit']:6}{row['kind']:8}"
            f"{row['trials']:7}{100 * row['share']:8.1f}%  {100 * row['at_least']:5.1f}..{100 * row['at_most']:.1f}%")


def kept(rows: list[dict[str, Any]]) -> bool:
    """Whether a co-tenant sees nothing through padding, and the same tenant sees hits without."""
    hidden = all(row["at_most"] <= MOST for row in rows if row["padded"] and not row["within"])
    return hidden and all(row["share"] >= LEAST for row in rows
                          if not row["padded"] and row["within"] and row["bit"] == "ask")


def main() -> int:
    """Measure and report; 1 when something shows, or nothing can be seen."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.probes", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="tiny", help=f"{commandline.NAMES}, or a GGUF file (default: tiny)")
    parser.add_argument("--trials", type=numbers.whole(10, 1_000_000), default=10_000, help="default: %(default)s")
    parser.add_argument("--others", type=numbers.whole(10, 1_000_000), default=None,
                        help="trials of the other three parts: without padding, or within a tenant (default: as many)")
    parser.add_argument("--lanes", type=numbers.whole(1, 64), default=16,
                        help="pairs of tenants (default: %(default)s)")
    parser.add_argument("--grid", type=numbers.whole(1, 60_000), default=600,
                        help="milliseconds of the padded times' grid (default: %(default)s)")
    parser.add_argument("--minutes", type=numbers.whole(1, 6000), default=None,
                        help="end each of the four parts after so long, with the trials that there are")
    commandline.options(parser, "probes.json")
    args = commandline.parse(parser)
    rows = measure(args)
    found = {"rows": rows, "machine": report.machine(), "load_average": os.getloadavg()[0], "grid_ms": args.grid,
             "lanes": args.lanes}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"load average {found['load_average']:.1f}")
    return int(not kept(rows))


if __name__ == "__main__":
    commandline.run(main)
