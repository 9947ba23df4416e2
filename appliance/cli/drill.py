"""`appliance drill NAME`: rehearse an incident in a folder that is thrown away."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

from appliance.drills.scene import DrillError, Materials, Scene
from appliance.drills.table import DRILLS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="NAME", nargs="?", choices=sorted(DRILLS),
                        help=f"one of {', '.join(sorted(DRILLS))} (default: list them)")
    parser.add_argument("--verify", metavar="OPTIONS", type=shlex.split, default=[],
                        help="the options of appliance verify for that evidence, in one word")
    parser.add_argument("--model", metavar="FILE", type=Path, help="a model in GGUF, for leaked-api-key")
    parser.add_argument("--policy", metavar="FILE", type=Path, help="the policy in force, for tcb-recall")
    parser.add_argument("--evidence", metavar="FILE", type=Path, help="evidence of a machine, for tcb-recall")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.epilog = ("exit codes: 0 what should refuse refused, 1 something did not, 2 cannot run")


def run(args: argparse.Namespace) -> int:
    """Rehearse, or list what there is."""
    if args.name is None:
        rows = {name: {"incident": each.incident, "refuses": each.refuses, "guide": each.guide(name)}
                for name, each in DRILLS.items()}
        print(json.dumps(rows, indent=2) if args.json else
              "\n".join(f"{name:<22}{row['incident']}" for name, row in rows.items()))
        return 0
    return _rehearse(args)


def _rehearse(args: argparse.Namespace) -> int:
    drill = DRILLS[args.name]
    given = Materials(args.model, args.policy, args.evidence, tuple(args.verify))
    with tempfile.TemporaryDirectory(prefix="appliance-drill-") as folder:
        scene = Scene(Path(folder), given, (lambda _: None) if args.json else (lambda line: print(line, flush=True)),
                      _forked)
        scene.tell(f"drill: {drill.incident}")
        try:
            drill.play(scene)
        except DrillError as error:
            _end(args, scene, failed=str(error))
            return 1
    _end(args, scene)
    return 0


def _forked(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Run a command in a fork of this process, which has imported most of what it needs."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            _child(words)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return code, _read(output), _read(errors)


def _child(words: Sequence[str]) -> NoReturn:
    code = 2
    try:
        code = _main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main(words: Sequence[str]) -> int:
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
                              for number in (1, 2))
    return int(importlib.import_module("appliance.cli.main").main(list(words)))


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _end(args: argparse.Namespace, scene: Scene, failed: str = "") -> None:
    drill = DRILLS[args.name]
    if args.json:
        print(json.dumps({"drill": args.name, "held": not failed, "reason": failed or None, "refuses": drill.refuses,
                          "guide": drill.guide(args.name), "commands": scene.commands}, indent=2))
    else:
        print(f"\nFAILED: {failed}" if failed else f"\nas it should be: {drill.refuses}", flush=True)
        print(f"in earnest: {drill.guide(args.name)}")
