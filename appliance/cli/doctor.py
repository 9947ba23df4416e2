"""`appliance doctor [POLICY]`: what this machine can do, what it lacks, and what a policy lacks on
it."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from pathlib import Path

from appliance.doctor import examination
from appliance.doctor.examination import Examination


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="POLICY", type=Path, nargs="?",
                        help="a policy that is to run here, or as a guest of this machine")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR",
                        help="a folder with model files, besides the policy's own; may be given again")
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")
    parser.epilog = ("It changes nothing, and asks no other machine.\n"
                     "exit codes: 0 nothing lacks (for the policy, or for any task), 1 something does, 2 cannot run")


def run(args: argparse.Namespace) -> int:
    """Print what is there, what is not, and what to do."""
    folders = [*args.models, *([args.file.parent / "models"] if args.file is not None else [])]
    found = examination.examine(args.file, folders)
    if args.json:
        print(json.dumps({
            "lines": [dataclasses.asdict(each) for each in found.lines],
            "tasks": {task: list(lacking) for task, lacking in found.obstacles.items()},
            "needed": found.needed, "next": found.commands}, indent=2))
    else:
        _tell(found)
    return int(bool(found.lacking))


def _tell(found: Examination) -> None:
    """Print the lines by area, then the tasks, then the next commands."""
    for area, lines in itertools.groupby(found.lines, lambda each: each.area):
        print(area)
        for each in lines:
            print(f"  {each.state:<5}{each.name:<20}{each.found}")
            if each.fix and each.state != "yes":
                print(f"       {'':<20}{each.fix}")
    print("this machine can")
    for task, lacking in found.obstacles.items():
        print(f"  {'no' if lacking else 'yes':<5}{task}{': lacking ' + ', '.join(lacking) if lacking else ''}")
    for command in found.commands:
        print(f"next: {command}")
