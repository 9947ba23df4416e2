"""`python -m benchmarks.mixtures`: a mixture of experts resident, sealed, oblivious, and beside
llama.cpp.

The model has the shape of a published one, some of its layers, and random weights, so that tokens
choose experts evenly. All engines take turns in each round. Rows: one request, passes of few rows,
eight requests, and a prompt of 512 tokens.

`decrypted` is what a token of one request decrypts, over the bytes of the matrices that it needs.
The bound of a sealed token is the time in which the threads decrypt those bytes, in tiles of that
size and by the same library, and the time of a resident token. Both are measured in the same
rounds. The bound of a resident token is the time in which the threads read those very bytes where
they are, without waiting for each other: the same matrices, and of experts as many, by chance. It
is measured before and after each turn, since a machine's memory changes its speed within seconds.
"memory" is the speed at which they read one large buffer from its start to its end.
Costs are those of passes by their rows, each of another text, in passes of one row, beside what
guessing reckons with (`engine.batch.speculate`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np

from appliance.cli import numbers
from appliance.engine.batch.speculate import LONGEST, PassCost
from benchmarks import commandline, libraries, measure, memory, mixture_models, peer, process, report
from benchmarks.measure import Row
from benchmarks.process import Engine

RESIDENT, SEALED, OBLIVIOUS = "resident", "sealed", "oblivious"
CONTEXT, PROMPT, DEPTH, TOKENS, SLOTS = 640, 512, 32, 24, 8
FEW = tuple(range(1, LONGEST + 2))
_SECONDS = 0.4  # of each measurement of decryption


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mixtures", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", nargs="?", choices=mixture_models.SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=numbers.whole(1, 128), default=2, help="default: %(default)s")
    parser.add_argument("--threads", type=commandline.THREADS, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=5)
    parser.add_argument("--decode-only", action="store_true", help="neither eight requests nor a prompt")
    libraries.option(parser)
    parser.add_argument("--no-llama", action="store_true", help="leave llama.cpp out")
    parser.add_argument("--llama", action="append", default=[], metavar="NAME=FOLDER", help="a built llama.cpp")
    commandline.options(parser, "mixtures.json")
    args = parser.parse_args()
    for folder in (args.output.parent, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    return args


def needed(shape: mixture_models.Mixture, layers: int) -> tuple[int, int]:
    """Bytes of the matrices that a token is multiplied with, of a layer's experts those it chooses;
    and how many of them are of experts."""
    total = experts = 0
    for name, size, kind in mixture_models.tensors(shape, layers):
        if len(size) > 1 and name != "token_embd.weight" and not name.endswith(".bias"):
            elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
            rows = int(np.prod(size[-2:-1])) * (shape.used if len(size) == 3 else 1)
            total += rows * size[-1] // elements * nbytes
            experts += rows * size[-1] // elements * nbytes if len(size) == 3 else 0
    return total, experts


def _engines(args: argparse.Namespace, model: str) -> list[Engine]:
    sealed, key = memory.sealed_model(model, args.work)
    python = libraries.python(args)
    ours = [Engine(name, "streamed_server", str(sealed), str(key), word, python=python)
            for name, word in ((RESIDENT, "resident"), (SEALED, "kept"), (OBLIVIOUS, "oblivious"))]
    if args.no_llama:
        return ours
    builds = [peer.given(text, args.work) for text in args.llama] or [
        peer.build(args.work, family, "native") for family in peer.compilers()]
    return [*ours, *(process.llama(build) for build in builds)]


def decode(engines: Sequence[Engine], threads: int, rounds: int, nbytes: int) -> dict[str, Any]:
    """One request: tokens a second of each engine, bytes that were decrypted, and the bounds."""
    by_name = {engine.name: engine for engine in engines}
    speeds: dict[str, list[float]] = {name: [] for name in by_name}
    rates: dict[int, list[float]] = {count: [] for count in sorted({1, threads})}
    sealed, bandwidth, reads = by_name[SEALED], list[float](), list[float]()
    for engine in engines:
        engine.ask("decode", depth=DEPTH, tokens=4)
    before = sealed.ask("opened")
    sealed.ask("decode", depth=DEPTH, tokens=TOKENS)
    after = sealed.ask("opened")
    for _ in range(rounds):
        for name, engine in by_name.items():
            time.sleep(measure.PAUSE_SECONDS)
            first = engine.ask("reads", tokens=TOKENS)["seconds"] if name == RESIDENT else 0.0
            speeds[name].append(TOKENS / float(engine.ask("decode", depth=DEPTH, tokens=TOKENS)["seconds"]))
            if name == RESIDENT:
                reads.append(2 * TOKENS / (first + engine.ask("reads", tokens=TOKENS)["seconds"]))
        for count, found in rates.items():
            found.append(sealed.ask("decryption", nbytes=after["tile"], threads=count, seconds=_SECONDS)["rate"])
        bandwidth.append(by_name[RESIDENT].ask("limits", peak=False)["bandwidth"])
    decrypted = (after["decrypted"] - before["decrypted"]) / TOKENS
    bounds = [1 / (decrypted / rate + 1 / resident) for rate, resident in zip(
        rates[threads], speeds[RESIDENT], strict=True)]
    return {"kind": "decode", "size": 1, "speeds": speeds, "median": _medians(speeds), "by": after["by"],
            "tile_bytes": after["tile"], "decrypted_bytes": decrypted, "read_bytes": after["read"] - before["read"],
            "needed_bytes": nbytes, "decryption": {str(count): found for count, found in rates.items()},
            "bandwidth": bandwidth, "sealed_bounds": bounds,
            "sealed_of_bound": _ratio(speeds[SEALED], bounds), "sealed_of_resident": _ratio(
                speeds[SEALED], speeds[RESIDENT]),
            "oblivious_of_resident": _ratio(speeds[OBLIVIOUS], speeds[RESIDENT]),
            "resident_bounds": reads, "resident_of_bound": _ratio(speeds[RESIDENT], reads)}


def costs(engines: Sequence[Engine], rounds: int, reckoned: PassCost) -> dict[str, Any]:
    """Passes of few rows, in passes of one."""
    seconds: dict[str, dict[int, list[float]]] = {engine.name: {rows: [] for rows in FEW} for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            for rows in FEW:
                found = engine.ask("batch", sequences=rows, depth=DEPTH, tokens=TOKENS)["seconds"]
                seconds[engine.name][rows].append(found / TOKENS)
    medians = {name: {rows: statistics.median(each) for rows, each in found.items()} for name, found in seconds.items()}
    return {"kind": "costs", "rows": FEW, "reckoned": [reckoned(rows) for rows in FEW],
            "measured": {name: [found[rows] / found[1] for rows in FEW] for name, found in medians.items()}}


def _medians(speeds: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(found) for name, found in speeds.items() if found}


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def _row(engines: list[Engine], kind: str, size: int, args: argparse.Namespace) -> dict[str, Any]:
    row = Row(args.shape, args.threads, kind, size)
    measure.measure(engines, row, args.rounds)
    return {"kind": kind, "size": size, "speeds": row.speeds, "median": _medians(row.speeds)}


def line(found: dict[str, Any]) -> str:
    """A row for people."""
    if found["kind"] == "costs":
        return "; ".join([f"costs of {', '.join(map(str, found['rows']))} rows"] + [
            f"{name} {' '.join(f'{cost:.2f}' for cost in each)}" for name, each in (
                *found["measured"].items(), ("reckoned", found["reckoned"]))])
    median = found["median"]
    text = f"{found['kind']} {found['size']}: " + "; ".join(
        f"{name} {speed:.1f}" + (f" ({median[RESIDENT] / speed:.2f})" if name.startswith("llama") else "")
        for name, speed in median.items())
    if "decrypted_bytes" not in found:
        return text
    rates = ", ".join(f"{statistics.median(each) / 1e9:.1f} GB/s by {count}" for count, each in
                      found["decryption"].items())
    return (f"{text}\n  a token decrypts {found['decrypted_bytes'] / 1e6:.1f} MB, "
            f"{found['decrypted_bytes'] / found['needed_bytes']:.3f} of what it needs; {found['by']} decrypts {rates}; "
            f"memory {statistics.median(found['bandwidth']) / 1e9:.1f} GB/s\n"
            f"  sealed {found['sealed_of_resident']:.2f} of resident, {found['sealed_of_bound']:.2f} of its bound; "
            f"oblivious {found['oblivious_of_resident']:.3f} of resident; resident {found['resident_of_bound']:.2f} of "
            "its bound")


def main() -> int:
    """Measure and write."""
    args = _arguments()
    shape = mixture_models.SHAPES[args.shape]
    plain = mixture_models.make(args.shape, args.layers, args.work).absolute()
    engines = _engines(args, str(plain))
    document: dict[str, Any] = {
        "machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "model": plain.name,
        "threads": args.threads, "file_bytes": plain.stat().st_size, "load_average": os.getloadavg()[0], "rows": []}

    def add(found: dict[str, Any]) -> None:
        document["rows"].append(found)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        print(line(found), flush=True)

    try:
        for engine in engines:
            engine.ask("open", model=str(plain), threads=args.threads, context=CONTEXT, slots=SLOTS)
        nbytes, experts = needed(shape, args.layers)
        add(decode(engines, args.threads, args.rounds, nbytes))
        if not args.decode_only:
            add(costs(engines[:2], args.rounds, PassCost(experts / nbytes, shape.experts, shape.used)))
            others = [engine for engine in engines if engine.name != OBLIVIOUS]
            add(_row(others, "batch", SLOTS, args))
            add(_row(others, "prefill", PROMPT, args))
    finally:
        for engine in engines:
            engine.close()
    return 0


if __name__ == "__main__":
    commandline.run(main)
