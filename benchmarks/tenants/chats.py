"""`python -m benchmarks.tenants.chats --llama PYTHON`: chats of several turns, beside llama.cpp's
server on the same machine, its prefix cache on.

PYTHON is that of an environment with the wheel `xllamacpp`. In each round both servers have the
same chats, one after the other, in an order that turns; the chats of a round are held at the same
time. Each turn sends the conversation so far, as clients do. Texts are shorter where a model's
tokenizer makes more tokens of a word, as synthetic ones do. The table has medians over rounds:
tokens a second of all chats, and the time to the first token from the second turn on. Exit code 1
says that the promised ratios were missed: 1.5 and 0.7.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.cli import numbers
from benchmarks import commandline, report
from benchmarks.tenants.served import MODEL, Deployment, Served, key_of
from benchmarks.tenants.wire import Connection, text_of

TENANT = "red"
CONTEXT, ANSWER = 4096, 48  # tokens
OPENING_WORDS, TURN_WORDS = 300, 40  # at most
OPENING_TOKENS, TURN_TOKENS = 800, 80  # about, at most
SPEED, FIRST = 1.5, 0.7
WORDS = tuple(first + last for first in ("river", "stone", "light", "garden", "winter", "paper", "music", "silver")
              for last in ("", "s", " bridge", " market"))
START_SECONDS = 120.0


class Llama:
    """llama.cpp's server, as a context."""

    def __init__(self, python: Path, model: Path, threads: int, slots: int, context: int = CONTEXT) -> None:
        script = Path(__file__).with_name("llama_chats.py")
        self._process = subprocess.Popen(
            [python, str(script), str(model), str(threads), str(slots), str(context)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.strip().isdigit():
            raise SystemExit(f"{python}: llama.cpp's server did not start; is xllamacpp installed there?")
        self.port, self.pid = int(line), self._process.pid

    def __enter__(self) -> Llama:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True)
class Lengths:
    """Words of the texts of a chat."""

    opening: int
    turn: int


async def lengths(port: int) -> Lengths:
    """As many words as the model's context has room for, from the tokens of all words once."""
    connection = await Connection.to(port)
    body = {"model": MODEL, "prompt": " ".join(WORDS), "max_tokens": 1}
    reply = await connection.ask("POST", "/v1/completions", key_of(TENANT), body)
    connection.close()
    if reply.status != 200:
        raise SystemExit(f"a prompt was not answered: {reply.status} {reply.body[-300:].decode(errors='replace')}")
    of_word = json.loads(reply.body)["usage"]["prompt_tokens"] / len(WORDS)
    return Lengths(min(OPENING_WORDS, int(OPENING_TOKENS / of_word)), min(TURN_WORDS, int(TURN_TOKENS / of_word)))


async def chat(port: int, seed: int, turns: int, words: Lengths) -> tuple[list[float], int]:
    """Hold one chat; seconds to the first token of each turn, and tokens of all answers."""
    draw, firsts, tokens = np.random.default_rng(seed), list[float](), 0
    messages = [{"role": "system", "content": " ".join(draw.choice(WORDS, words.opening))}]
    for _ in range(turns):
        messages.append({"role": "user", "content": " ".join(draw.choice(WORDS, words.turn))})
        body: dict[str, Any] = {"model": MODEL, "messages": messages, "stream": True, "max_tokens": ANSWER,
                                "temperature": 0, "logit_bias": {"0": -100, "1": -100, "2": -100}}
        connection = await Connection.to(port)
        reply = await connection.ask("POST", "/v1/chat/completions", key_of(TENANT), body)
        connection.close()
        if reply.status != 200 or not reply.tokens_at:
            raise SystemExit(f"a turn was not answered: {reply.status} {reply.body[-300:].decode(errors='replace')}")
        firsts.append(reply.tokens_at[0] - reply.asked)
        tokens += ANSWER
        text = "".join(text_of(choice) for _, event in reply.events for choice in event.get("choices", ()))
        messages.append({"role": "assistant", "content": text})
    return firsts, tokens


async def chats(port: int, first: int, count: int, turns: int, words: Lengths) -> tuple[float, float]:
    """Hold several chats at the same time: tokens a second, and the median time to a first token of
    later turns."""
    start = time.monotonic()
    found = await asyncio.gather(*(chat(port, first + number, turns, words) for number in range(count)))
    seconds = time.monotonic() - start
    later = [each for firsts, _ in found for each in firsts[1:]]
    return sum(tokens for _, tokens in found) / seconds, statistics.median(later)


async def until_up(port: int) -> None:
    """Wait until a server answers that it is ready."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        try:
            connection = await Connection.to(port)
            reply = await connection.ask("GET", "/health", "")
            connection.close()
            if reply.status == 200:
                return
        except OSError:
            pass
        await asyncio.sleep(0.2)
    raise SystemExit(f"nothing is ready on port {port}")


async def rounds(ports: dict[str, int], args: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """Run all rounds, after a first round that is not counted."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ports}
    words = await lengths(ports["appliance"])
    for number in range(args.rounds + 1):
        names = list(ports)
        for name in names[number % 2:] + names[:number % 2]:
            await until_up(ports[name])
            result = await chats(ports[name], 1000 * number, args.chats, args.turns, words)
            if number:
                found[name].append(result)
    return found


def summary(found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Medians of both, and of the ratios within rounds."""
    ours, theirs = found["appliance"], found["llama.cpp"]
    return {"rounds": found, **{
        f"{what}_{name}": statistics.median(each[place] for each in results)
        for name, results in found.items() for place, what in enumerate(("tokens_per_second", "first_token_seconds"))},
        "speed_ratio": statistics.median(own[0] / other[0] for own, other in zip(ours, theirs, strict=True)),
        "first_token_ratio": statistics.median(own[1] / other[1] for own, other in zip(ours, theirs, strict=True))}


def main() -> int:
    """Measure and report; 1 when a ratio was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tenants.chats", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo", help=f"{commandline.NAMES}, or a GGUF file (default: demo)")
    parser.add_argument("--llama", type=Path, required=True, metavar="PYTHON", help="of an environment with xllamacpp")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=5, help="default: %(default)s")
    parser.add_argument("--chats", type=numbers.whole(1, 64), default=4, help="at the same time (default: %(default)s)")
    parser.add_argument("--turns", type=numbers.whole(2, 32), default=5, help="of a chat (default: %(default)s)")
    commandline.options(parser, "chats.json")
    args = commandline.parse(parser)
    model, threads = commandline.model(args.model, args.work), len(os.sched_getaffinity(0))
    deployment = Deployment(
        model, {TENANT: ""}, model_block=f'  context_length = {CONTEXT}\n  prefix_cache {{\n    size = "1GiB"\n  }}',
        limits=f"  concurrent_requests = {args.chats}\n  prompt_tokens = {CONTEXT - 128}\n"
               f'  generation_tokens = {ANSWER}\n  first_token_timeout = "10m"')
    with Served(deployment) as served, Llama(args.llama, model, threads, args.chats) as llama:
        found = summary(asyncio.run(rounds({"appliance": served.port, "llama.cpp": llama.port}, args)))
    found |= {"machine": report.machine(), "load_average": os.getloadavg()[0]}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    for name in ("appliance", "llama.cpp"):
        first = 1e3 * found[f"first_token_seconds_{name}"]
        print(f"{name:12}{found[f'tokens_per_second_{name}']:9.1f} tokens/s{first:9.1f} ms to the first token")
    print(f"ratio       {found['speed_ratio']:9.2f}         {found['first_token_ratio']:9.2f}; "
          f"load average {found['load_average']:.1f}")
    return int(found["speed_ratio"] < SPEED or found["first_token_ratio"] > FIRST)


if __name__ == "__main__":
    commandline.run(main)
