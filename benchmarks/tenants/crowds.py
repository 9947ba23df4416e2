"""`python -m benchmarks.tenants.crowds --llama PYTHON`: 1, 4, 16 and 64 clients, beside llama.cpp's
server on the same machine.

PYTHON is that of an environment with the wheel `xllamacpp`. Both servers have as many places as
clients, 16 at most. Each client streams answers to prompts that nobody has sent before, one after
the other; both servers get the same, one after the other, in an order that turns. The table has
seconds to the first token, milliseconds between pieces of text, and tokens a second of all clients.

With `--guidellm PYTHON` the load and the figures are guidellm's, in one round. PYTHON is that of an
environment with guidellm 0.8.1: `python -m tests.clients.programs guidellm` leaves one in
build/clients.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants import guidellm
from benchmarks.tenants.chats import Llama, until_up
from benchmarks.tenants.load import ENDS, KEPT_BIAS, spread
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, Reply

TENANT = "red"
CLIENTS, PLACES = (1, 4, 16, 64), 16
PROMPT, ANSWER = (20, 400), (32, 96)  # tokens, from, to
NAMES = ("appliance", "llama.cpp")


async def client(port: int, seed: int, requests: int) -> list[tuple[Reply, int]]:
    """The answers of one client, and the tokens of each."""
    draw, found = np.random.default_rng(seed), []
    for _ in range(requests):
        answer = int(draw.integers(*ANSWER))
        body = {"model": MODEL, "prompt": draw.integers(300, 30_000, int(draw.integers(*PROMPT))).tolist(),
                "stream": True, "max_tokens": answer, "temperature": 0,
                "logit_bias": {str(token): KEPT_BIAS for token in ENDS}}
        connection = await Connection.to(port)  # llama.cpp's server closes one after each answer
        reply = await connection.ask("POST", "/v1/completions", key_of(TENANT), body)
        connection.close()
        if reply.status != 200 or not reply.whole or not reply.tokens_at:
            raise SystemExit(f"an answer with status {reply.status}: {reply.body[-300:]!r}")
        found.append((reply, answer))
    return found


async def crowd(port: int, clients: int, seed: int, requests: int) -> dict[str, Any]:
    """Measure what so many clients see of a server."""
    begun = time.monotonic()
    each = [client(port, 1000 * seed + number, requests) for number in range(clients)]
    replies = list(itertools.chain(*await asyncio.gather(*each)))
    times = [reply.tokens_at for reply, _ in replies]
    gaps = [1e3 * (late - soon) for at in times for soon, late in itertools.pairwise(at)]
    return {"first": [reply.tokens_at[0] - reply.asked for reply, _ in replies], "gaps": gaps,
            "tokens": sum(tokens for _, tokens in replies), "seconds": time.monotonic() - begun}


async def rounds(ports: dict[str, int], clients: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All rounds of so many clients."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in NAMES}
    requests = max(2, args.requests // clients)
    for number in range(args.rounds):
        for name in NAMES[:: 1 - 2 * (number % 2)]:
            await until_up(ports[name])
            found[name].append(await crowd(ports[name], clients, number, requests))
    return {name: {"first": spread(list(itertools.chain(*(each["first"] for each in all_)))),
                   "gaps": spread(list(itertools.chain(*(each["gaps"] for each in all_)))),
                   "speed": sum(each["tokens"] for each in all_) / sum(each["seconds"] for each in all_)}
            for name, all_ in found.items()}


def measured(model: Path, clients: int, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Both servers beside so many clients."""
    places, threads = min(clients, PLACES), len(os.sched_getaffinity(0))
    deployment = Deployment(
        model, {TENANT: ""}, model_block=f"  context_length = {sum(map(max, (PROMPT, ANSWER)))}",
        limits=f"  concurrent_requests = {places}\n  queued_requests = {clients}\n"
               f"  prompt_tokens = {PROMPT[1]}\n"
               f'  generation_tokens = {ANSWER[1]}\n  first_token_timeout = "10m"')
    with Served(deployment) as served, Llama(args.llama, model, threads, places) as llama:
        ports = {NAMES[0]: served.port, NAMES[1]: llama.port}
        if args.guidellm is None:
            return asyncio.run(rounds(ports, clients, args))
        for port in ports.values():
            asyncio.run(until_up(port))
        return {name: guidellm.measured(args.guidellm, port, key_of(TENANT), clients, max(2 * clients, args.requests))
                for name, port in ports.items()}


def table_of(found: dict[int, dict[str, dict[str, Any]]]) -> list[str]:
    """The table's lines."""
    lines = [f"{'clients':>7} {'server':10}{'first p50':>10}{'p99, s':>9}{'gap p50':>9}{'p99, ms':>9}{'tokens/s':>10}"]
    for clients, servers in found.items():
        for name, each in servers.items():
            lines.append(f"{clients:7} {name:10}{each['first'][0]:10.3f}{each['first'][1]:9.3f}{each['gaps'][0]:9.1f}"
                         f"{each['gaps'][1]:9.1f}{each['speed']:10.1f}")
    return lines


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.crowds", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--llama", type=Path, required=True, metavar="PYTHON", help="of an environment with xllamacpp")
    parser.add_argument("--guidellm", type=Path, metavar="PYTHON", help="of one with guidellm, which is the load then")
    parser.add_argument("--clients", type=numbers.whole(1, 512), nargs="+", default=list(CLIENTS), help="crowds")
    parser.add_argument("--requests", type=numbers.whole(1, 10_000), default=48,
                        help="of a round, by all clients; at least two of each (default: %(default)s)")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=2, help="default: %(default)s")
    commandline.options(parser, "crowds.json")
    args = commandline.parse(parser)
    model = commandline.model(args.model, args.work)
    found = {clients: measured(model, clients, args) for clients in args.clients}
    load = os.getloadavg()[0]
    args.output.write_text(json.dumps({"rows": found, "machine": report.machine(), "load_average": load}, indent=1)
                           + "\n")
    print(*table_of(found), f"load average {load:.1f}", sep="\n")
    return 0


if __name__ == "__main__":
    commandline.run(main)
