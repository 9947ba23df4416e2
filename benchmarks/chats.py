"""Time to the first token of each turn of a chat with a long beginning, beside reading all of it:

    .venv/bin/python -m benchmarks.chats MODEL.gguf         # ten turns after 4,000 tokens

The chat runs three times. First an engine that keeps nothing reads each turn. Then one engine with
a prefix cache has all turns. Then each turn has a process of its own, with sessions on a state
disk. A turn has a question of 30 tokens and an answer of 20. Exit code 1 says that a turn but the
first took more than 15% of the processor time of its cold read, or that a token differs.

With `--llama PYTHON`, of an environment with the wheel `xllamacpp`, llama.cpp's server has such a
chat too, with answers of its own: in turn, with its cache, and then each prompt again without.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.packing import Packing
from appliance.engine.scheduler import Scheduler
from appliance.families.tensors import roles_of
from appliance.kernels.runtime import table as kernel_table
from appliance.models.sources.resident import open_resident
from benchmarks.sessions import shelf_on
from benchmarks.tenants.chats import Llama, until_up

MOST, CONTEXT = 0.15, 8192
ANSWER, QUESTION = 20, 30
_TENANT = "tenant"


def turns(model: Path, disk: Path | None, asked: list[list[int]], *, keep: bool) -> list[dict[str, Any]]:
    """One process's turns: seconds to the first token, and the answer, of each prompt."""
    kernels, found = kernel_table.load(), list[dict[str, Any]]()
    source = open_resident(model, interleave=Packing(kernels), roles=roles_of)
    options = EngineOptions(context_length=CONTEXT, slots=1, prefix_nbytes=(1 << 30) if keep else 0)
    with contextlib.closing(source), Engine.open(source, options, kernels=kernels) as engine, (
            contextlib.nullcontext() if disk is None else shelf_on(disk, engine, source.sha256)) as shelf:
        scheduler = Scheduler(engine, tenants=[_TENANT], prefix_lifetime=3600.0 if keep else None, shelf=shelf)
        scheduler.submit(_request([5, 6, 7]), "nobody", lambda _: None).wait()
        found += [_turn(scheduler, prompt) for prompt in asked]
        scheduler.close()
    return found


def _request(prompt: list[int]) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), ANSWER, Sampling(temperature=0.7, seed=1), ignore_end=True)


def _turn(scheduler: Scheduler, prompt: list[int]) -> dict[str, Any]:
    first, answer = list[tuple[float, float]](), list[int]()

    def note(advance: Any) -> None:
        first.append((time.perf_counter(), time.process_time()))
        answer.append(advance.token)
    wall, processor = time.perf_counter(), time.process_time()
    handle = scheduler.submit(_request(prompt), _TENANT, note)
    handle.wait()
    return {"wall": first[0][0] - wall, "processor": first[0][1] - processor, "cached": handle.cached_tokens,
            "answer": answer}


def _processor(pid: int) -> float:
    """Seconds of processors that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _asked_of_llama(server: Llama, prompt: list[int], *, keep: bool) -> dict[str, Any]:
    """One turn of llama.cpp's server, as of `_turn`."""
    body = {"prompt": prompt, "n_predict": ANSWER, "stream": True, "cache_prompt": keep, "temperature": 0.7,
            "seed": 1, "ignore_eos": True, "return_tokens": True}
    wall, processor, first, answer, last = time.perf_counter(), _processor(server.pid), (0.0, 0.0), list[int](), {}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            last = json.loads(line[6:])
            first = first if answer else (time.perf_counter() - wall, _processor(server.pid) - processor)
            answer += last.get("tokens", [])
    connection.close()
    if len(answer) < ANSWER:
        raise SystemExit(f"llama.cpp's server gave {len(answer)} tokens: {last}")
    return {"wall": first[0], "processor": first[1], "cached": last.get("timings", {}).get("cache_n"),
            "answer": answer[:ANSWER]}


def llama_turns(python: Path, model: Path, beginning: list[int], questions: list[list[int]]) -> tuple[
        list[dict[str, Any]], list[dict[str, Any]]]:
    """The turns of llama.cpp's server: without its cache, and with it."""
    prompt, asked, kept = beginning, [beginning], list[dict[str, Any]]()
    with Llama(python, model, len(os.sched_getaffinity(0)), 1, CONTEXT) as server:
        asyncio.run(until_up(server.port))
        _asked_of_llama(server, [5, 6, 7], keep=False)
        for question in [*questions, []]:
            kept.append(_asked_of_llama(server, prompt, keep=True))
            prompt = [*prompt, *kept[-1]["answer"], *question]
            asked.append(prompt)
        return [_asked_of_llama(server, each, keep=False) for each in asked[:-1]], kept


def main() -> int:
    """Run the chat in all ways, and print a table."""
    parser = argparse.ArgumentParser(description="first tokens of a chat's turns, beside cold reads")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--llama", type=Path, metavar="PYTHON", help="of an environment with xllamacpp")
    parser.add_argument("--once", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.once is not None:
        disk, keep, asked = json.load(sys.stdin)
        print(json.dumps(turns(args.model, None if disk is None else Path(disk), asked, keep=keep)))
        return 0

    def process(disk: Path | None, asked: list[list[int]], *, keep: bool) -> list[dict[str, Any]]:
        words = [sys.executable, "-m", "benchmarks.chats", str(args.model), "--once", "-"]
        given = json.dumps([None if disk is None else str(disk), keep, asked])
        found: list[dict[str, Any]] = json.loads(
            subprocess.run(words, check=True, text=True, input=given, stdout=subprocess.PIPE).stdout)
        return found
    random = np.random.default_rng(1)
    asked, cold, restarted = [random.integers(100, 400, args.tokens).tolist()], list[Any](), list[Any]()
    questions = [random.integers(100, 400, QUESTION).tolist() for _ in range(args.turns - 1)]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.turns):
            cold += process(None, asked[-1:], keep=False)
            restarted += process(Path(folder) / "disk", asked[-1:], keep=True)
            if number + 1 < args.turns:
                asked.append([*asked[-1], *cold[-1]["answer"], *questions[number]])
    kept = process(None, asked, keep=True)
    code = _report(cold, {"in memory": kept, "after a restart": restarted})
    if args.llama is not None:
        read, own = llama_turns(args.llama, args.model, asked[0], questions)
        _report(read, {"llama.cpp": own})
    return code


def _report(cold: list[dict[str, Any]], ways: dict[str, list[dict[str, Any]]]) -> int:
    """Print medians of all turns but the first, and the worst ratio; the exit code."""
    fine = True
    for way, found in ways.items():
        for clock in ("processor", "wall"):
            shares = [one[clock] / other[clock] for one, other in zip(found[1:], cold[1:], strict=True)]
            before, after = (statistics.median(each[clock] for each in some[1:]) for some in (cold, found))
            print(f"{way:15} {clock:9} {before:7.3f} s cold, {after:7.3f} s kept: {statistics.median(shares):6.1%}, "
                  f"at most {max(shares):6.1%}")
            fine = fine and (clock != "processor" or max(shares) <= MOST)
        same = all(one["answer"] == other["answer"] for one, other in zip(found, cold, strict=True))
        print(f"{way:15} tokens not read: {[each['cached'] for each in found]}; same tokens: {same}")
        fine = fine and same
    print(f"load {os.getloadavg()[0]:.1f}")
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
