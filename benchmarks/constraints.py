"""`python -m benchmarks.constraints`: what masks of constrained answers cost, beside a pass of the
model.

A model answers freely, then within each of some schemas, without speculation: milliseconds of a
pass. Each answer is then walked again without the model: microseconds of its masks, for the model's
vocabulary, and for another that `--vocabulary` names. Exit code 1 says that the mean mask of a
schema costs 5% of a pass or more.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.constraint import spec
from appliance.constraint.compiler import Compiler
from appliance.constraint.walk import Constraint
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.packing import Packing
from appliance.kernels.runtime import table
from appliance.models.file import gguf
from appliance.models.sources.resident import open_resident
from appliance.text import tokenizer
from benchmarks import commandline, report

SHARE = 0.05  # of a pass, at most
_PERSON = {
    "type": "object", "additionalProperties": False, "required": ["name", "born", "tags"],
    "properties": {"name": {"type": "string", "maxLength": 40}, "born": {"type": "string", "format": "date"},
                   "tags": {"type": "array", "minItems": 2, "maxItems": 6, "items": {"enum": ["red", "green", "blue"]}},
                   "address": {"type": "object", "properties": {"street": {"type": "string"}, "number": {
                       "type": "integer", "minimum": 1, "maximum": 9999}}}}}


def _tools(count: int) -> str:
    """A call of one of so many tools, of eight arguments each."""
    parameters = json.dumps({"type": "object", "additionalProperties": False, "properties": {
        f"argument_{i}": {"type": ("string", "integer", "boolean", "number")[i % 4]} for i in range(8)}})
    rules = [f'c{i}: "{{\\"name\\":\\"tool_{i}\\",\\"arguments\\":" %json {parameters} "}}"' for i in range(count)]
    return "\n".join([f"start: {' | '.join(f'c{i}' for i in range(count))}", *rules])


SPECS: dict[str, spec.Spec] = {
    "any object": spec.JsonObject(), "person": spec.JsonSchema(_PERSON), "60 tools": spec.Lark(_tools(60)),
    "pattern": spec.JsonSchema({"type": "string", "pattern": "^([a-z]+ ){4,40}[a-z]+\\.$"}),
    "5,000 values": spec.JsonSchema({"type": "array", "minItems": 8,
                                     "items": {"enum": [f"value number {i}" for i in range(5000)]}}),
}


def passes(engine: Engine, constraint: Constraint | None, tokens: int, seed: int) -> tuple[list[float], list[int]]:
    """Milliseconds of each pass after the first token's, and the tokens."""
    request = GenerationRequest([1, 300, 301], tokens, Sampling(seed=seed), constraint=constraint, ignore_end=True)
    times, found = [], []
    for advance in engine.generate(request):
        times.append(time.perf_counter())
        if advance.token is not None:
            found.append(advance.token)
    return [1e3 * (late - soon) for soon, late in itertools.pairwise(times)], found


def masks(constraint: Constraint, text: Sequence[int]) -> list[float]:
    """Microseconds of the mask of each token, and of going on by it."""
    walk, times = constraint.begin(), []
    for token in text:
        start = time.perf_counter()
        walk.mask()
        walk.accept(token)
        times.append(1e6 * (time.perf_counter() - start))
        if walk.ended:
            break
    return times


def other_vocabulary(path: Path, text: str, each: spec.Spec) -> tuple[float, list[float]]:
    """Seconds of compiling, and microseconds of masks, with another model's tokens for a text."""
    words = tokenizer.load(gguf.parse(path.read_bytes()).metadata)
    made = Compiler(words)
    made.compile(spec.JsonObject())
    start = time.perf_counter()
    constraint = made.compile(each)
    seconds, ids = time.perf_counter() - start, words.encode(text, inside=True)
    return seconds, masks(constraint, ids[:constraint.begin().prefix(ids)])


def measure(engine: Engine, tokens: int, rounds: int, vocabulary: Path | None) -> dict[str, Any]:
    """All specs."""
    engine.constraints.compile(spec.JsonObject())
    free = statistics.median(ms for seed in range(rounds) for ms in passes(engine, None, tokens, seed)[0])
    found: dict[str, Any] = {"free_pass_ms": free, "specs": {}}
    for name, each in SPECS.items():
        start = time.perf_counter()
        constraint = engine.constraints.compile(each)
        row: dict[str, Any] = {"compile_ms": 1e3 * (time.perf_counter() - start)}
        answers = [passes(engine, constraint, tokens, seed) for seed in range(rounds)]
        costs = [cost for _, text in answers for cost in masks(constraint, text)]
        row |= {"pass_ms": statistics.median([ms for times, _ in answers for ms in times] or [free]),
                "mask_us": statistics.fmean(costs), "mask_us_p99": sorted(costs)[int(0.99 * (len(costs) - 1))],
                "mask_us_most": max(costs), "share": statistics.fmean(costs) / (1e3 * free)}
        if vocabulary is not None:
            text = engine.tokenizer.decode(answers[0][1])
            seconds, more = other_vocabulary(vocabulary, text, each)
            row |= {"other_compile_ms": 1e3 * seconds, "other_mask_us": statistics.fmean(more or [0.0])}
        found["specs"][name] = row
    return found


def table_of(found: dict[str, Any]) -> list[str]:
    """The table's lines."""
    heads = (("compile", 10), ("pass", 10), ("mask", 10), ("p99", 10), ("most", 10), ("mask/pass", 11), ("others", 12))
    lines = [" " * 14 + "".join(f"{head:>{width}}" for head, width in heads),
             f"{'free':14}{'':10}{found['free_pass_ms']:7.2f} ms"]
    for name, row in found["specs"].items():
        lines.append(f"{name:14}{row['compile_ms']:7.1f} ms{row['pass_ms']:7.2f} ms{row['mask_us']:7.0f} us"
                     f"{row['mask_us_p99']:7.0f} us{row['mask_us_most']:7.0f} us{row['share']:11.2%}"
                     + (f"{row['other_mask_us']:9.0f} us" if "other_mask_us" in row else ""))
    return lines


def main() -> int:
    """Measure and report; 1 when masks cost too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.constraints", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="1.1b", help=f"{commandline.NAMES}, or a GGUF file (%(default)s)")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=3, help="answers of each (default: %(default)s)")
    parser.add_argument("--tokens", type=commandline.TOKENS, default=64, help="of an answer (%(default)s)")
    parser.add_argument("--threads", type=commandline.THREADS, default=None)
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help="a GGUF file whose tokenizer is also measured")
    commandline.options(parser, "constraints.json")
    args = commandline.parse(parser)
    kernels = table.load()
    source = open_resident(commandline.model(args.model, args.work), interleave=Packing(kernels))
    with source, Engine.open(source, EngineOptions(context_length=args.tokens + 64, slots=2, threads=args.threads,
                                                   speculate=False), kernels=kernels) as engine:
        found = measure(engine, args.tokens, args.rounds, args.vocabulary)
    found |= {"machine": report.machine(), "load_average": os.getloadavg()[0], "model": args.model}
    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(*table_of(found), f"load average {found['load_average']:.1f}", sep="\n")
    return int(any(row["share"] >= SHARE for row in found["specs"].values()))


if __name__ == "__main__":
    commandline.run(main)
