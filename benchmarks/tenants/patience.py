"""`python -m benchmarks.tenants.patience`: what a long prompt waits for beside short chats, and
they for each other.

A prompt of 5,000 tokens is sent alone, and then beside 16 clients who keep sending short chats, in
turns. Then so many clients begin at the same time. The table has seconds to the first token. Exit
code 1 says that a promise was not kept:

    the long prompt takes at most three times its time without others, also at its worst
    of those that begin together the last has its first token within twice the median
    the gaps of the chats beside the long prompt are within three of their medians at p99
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.load import ENDS, KEPT_BIAS, spread
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, Reply

LONG, SHORT, ANSWER = 5000, (20, 200), (32, 64)  # tokens: of the long prompt; of short ones and their answers, from, to
WAIT, TOGETHER, GAP_RATIO = 3.0, 2.0, 3.0
SETTLING = 2.0  # seconds of chats before the long prompt comes


@dataclass
class Seen:
    """Seconds, as the clients saw them."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    together: list[list[float]] = field(default_factory=list)  # of each round, in order
    gaps: list[float] = field(default_factory=list)  # of chats beside the long prompt


class Clients:
    """Clients of one or several tenants."""

    def __init__(self, port: int, tenants: int) -> None:
        self._port, self._tenants, self._draw = port, tenants, np.random.default_rng(0)

    async def ask(self, number: int, tokens: int, answer: int) -> Reply:
        """One request of a client with a prompt that nobody has sent before."""
        connection = await Connection.to(self._port)
        body = {"model": MODEL, "prompt": self._draw.integers(300, 30_000, tokens).tolist(), "stream": True,
                "temperature": 1.0, "max_tokens": answer,
                "logit_bias": {str(token): KEPT_BIAS for token in ENDS}}
        try:
            reply = await connection.ask("POST", "/v1/completions", key_of(f"t{number % self._tenants}"), body)
        finally:
            connection.close()
        if reply.status != 200 or not reply.tokens_at:
            raise SystemExit(f"an answer with status {reply.status}: {reply.body[:300]!r}")
        return reply

    async def short(self, number: int) -> Reply:
        """A short chat."""
        return await self.ask(number, int(self._draw.integers(*SHORT)), int(self._draw.integers(*ANSWER)))

    async def long(self, number: int = 0) -> float:
        """Seconds to the first token of the long prompt."""
        return _first(await self.ask(number, LONG, 4))  # one may be a part of a character


def _first(reply: Reply) -> float:
    return reply.tokens_at[0] - reply.asked


async def drive(served: Served, clients: int, tenants: int, rounds: int) -> Seen:
    """All rounds."""
    seen, own = Seen(), Clients(served.port, tenants)
    await own.short(0)  # the engine is warm
    for _ in range(rounds):
        seen.alone.append(await own.long())
        done = asyncio.Event()

        async def chat(number: int, done: asyncio.Event = done) -> None:
            while not done.is_set():
                times = (await own.short(number)).tokens_at
                seen.gaps.extend(late - soon for soon, late in itertools.pairwise(times))
        chats = [asyncio.create_task(chat(number)) for number in range(clients)]
        await asyncio.sleep(SETTLING)
        seen.gaps.clear()
        seen.beside.append(await own.long())
        done.set()
        await asyncio.gather(*chats)
        length = sum(SHORT) // 2  # one for all: who waits is to show, not who wrote more
        together = await asyncio.gather(*(own.ask(number, length, ANSWER[0]) for number in range(clients)))
        seen.together.append(sorted(map(_first, together)))
    return seen


def summary(seen: Seen) -> dict[str, Any]:
    """The figures."""
    return {"alone": spread(seen.alone), "beside": spread(seen.beside), "gaps": spread(seen.gaps),
            "together": spread(list(itertools.chain(*seen.together))),
            "wait": max(seen.beside) / statistics.median(seen.alone),
            "last": statistics.median(each[-1] / statistics.median(each) for each in seen.together)}


def promises(found: dict[str, Any]) -> dict[str, bool]:
    """Which promises were kept."""
    return {f"a long prompt within {WAIT:g} times its time without others": found["wait"] <= WAIT,
            f"the last of several that begin together within {TOGETHER:g} medians": found["last"] <= TOGETHER,
            f"p99 of gaps within {GAP_RATIO:g} medians": found["gaps"][1] <= GAP_RATIO * found["gaps"][0]}


def table_of(found: dict[str, Any]) -> list[str]:
    """The table's lines."""
    names = {"alone": "long prompt alone", "beside": "long prompt beside chats",
             "together": "chats that begin together", "gaps": "gaps beside the long prompt"}
    return [f"{'seconds':32}{'p50':>9}{'p99':>9}{'most':>9}",
            *(f"{name:32}" + "".join(f"{value:9.3f}" for value in found[what]) for what, name in names.items()),
            f"long prompt: {found['wait']:.2f} times its time without others; the last of the chats: "
            f"{found['last']:.2f} medians",
            *(f"{'kept' if kept else 'BROKEN':8}{promise}" for promise, kept in promises(found).items())]


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.patience", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--clients", type=numbers.whole(1, 512), default=16, help="with chats (default: %(default)s)")
    parser.add_argument("--tenants", type=numbers.whole(1, 16), default=1, help="of the clients (default: %(default)s)")
    parser.add_argument("--rounds", type=numbers.whole(1, 100), default=5, help="default: %(default)s")
    commandline.options(parser, "patience.json")
    args = commandline.parse(parser)
    places = args.clients + 1
    deployment = Deployment(
        commandline.model(args.model, args.work), {f"t{number}": "" for number in range(args.tenants)},
        model_block=f'  context_length = {LONG + 8}\n  kv_cache = "q8"',
        limits=f"  concurrent_requests = {places + places // 3 + 1}\n  prompt_tokens = {LONG}\n"
               f'  generation_tokens = {ANSWER[1]}\n  first_token_timeout = "10m"\n  request_size = "128KiB"')
    with Served(deployment) as served:
        seen = asyncio.run(drive(served, args.clients, args.tenants, args.rounds))
        alive = served.alive
    found = {**summary(seen), "machine": report.machine(), "load_average": os.getloadavg()[0], "clients": args.clients,
             "tenants": args.tenants, "alive": alive}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(*table_of(found), f"load average {found['load_average']:.1f}", sep="\n")
    return int(not (alive and all(promises(found).values())))


if __name__ == "__main__":
    commandline.run(main)
