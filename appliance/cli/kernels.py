"""`appliance kernels`: build the compiled kernels ahead of time, or list them."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

from appliance.cli import numbers
from appliance.cli.progress import Progress
from appliance.codec.printable import quantity
from appliance.errors import EngineError
from appliance.kernelbuild import build
from appliance.kernels.runtime import ahead, table, targets

BUILD = """Compile the kernels into a library that needs no compiler to run, by LLVM and the linker `ld` of binutils.

A checkout needs it before its first `serve` or `infer`, which find it where it is put; `make run` does that.
Without one, a checkout with numba compiles as it starts, which takes longer. It is needed again after a change of the
kernels or an update of numba. `appliance image build` builds what an image needs by itself."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `build` and `list`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("build", help="compile the kernels into a library that needs no compiler to run",
                              description=BUILD, formatter_class=argparse.RawDescriptionHelpFormatter)
    make.add_argument("--target", default="native",
                      help="a target (`neon` is aarch64's, on whatever machine), `native`: the best of this CPU, "
                           "or `all` of this architecture (default: native)")
    make.add_argument("-o", "--output", type=Path, default=ahead.PREBUILT, metavar="DIR",
                      help="folder for library and manifest (default: where the engine looks)")
    make.add_argument("--jobs", type=numbers.CPUS, metavar="N",
                      help="compiling processes (default: one for each CPU)")
    make.add_argument("--if-stale", action="store_true",
                      help="do nothing when the folder holds libraries of the sources and compilers at hand")
    make.add_argument("--json", action="store_true",
                      help="print what was built as JSON: an object for each target, in a list")
    summary = "list the kernels, and where this process would take them from"
    show = actions.add_parser("list", help=summary, description=summary)
    show.add_argument("--json", action="store_true", help="print the list as JSON")


def run(args: argparse.Namespace) -> int:
    """Build or list; 0, or an error that names kernel, symbol or tool."""
    return _build(args) if args.action == "build" else _list(args)


def _chosen(name: str) -> tuple[targets.Target, ...]:
    if name == "all":
        return targets.known()
    return (targets.detect() if name == "native" else targets.by_name(name),)


def _build(args: argparse.Namespace) -> int:
    done: list[dict[str, object]] = []
    for target in _chosen(args.target):
        if args.if_stale and _fits(target, args.output):
            continue
        start = time.monotonic()
        with Progress() as shown:
            built = build.build(target, args.output, jobs=args.jobs, progress=partial(_show, shown, target.name))
        seconds = round(time.monotonic() - start, 1)
        done.append({"target": built.target, "library": str(built.library), "kernels": built.kernels,
                     "bytes": built.nbytes, "seconds": seconds})
        if not args.json:
            print(f"{built.library}: {quantity(built.kernels, 'kernel')}, {built.nbytes / 1e6:.2f} MB, {seconds} s")
    if args.json:
        print(json.dumps(done))
    return 0


def _show(shown: Progress, target: str, done: int, total: int, kernel: str) -> None:
    shown(f"kernels {target} {kernel}", done, total)


def _fits(target: targets.Target, folder: Path) -> bool:
    try:
        ahead.open_library(ahead.default_path(target, folder), target)
    except EngineError:
        return False
    return True


def _list(args: argparse.Namespace) -> int:
    found = table.load()
    kernels = {name: str(found.signature(name)) for name in found.names}
    if args.json:
        print(json.dumps({"target": found.target.name, "origin": found.origin, "kernels": kernels}))
        return 0
    print(f"target {found.target.name}, origin {found.origin}")
    for name, signature in kernels.items():
        print(f"{name:40s} {signature}")
    return 0
