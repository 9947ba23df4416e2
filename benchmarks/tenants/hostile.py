"""`python -m benchmarks.tenants.hostile`: what a tenant feels of a hostile one.

A tenant streams answers to prompts of ten tokens, first alone, then beside a hostile tenant. The
hostile one sends the largest prompts, each new, so that they fill its share of the prefix cache
again and again. Some of its clients read slowly, some leave after the first event. Exit code 1 says
that a promise was not kept:

    the median gap at most doubles, which is the hostile tenant's share
    every answer finishes
    the tenant's own text, sent before, is still found in the cache
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import time
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.load import ENDS, KEPT_BIAS, spread
from benchmarks.tenants.probes import usage_of
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, Reply

TENANTS = ("quiet", "hostile")
LARGEST, SHORT, ANSWER, KEPT = 3000, 10, 24, 1000  # tokens
PLACES, SHARE = 12, 2.0
MANNERS: tuple[dict[str, Any], ...] = ({}, {"pause": 0.5}, {"leave_after": 1})
LOST = (ConnectionError, asyncio.IncompleteReadError)  # of clients that left, and that were left


async def ask(port: int, tenant: str, prompt: list[int], **manner: Any) -> Reply:
    """Send one prompt on a connection of its own."""
    connection = await Connection.to(port)
    try:
        body = {"model": MODEL, "prompt": prompt, "stream": True, "max_tokens": ANSWER, "temperature": 1.0, "seed": 1,
                "logit_bias": {str(token): KEPT_BIAS for token in ENDS}, "stream_options": {"include_usage": True}}
        return await connection.ask("POST", "/v1/completions", key_of(tenant), body, **manner)
    finally:
        connection.close()


def text(draw: np.random.Generator, tokens: int) -> list[int]:
    """A prompt of random tokens."""
    found: list[int] = draw.integers(300, 900, tokens).tolist()
    return found


async def hostile(port: int, number: int) -> None:
    """One of the hostile clients, until it is cancelled."""
    draw, manner = np.random.default_rng(number), MANNERS[number % len(MANNERS)]
    while True:
        try:
            reply = await ask(port, "hostile", text(draw, LARGEST), **manner)
            await asyncio.sleep(float(reply.headers.get("retry-after", 0)))
        except LOST:
            await asyncio.sleep(0.1)


async def quiet(port: int, seconds: float, seed: int) -> tuple[list[Reply], int]:
    """The quiet tenant's answers over a time, and how many were none."""
    draw, until, found, lost = np.random.default_rng(seed), time.monotonic() + seconds, list[Reply](), 0
    while time.monotonic() < until:
        reply = await ask(port, "quiet", text(draw, SHORT))
        if reply.status == 200 and reply.whole:
            found.append(reply)
        else:
            lost += 1
    return found, lost


async def drive(port: int, args: argparse.Namespace) -> dict[str, Any]:
    """Alone, then beside the hostile tenant, and whether the cache still has what it had."""
    kept, seconds = text(np.random.default_rng(0), KEPT), 60.0 * args.minutes
    await ask(port, "quiet", kept)
    before = usage_of(await ask(port, "quiet", kept))[0]
    alone, lost = await quiet(port, seconds / 3, 1)
    clients = [asyncio.create_task(hostile(port, number)) for number in range(args.clients)]
    beside, more = await quiet(port, seconds, 2)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    after = usage_of(await ask(port, "quiet", kept))[0]
    found: dict[str, Any] = {"cached_before": before, "cached_after": after, "unfinished": lost + more}
    for name, replies in (("alone", alone), ("beside", beside)):
        gaps = [late - soon for each in replies for soon, late in itertools.pairwise(each.tokens_at)]
        found[f"gap_ms_{name}"] = spread([1e3 * gap for gap in gaps])
        found[f"first_token_ms_{name}"] = spread([1e3 * (each.tokens_at[0] - each.asked) for each in replies])
        found[f"answers_{name}"] = len(replies)
    return found


def kept_promises(found: dict[str, Any]) -> bool:
    """Whether the quiet tenant kept its share, its answers and its cache."""
    return bool(found["gap_ms_beside"][0] <= SHARE * found["gap_ms_alone"][0] and not found["unfinished"]
                and 0 < found["cached_before"] == found["cached_after"])


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.hostile", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--minutes", type=numbers.whole(1, 600), default=3,
                        help="beside the hostile tenant (default: %(default)s); a third of it alone")
    parser.add_argument("--clients", type=numbers.whole(1, 64), default=10, help="hostile ones (default: %(default)s)")
    commandline.options(parser, "hostile.json")
    args = commandline.parse(parser)
    deployment = Deployment(
        commandline.model(args.model, args.work), dict.fromkeys(TENANTS, ""),
        model_block=f'  context_length = {LARGEST + 64}\n  prefix_cache {{\n    size = "256MiB"\n  }}',
        limits=f"  concurrent_requests = {PLACES}\n  queued_requests = 4\n  prompt_tokens = {LARGEST}\n"
               f'  generation_tokens = {ANSWER}\n  first_token_timeout = "10m"\n  request_size = "128KiB"')
    with Served(deployment) as served:
        found = asyncio.run(drive(served.port, args))
    found |= {"machine": report.machine(), "load_average": os.getloadavg()[0]}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{'the quiet tenant':34}{'p50':>9}{'p99':>9}{'most':>9}")
    for name in ("gap_ms_alone", "gap_ms_beside", "first_token_ms_alone", "first_token_ms_beside"):
        words = name.replace("_", " ")
        print(f"{words:34}" + "".join(f"{value:9.1f}" for value in found[name]))
    print(f"{found['answers_alone']} answers alone, {found['answers_beside']} beside, "
          f"{found['unfinished']} unfinished")
    print(f"cached {found['cached_before']:.0f} tokens before, {found['cached_after']:.0f} after; "
          f"load average {found['load_average']:.1f}")
    return int(not kept_promises(found))


if __name__ == "__main__":
    commandline.run(main)
