"""`python -m benchmarks.cadence`: whether a cadence holds, and what it costs.

An appliance serves at a fixed interval. Its tenants are a crowd of clients that stream answers in
turn, a hostile tenant that sends the largest prompts and leaves, and an idle one. The deviation of
an event is the time after a multiple of the interval at which it came to a client's socket. Client
and appliance have one clock. Exit code 1 says that a pass was late.

Then eight requests are answered with the cadence and without, all at the same time: tokens a second
and processor seconds of each. Exit code 1 also says that less than half of the speed was left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import time
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.hostile import ANSWER, LARGEST, LOST, SHORT, ask, hostile, text
from benchmarks.tenants.load import ENDS, KEPT_BIAS, spread
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, Reply

AT_ONCE, PROMPT, TOKENS, LEAST_SHARE = 8, 32, 128, 0.5
PRIVACY = """  timing_padding {{
    cadence     = "{0}"
    first_token = "{0}"
    total       = "{0}"
  }}
  size_padding = "1KiB\""""
HOSTILE_CLIENTS, IDLE_SECONDS = 4, 7.0
# One answer of each of eight tenants: one tenant would leave slots to others.
TENANTS = ("crowd", "hostile", "idle", "admin", *(f"one-of-{AT_ONCE}-{number}" for number in range(AT_ONCE)))


def deployment(args: argparse.Namespace, cadence: str, prompt: int, answer: int) -> Deployment:
    """A policy with this privacy."""
    hidden = '  speculation = "hidden"' if cadence else '  speculation = "on"'
    return Deployment(
        commandline.model(args.model, args.work), dict.fromkeys(TENANTS, ""),
        model_block=f"  context_length = {prompt + answer}\n{hidden}",
        privacy=PRIVACY.format(cadence) if cadence else "", roles={"admin": "admin"},
        limits=f"  concurrent_requests = {AT_ONCE}\n  queued_requests = 512\n  prompt_tokens = {prompt}\n"
               f'  generation_tokens = {answer}\n  first_token_timeout = "1h"\n  request_size = "128KiB"')


async def metrics(port: int) -> dict[str, float]:
    """The appliance's metrics."""
    connection = await Connection.to(port)
    reply = await connection.ask("GET", "/metrics", key_of("admin"))
    connection.close()
    lines = [line.rpartition(" ") for line in reply.body.decode().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in lines}


async def client(port: int, tenant: str, number: int, pause: float, found: list[Reply]) -> None:
    """One client of a tenant, which asks again and again until it is cancelled."""
    draw = np.random.default_rng(number)
    while True:
        with contextlib.suppress(*LOST):
            found.append(await ask(port, tenant, text(draw, SHORT)))
        await asyncio.sleep(pause)


async def held(port: int, args: argparse.Namespace) -> dict[str, Any]:
    """Deviations, and late passes, beside all tenants."""
    before, crowd, seldom = await metrics(port), list[Reply](), list[Reply]()
    clients = [asyncio.create_task(each) for each in (
        client(port, "idle", 1, IDLE_SECONDS, seldom), *(hostile(port, each) for each in range(HOSTILE_CLIENTS)),
        *(client(port, "crowd", 2 + number, 0.0, crowd) for number in range(args.clients)))]
    await asyncio.sleep(args.seconds)
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    after, interval = await metrics(port), args.cadence / 1000
    late, most = (f'{name}{{model="{MODEL}"}}' for name in ("appliance_late_passes", "appliance_late_seconds_max"))
    times = [1e3 * (at % interval) for reply in (*crowd, *seldom) for at in reply.tokens_at]
    return {"deviation_ms": spread(times), "events": len(times), "late_passes": after[late] - before[late],
            "late_before": before[late], "latest_ms": 1e3 * after[most], "intervals": int(args.seconds / interval),
            "answers": sum(reply.whole for reply in crowd), "answers_idle": sum(reply.whole for reply in seldom)}


async def speed(port: int) -> float:
    """Tokens a second of as many answers at once as there are slots, prompts included."""
    async def answer(number: int) -> int:
        connection = await Connection.to(port)
        body = {"model": MODEL, "prompt": text(np.random.default_rng(number), PROMPT), "max_tokens": TOKENS,
                "temperature": 1.0, "seed": 1, "logit_bias": {str(token): KEPT_BIAS for token in ENDS}}
        reply = await connection.ask("POST", "/v1/completions", key_of(TENANTS[-1 - number]), body)
        connection.close()
        return int(reply.value["usage"]["completion_tokens"])

    begun = time.monotonic()
    tokens = sum(await asyncio.gather(*map(answer, range(AT_ONCE))))
    return tokens / (time.monotonic() - begun)


def throughput(args: argparse.Namespace) -> dict[str, Any]:
    """Both ways, one after the other."""
    found: dict[str, Any] = {}
    for name, cadence in (("without", ""), ("with", f"{args.fast}ms")):
        with Served(deployment(args, cadence, 256, 128)) as served:
            before, begun = served.processor_seconds, time.monotonic()
            found[f"tokens_per_second_{name}"] = asyncio.run(speed(served.port))
            found[f"cores_{name}"] = (served.processor_seconds - before) / (time.monotonic() - begun)
            if cadence:
                late = asyncio.run(metrics(served.port))[f'appliance_late_passes{{model="{MODEL}"}}']
                found["late_passes_at_eight"] = late
    return found | {"share": found["tokens_per_second_with"] / found["tokens_per_second_without"]}


def main() -> int:
    """Measure and report; 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cadence", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--seconds", type=numbers.whole(0, 86_400), default=600,
                        help="to hold it, 0 for not at all (default: %(default)s)")
    parser.add_argument("--clients", type=numbers.whole(1, 512), default=64, help="in the crowd (default: %(default)s)")
    parser.add_argument("--cadence", type=numbers.whole(1, 60_000), default=1000, metavar="MS",
                        help="the interval to hold (default: %(default)s)")
    parser.add_argument("--fast", type=numbers.whole(0, 60_000), default=200, metavar="MS",
                        help="the interval for eight requests, 0 for none (default: %(default)s)")
    commandline.options(parser, "cadence.json")
    args = commandline.parse(parser)
    found: dict[str, Any] = {"machine": report.machine(), "load_average": os.getloadavg()[0]}
    if args.seconds:
        with Served(deployment(args, f"{args.cadence}ms", LARGEST, ANSWER)) as served:
            found |= asyncio.run(held(served.port, args))
        print(f"deviation of events, ms: p50 {found['deviation_ms'][0]:.2f}, p99 {found['deviation_ms'][1]:.2f}, most "
              f"{found['deviation_ms'][2]:.2f}, of {found['events']} events")
        print(f"late passes: {found['late_passes']:.0f} of about {found['intervals']}; the latest by up to "
              f"{found['latest_ms']:.0f} ms; {found['answers']} answers, {found['answers_idle']} of the idle tenant")
    if args.fast:
        found |= throughput(args)
        print(f"eight requests: {found['tokens_per_second_without']:.1f} tokens/s without a cadence, "
              f"{found['tokens_per_second_with']:.1f} with ({100 * found['share']:.0f}%); cores "
              f"{found['cores_without']:.2f} and {found['cores_with']:.2f}; {found['late_passes_at_eight']:.0f} late")
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    return int(found.get("late_passes", 0) > 0 or found.get("share", 1.0) < LEAST_SHARE)


if __name__ == "__main__":
    commandline.run(main)
