"""`python -m benchmarks.hybrids`: models with recurrent layers beside llama.cpp.

Each model has the shape of a published one and random weights in Q4_K: as many of its layers as its
pattern repeats in, and a vocabulary in the same measure. Rows: a prompt of 512 tokens, single
tokens behind that, and single tokens behind 8,192. The engines take turns in each round.

The bound of a token is the time in which the threads read the bytes of its weights where they are,
without waiting for each other. It is measured before and after each turn. States, keys and values
come on top and are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks import commandline, families, measure, peer, process, report
from benchmarks.process import Engine
from tests.support import family_models

CONTEXT, PROMPT, DEPTH, TOKENS, LONG_CONTEXT = 1024, 512, 8192, 24, 9216

SHAPES: dict[str, dict[str, Any]] = {
    # An eighth of Qwen3.5-4B, a quarter of Granite 4 H-tiny, and a half of LFM2-1.2B, by layers.
    "qwen35.4b": {**families.QWEN35, "block_count": 4, "vocab_size": 31040, "context_length": 16384},
    "granitehybrid.tiny": {
        "embedding_length": 1536, "feed_forward_length": 512, "block_count": 10, "context_length": 16384,
        "attention.head_count": 12, "attention.head_count_kv": [0] * 5 + [4] + [0] * 4, "attention.key_length": 128,
        "attention.value_length": 128, "vocab_size": 25088, "rope.scaling.finetuned": False, "embedding_scale": 12.0,
        "residual_scale": 0.22, "logit_scale": 6.0, "attention.scale": 0.0078125, "expert_count": 64,
        "expert_used_count": 6, "expert_shared_feed_forward_length": 1024, "ssm.conv_kernel": 4,
        "ssm.state_size": 128, "ssm.group_count": 1, "ssm.inner_size": 3072, "ssm.time_step_rank": 48},
    "lfm2.1b": {
        "embedding_length": 2048, "feed_forward_length": 8192, "block_count": 8, "context_length": 16384,
        "attention.head_count": 32, "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 8], "attention.key_length": 64,
        "attention.value_length": 64, "rope.freq_base": 1e6, "vocab_size": 32768, "shortconv.l_cache": 3},
}


def make(name: str, work: Path) -> Path:
    """Write the model of a shape, unless it is there."""
    family_models.MODELS[name], family_models.VOCABULARY = SHAPES[name], SHAPES[name]["vocab_size"]
    return families.make(name, work)


def prefill(engines: list[Engine], rounds: int) -> dict[str, Any]:
    """A prompt of 512 tokens in an empty context: tokens a second of each engine."""
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for turn in range(rounds + 1):
        for engine in engines:
            time.sleep(measure.PAUSE_SECONDS)
            seconds = float(engine.ask("first", tokens=PROMPT)["seconds"])
            speeds[engine.name] += [PROMPT / seconds] if turn else []
    return {"kind": "prefill", "size": PROMPT, "speeds": speeds}


def decode(engines: list[Engine], rounds: int, depth: int) -> dict[str, Any]:
    """Single tokens behind a text: tokens a second of each engine, and those of our bound."""
    speeds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    bounds, own = list[float](), engines[0]
    for turn in range(rounds + 1):
        for engine in engines:
            time.sleep(measure.PAUSE_SECONDS)
            first = own.ask("reads", tokens=TOKENS)["seconds"] if engine is own else 0.0
            seconds = float(engine.ask("follow", depth=depth, tokens=TOKENS)["seconds"])
            if turn and engine is own:
                bounds.append(2 * TOKENS / (first + own.ask("reads", tokens=TOKENS)["seconds"]))
            speeds[engine.name] += [TOKENS / seconds] if turn else []
    return {"kind": "decode", "size": depth, "speeds": speeds, "bounds": bounds,
            "of_bound": statistics.median(a / b for a, b in zip(speeds[own.name], bounds, strict=True))}


def line(found: dict[str, Any]) -> str:
    """A row for people: our speed, and its ratio to each other engine's, by medians of rounds."""
    (_, own), *others = found["speeds"].items()
    text = f"{found['kind']} {found['size']}: {statistics.median(own):.1f}"
    for name, speeds in others:
        ratio = statistics.median(a / b for a, b in zip(own, speeds, strict=True))
        text += f"; {name} {statistics.median(speeds):.1f} ({ratio:.2f})"
    return text + (f"; {found['of_bound']:.2f} of the bound" if "bounds" in found else "")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hybrids", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SHAPES)}; default: all")
    parser.add_argument("--threads", type=commandline.THREADS, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=5)
    parser.add_argument("--rows", choices=("short", "long", "all"), default="all",
                        help="long: those behind 8,192 tokens only")
    parser.add_argument("--llama", action="append", default=[], metavar="NAME=FOLDER", help="a built llama.cpp")
    commandline.options(parser, "hybrids.json")
    args = parser.parse_args()
    for name in args.names:
        if name not in SHAPES:
            parser.error(f"{name} is not a shape; known: {', '.join(SHAPES)}")
    for folder in (args.output.parent, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    return args


def main() -> int:
    """Measure and write."""
    args = _arguments()
    paths = {name: make(name, args.work).absolute() for name in args.names or SHAPES}
    builds = [peer.given(text, args.work) for text in args.llama] or [
        peer.build(args.work, family, "native") for family in peer.compilers()]
    engines = [process.own(None), *(process.llama(build) for build in builds)]
    document: dict[str, Any] = {"machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
                                "threads": args.threads, "load_average": os.getloadavg()[0], "rows": []}
    try:
        for name, path in paths.items():
            for found in _rows(engines, str(path), args):
                document["rows"].append({"model": name, "file_bytes": path.stat().st_size, **found})
                args.output.write_text(json.dumps(document, indent=1) + "\n")
                print(f"{name} {args.threads} threads, {line(found)}", flush=True)
    finally:
        for engine in engines:
            engine.close()
    return 0


def _rows(engines: list[Engine], path: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    found = list[dict[str, Any]]()
    for context, depth in ((CONTEXT, PROMPT), (LONG_CONTEXT, DEPTH)):
        if args.rows in ("all", "short" if context == CONTEXT else "long"):
            for engine in engines:
                engine.ask("open", model=path, threads=args.threads, context=context, slots=1)
            found += [prefill(engines, args.rounds)] if context == CONTEXT else []
            found.append(decode(engines, args.rounds, depth))
    return found


if __name__ == "__main__":
    commandline.run(main)
