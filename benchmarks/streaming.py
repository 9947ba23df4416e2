"""`python -m benchmarks.streaming`: a sealed model by how much of it is resident, beside llama.cpp
with the plain file.

All engines take turns in each round, so ratios are of the same minutes. Rows: 1, 4 and 8 requests,
a prompt, an answer that repeats itself (guesses on, ours only), and one request from disk. Results
are written after every row.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

from tqdm import tqdm

from appliance.cli import numbers
from benchmarks import commandline, disk, libraries, measure, memory, models, peer, process, report
from benchmarks.measure import Row
from benchmarks.process import Engine
from benchmarks.streaming_chart import FROM_DISK, chart

RESIDENT, KEPT = "resident", "kept"
_CONTEXT, _PROMPT, _ANSWER, _LOOP = 192, 512, 96, 400
_ROUNDS = 5


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="1.1b", help=f"{commandline.NAMES}, or a GGUF file")
    parser.add_argument("--shares", type=numbers.listed(0, 100, "0,50"), default="0,5,10,25,50,75,90,100",
                        metavar="N,N", help="percent resident (default: %(default)s)")
    parser.add_argument("--requests", type=numbers.listed(1, 64, "1,4"), default="1,4,8", metavar="N,N",
                        help="that decode together (default: %(default)s)")
    parser.add_argument("--threads", type=commandline.THREADS, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--from-disk", action="store_true", help="each share also with the rest read from the disk")
    parser.add_argument("--batches-only", action="store_true", help="neither a prompt nor a repeating answer")
    parser.add_argument("--rounds", type=commandline.ROUNDS, default=_ROUNDS)
    parser.add_argument("--disk", action="store_true", help="also one request from disk, see benchmarks.disk")
    libraries.option(parser)
    parser.add_argument("--no-llama", action="store_true", help="leave llama.cpp out")
    parser.add_argument("--llama", action="append", default=[], metavar="NAME=FOLDER", help="a built llama.cpp")
    commandline.options(parser, "streaming.json")
    return commandline.parse(parser)


def _engines(args: argparse.Namespace, model: str) -> list[Engine]:
    """Ours by share, the resident one first; then llama.cpp's builds."""
    sealed, key = memory.sealed_model(model, args.work)
    shares = [share / 100 for share in args.shares]
    python = libraries.python(args)
    names = {RESIDENT: RESIDENT, KEPT: KEPT} | {f"{share:.0%}": str(share) for share in shares}
    if args.from_disk:
        names |= {f"{share:.0%}{FROM_DISK}": f"disk:{share}" for share in shares}
    ours = [Engine(name, "streamed_server", str(sealed), str(key), word, python=python) for name, word in names.items()]
    if args.no_llama:
        return ours
    builds = [peer.given(text, args.work) for text in args.llama] or [
        peer.build(args.work, family, "native") for family in peer.compilers()]
    return [*ours, *(process.llama(build) for build in builds)]


def item(row: Row) -> dict[str, Any]:
    """A row for the document: medians, and each of ours over resident and over the better
    llama.cpp, by round."""
    median = {name: statistics.median(speeds) for name, speeds in row.speeds.items() if speeds}
    rivals = [name for name in median if name.startswith("llama.cpp")]
    rival = max(rivals, key=lambda name: median[name], default=None)

    def ratios(to: str | None) -> dict[str, float]:
        if to is None or to not in median:
            return {}
        return {name: statistics.median(ours / theirs for ours, theirs in zip(
            row.speeds[name], row.speeds[to], strict=False)) for name in median if name not in rivals}

    return {"kind": row.kind, "size": row.size, "median": median, "to_resident": ratios(RESIDENT), "rival": rival,
            "to_llama": ratios(rival), "speeds": row.speeds}


def _repeat(args: argparse.Namespace) -> Row:
    """An answer that goes on with what the prompt repeats; llama.cpp without guesses, as its
    library makes none."""
    name = f"{args.model}-loop"
    row, plain = Row(args.model, args.threads, "repeat", _ANSWER), models.make(name, args.work)
    engines = _engines(args, name)
    for engine in engines:
        engine.ask("open", model=str(plain.absolute()), threads=args.threads, context=_LOOP + _ANSWER + 8, slots=1)
    prompt = engines[0].ask("repeat", prompt=[1], tokens=_LOOP)["answer"]
    for turn in range(args.rounds + 1):
        for engine in engines:
            time.sleep(measure.PAUSE_SECONDS)
            if engine.name.startswith("llama.cpp"):
                seconds = engine.ask("decode", depth=_LOOP, tokens=_ANSWER)["seconds"]
            else:
                seconds = engine.ask("repeat", prompt=prompt, tokens=_ANSWER)["seconds"]
            if turn:  # the first warms up
                row.speeds.setdefault(engine.name, []).append(_ANSWER / float(seconds))
    for engine in engines:
        engine.close()
    return row


def main() -> int:
    """Measure and write."""
    args = _arguments()
    plain = commandline.model(args.model, args.work)
    sealed, key = memory.sealed_model(args.model, args.work)
    engines = _engines(args, args.model)
    document: dict[str, Any] = {
        "machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()), "model": args.model,
        "threads": args.threads, "file_bytes": sealed.stat().st_size, "load_average": os.getloadavg()[0], "rows": []}

    def add(found: dict[str, Any]) -> None:
        document["rows"].append(found)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
        args.output.with_suffix(".svg").write_text(chart(document))
        print(line(found), flush=True)

    plan = [("batch", _CONTEXT, max(args.requests), size) for size in args.requests]
    if not args.batches_only:
        plan.append(("prefill", _PROMPT + 64, 1, _PROMPT))
    before: tuple[int, int] | None = None
    for kind, context, slots, size in tqdm(plan, file=sys.stderr, unit="row"):
        if (context, slots) != before:
            for engine in engines:
                engine.ask("open", model=str(plain.absolute()), threads=args.threads, context=context, slots=slots)
            before = context, slots
        row = Row(args.model, args.threads, kind, size)
        measure.measure(engines, row, args.rounds)
        add(item(row))
    for engine in engines:
        engine.close()
    if f"{args.model}-loop" in models.SHAPES and not args.batches_only:
        add(item(_repeat(args)))
    if args.disk:
        add(disk.measure(sealed, key, args.threads, args.rounds))
    return 0


def line(found: dict[str, Any]) -> str:
    """A row for people."""
    if found["kind"] == "disk":
        return disk.line(found)
    parts = [f"{name} {speed:.1f}" + (f" ({found['to_resident'][name]:.2f} of resident" + (
        f", {found['to_llama'][name]:.2f} of llama.cpp)" if name in found["to_llama"] else ")")
        if name in found["to_resident"] else "") for name, speed in found["median"].items()]
    return f"{found['kind']} {found['size']}: " + "; ".join(parts)


if __name__ == "__main__":
    commandline.run(main)
