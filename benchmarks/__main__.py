"""`python -m benchmarks`: our engine and llama.cpp side by side on the same files, interleaved in
one run.

Builds llama.cpp with gcc and with clang where they are installed (once), makes the synthetic models
(once), measures and prints ratios to the faster build, with spread. Writes `results.json` and
`results.svg`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from functools import partial
from typing import Any

from tqdm import tqdm

from appliance.cli import numbers
from appliance.kernels.runtime import targets
from benchmarks import commandline, measure, peer, process, report

KINDS = ("prefill", "decode", "batch")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo", "1.1b"],
                        help=f"{commandline.NAMES}, or GGUF files (default: demo 1.1b)")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--rounds", type=commandline.ROUNDS, help="rounds of every row (default: 7, with --quick 3)")
    parser.add_argument("--kinds", type=_kinds, default=",".join(KINDS), help="which rows (default: %(default)s)")
    parser.add_argument("--threads", type=numbers.listed(1, len(os.sched_getaffinity(0)), "1,2"),
                        default=sorted({1, len(os.sched_getaffinity(0))}), metavar="N,N",
                        help="thread counts (default: 1 and all)")
    parser.add_argument("--cold", action="store_true", help="also time processes from start to first token")
    parser.add_argument("--target", choices=[target.name for target in targets.supported()],
                        help="our kernels' target (default: best of this CPU)")
    parser.add_argument("--cpu", choices=("native", "avx2"), default="native", help="what llama.cpp is built for")
    parser.add_argument("--llama", action="append", default=[], metavar="NAME=FOLDER",
                        help="use a built llama.cpp (the folder of libllama.so) and build none; may be repeated")
    commandline.options(parser, "results.json")
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of a table")
    return commandline.parse(parser)


def _kinds(text: str) -> list[str]:
    kinds = text.split(",")
    if not set(kinds) <= set(KINDS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {','.join(KINDS)}")
    return kinds


def _plan(args: argparse.Namespace) -> measure.Plan:
    plan = measure.QUICK if args.quick else measure.Plan()
    return dataclasses.replace(
        plan, rounds=args.rounds or plan.rounds, prompts=plan.prompts if "prefill" in args.kinds else (),
        depths=plan.depths if "decode" in args.kinds else (), batches=plan.batches if "batch" in args.kinds else ())


def main() -> int:
    """Measure and report; 0, or 1 when some row is slower than llama.cpp."""
    args = _arguments()
    plan, paths = _plan(args), [commandline.model(name, args.work) for name in args.models]
    builds = [peer.given(text, args.work) for text in args.llama] or [
        peer.build(args.work, family, args.cpu) for family in peer.compilers()]
    makers = [partial(process.own, args.target), *(partial(process.llama, build) for build in builds)]
    engines = [make() for make in makers]
    document: dict[str, Any] = {"machine": report.machine(), "time": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
                                "load_average": os.getloadavg()[0], "settings": [], "rows": []}
    each = len(plan.prompts) + len(plan.depths) + len(plan.batches)
    with tqdm(total=each * len(paths) * len(args.threads), file=sys.stderr, unit="row") as bar:
        for path in paths:
            size = report.sizes(path)
            for threads in args.threads:
                rows, facts = measure.run(engines, path, threads, plan, bar)
                document["settings"].append(facts)
                document["rows"] += [report.entry(row, facts, size) for row in rows]
                if threads == max(args.threads) and args.cold:
                    facts["cold_seconds"] = measure.cold(makers, path, threads)
                args.output.write_text(json.dumps(document, indent=1) + "\n")
                args.output.with_suffix(".svg").write_text(report.chart(document["rows"]))
    for engine in engines:
        engine.close()
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        print(report.HEADING, *(report.line(item) for item in document["rows"]), sep="\n")
        for facts in document["settings"]:
            print(f"{facts['model']} {facts['threads']}t: read bandwidth {facts['bandwidth'] / 1e9:.1f} GB/s, integer "
                  f"peak {facts['dot_peak'] / 1e9:.0f} GOPS, load {json.dumps(facts['load_seconds'])} s")
            if "cold_seconds" in facts:
                print(f"  start to first token (kernels: {facts['origin']}), s: {json.dumps(facts['cold_seconds'])}")
    return int(any(item["ratio"] is not None and item["ratio"] < 1 for item in document["rows"]))


if __name__ == "__main__":
    commandline.run(main)
