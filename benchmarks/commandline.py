"""The common parts of the benchmarks' command lines: which models they take, how they end."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from appliance.boot.planning import inspection
from appliance.cli import numbers
from appliance.errors import ApplianceError
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors
from benchmarks import models, small_hybrids
from benchmarks.process import Refused

DEMO = Path("build/models/SmolLM2-135M-Instruct.Q4_1.gguf")
NAMES = (f"demo, {', '.join(models.SHAPES)} (synthetic; 0.3b:q5_k for one type), {', '.join(small_hybrids.NAMES)} "
         "(synthetic, with recurrent layers)")

ROUNDS = numbers.whole(1, 1000)
THREADS = numbers.whole(1, len(os.sched_getaffinity(0)))
TOKENS = numbers.whole(1, 4096)
LIMITS = numbers.listed(0, 1 << 24, "512,1024")


def options(parser: argparse.ArgumentParser, output: str) -> None:
    """The options that all have."""
    parser.add_argument("--work", type=Path, default=Path("build/bench"), metavar="DIR",
                        help="where builds and models are kept (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/bench", output), metavar="FILE",
                        help="the JSON document (default: %(default)s)")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments. Results of an hour are sure to find a place to be written. SystemExit, in
    words, for a file that is not a model or that our engine does not run.
    """
    args = parser.parse_args()
    for name in args.models if "models" in args else [args.model]:
        if name not in small_hybrids.NAMES and not models.is_known(name):
            _check(_path(name), name)
    for folder in (args.output.parent, args.work):
        folder.mkdir(parents=True, exist_ok=True)
    if args.output.is_dir():
        parser.error(f"argument -o: {args.output} is a folder")
    return args


def model(name: str, work: Path) -> Path:
    """The GGUF file of a model that is named; synthetic ones are made where they are missing."""
    if name in small_hybrids.NAMES:
        return small_hybrids.make(name, work, DEMO).absolute()
    return (models.make(name, work) if models.is_known(name) else _path(name)).absolute()


def _path(name: str) -> Path:
    return DEMO if name == "demo" else Path(name)


def _check(path: Path, name: str) -> None:
    if not path.is_file():
        raise SystemExit(f"{path} does not exist" + (
            "; run `make demo`" if name == "demo" else f"; known: {NAMES}, or a GGUF file"))
    try:
        if inspection.is_sealed(path):
            raise SystemExit(f"{path} is sealed; name the GGUF file: what needs a sealed one seals it")
        found = inspection.header(path)
        check_tensors(architecture_of(found.metadata), found.tensors)
    except ApplianceError as error:
        raise SystemExit(f"{error}" if str(path) in error.summary else f"{path}: {error}") from None


def run(main: Callable[[], int]) -> NoReturn:
    """`main` as a program. SIGTERM ends it as Ctrl+C does: processes, control groups and half-made
    files go with it. Exit code 2 says that nothing could be measured: 1 has a meaning of its own.
    """
    def stop(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        code: str | int | None = main()
    except SystemExit as end:
        code = end.code
    except (ApplianceError, Refused) as error:
        code = f"error: {error}"
    except OSError as error:
        code = f"error: {error.filename or 'the system'}: {error.strerror or error}"
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 2
    sys.exit(code)
