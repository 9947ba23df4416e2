"""`python -m benchmarks.leakage.cost`: what each example costs, for the same requests in turns.

So many clients ask at once, again and again, for answers of one length. The table has for each
policy the time to the first event with text and to the end, and the bytes of TLS of an answer. It
also has tokens a second over all clients, and core-seconds: of the busy service for each answer,
and of the idle one for each hour. Seconds are right only on an idle machine.

`tokens/s at most` is what a policy's interval allows, however fast the machine is: an answer has
one token in each, and ends at a multiple of `total`. Exit code 1 says that the strict policy has
less than half of the open one's tokens a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.cli import numbers
from appliance.policy import Policy, load
from appliance.service.admission.privacy import round_up
from benchmarks import commandline, report
from benchmarks.leakage.deployed import SETTINGS, lane, measured, path_of
from benchmarks.leakage.pairs import Maker
from benchmarks.leakage.trials import Client
from benchmarks.tenants.served import Served
from benchmarks.tenants.wire import Reply

LEAST = 0.5  # of the open policy's tokens a second
IDLE_SECONDS = 10.0
RECORD_BYTES = 22  # of a TLS 1.3 record beside its text: header, content type, tag


@dataclass(frozen=True)
class Turn:
    """One policy, measured."""

    replies: list[Reply]
    seconds: float
    busy_core_seconds: float
    idle_core_seconds: float  # in an hour

    def row(self, setting: str, tokens: int) -> dict[str, Any]:
        """Return medians and rates."""
        first = [(each.tokens_at or [each.ended])[0] - each.asked for each in self.replies]
        return {"policy": setting, "answers": len(self.replies),
                "first_seconds": round(statistics.median(first), 3),
                "seconds": round(statistics.median(each.ended - each.asked for each in self.replies), 3),
                "bytes": round(statistics.median(len(each.body) + RECORD_BYTES * len(each.pieces)
                                                 for each in self.replies)),
                "tokens_per_second": round(tokens * len(self.replies) / self.seconds, 1),
                "core_seconds_per_answer": round(self.busy_core_seconds / len(self.replies), 3),
                "idle_core_seconds_per_hour": round(self.idle_core_seconds)}


async def _client(port: int, number: int, model: str, args: argparse.Namespace, until: float) -> list[Reply]:
    client, make, found = Client(port, lane(number)), Maker(model, random.Random(number)), list[Reply]()
    while not found or time.monotonic() < until:
        body = make.chat(f"Write about {number} and {len(found)}.", max_tokens=args.tokens, ignore_eos=True)
        reply = await client.ask(body)
        if reply.status != 200 or not reply.whole:
            raise SystemExit(f"an answer failed: {reply.status} {reply.body[:400].decode(errors='replace')}")
        found.append(reply)
    client.close()
    return found


async def _load(port: int, model: str, args: argparse.Namespace) -> list[Reply]:
    until = time.monotonic() + args.seconds
    found = await asyncio.gather(*(_client(port, number, model, args, until) for number in range(args.clients)))
    return [each for replies in found for each in replies]


def turn(setting: str, args: argparse.Namespace) -> Turn:
    """Measure one policy, warm."""
    deployment = measured(setting, args.clients, model=args.model, work=args.work)
    model = deployment.loaded.models[0].name
    with Served(deployment) as served:
        warm = argparse.Namespace(**{**vars(args), "seconds": 0})
        asyncio.run(_load(served.port, model, warm))
        idle = served.processor_seconds
        time.sleep(IDLE_SECONDS)
        begun, busy = time.monotonic(), served.processor_seconds
        replies = asyncio.run(_load(served.port, model, args))
        return Turn(replies, time.monotonic() - begun, served.processor_seconds - busy,
                    (busy - idle) * 3600 / IDLE_SECONDS)


def bound(policy: Policy, clients: int, tokens: int) -> float | None:
    """Return the most tokens a second that passes at a policy's interval give to so many clients;
    None without an interval."""
    times = policy.privacy.timing_padding
    if times is None or not times.cadence_ms or not times.total_ms:
        return None
    answer_ms = round_up((tokens + 1) * times.cadence_ms, times.total_ms)  # a token comes at the end of its interval
    return min(clients, policy.limits.concurrent_requests) * tokens * 1000 / answer_ms


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    names = {"policy": "policy", "first_seconds": "first text, s", "seconds": "whole answer, s", "bytes": "bytes",
             "tokens_per_second": "tokens/s", "tokens_per_second_at_most": "tokens/s at most",
             "core_seconds_per_answer": "core-seconds an answer",
             "idle_core_seconds_per_hour": "core-seconds an idle hour"}
    lines = [f"| {' | '.join(names.values())} |", f"|{'---|' * len(names)}"]
    return "\n".join([*lines, *(f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in rows)])


def _cell(value: Any) -> str:
    return "–" if value is None else f"{value:.1f}" if isinstance(value, float) and value > 100 else str(value)


def main() -> int:
    """Measure the policies one after the other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.leakage.cost", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", default=list(SETTINGS), metavar="POLICY",
                        help="examples by name, or files (default: all three)")
    parser.add_argument("--model", metavar="MODEL", help=f"{commandline.NAMES}, or a GGUF file (default: the policy's)")
    parser.add_argument("--clients", type=numbers.whole(1, 256), default=8, help="at once (default: 8)")
    parser.add_argument("--tokens", type=commandline.TOKENS, default=60, help="of each answer (default: 60)")
    parser.add_argument("--seconds", type=numbers.whole(1, 3600), default=30, help="for each policy (default: 30)")
    parser.add_argument("--work", type=Path, default=Path("build/bench"), metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = [{**turn(setting, args).row(Path(setting).stem, args.tokens), "tokens_per_second_at_most": bound(
        load(path_of(setting)).policy, args.clients, args.tokens)} for setting in args.policies]
    found = {"rows": rows, "clients": args.clients, "tokens": args.tokens, "machine": report.machine(),
             "load_average": round(os.getloadavg()[0], 1)}
    print(json.dumps(found, indent=1) if args.json else table(rows))
    speeds = {row["policy"]: row["tokens_per_second"] for row in rows}
    return int(speeds.get("strict", math.inf) < LEAST * speeds.get("open", 0.0))


if __name__ == "__main__":
    commandline.run(main)
