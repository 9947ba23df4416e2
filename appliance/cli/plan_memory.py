"""`appliance plan-memory FILE`: what a deployment takes of the memory there is, and what of its weights is resident."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from appliance.boot import budget, checks
from appliance.boot.plan import plan
from appliance.policy import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the policy")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR",
                        help="a folder with model files, besides the policy's own; may be given again")
    parser.add_argument("--memory", type=int, metavar="MIB",
                        help="plan for so many MiB (default: the policy's budget, or what is free here, if less)")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the table; 1 when the memory does not suffice."""
    policy = load(args.file).policy
    files = checks.find_models(policy, [args.file.parent, *args.models])
    found = plan(policy, files, budget.room(policy) if args.memory is None else args.memory << 20)
    if args.json:
        print(json.dumps({**asdict(found), "nbytes": found.nbytes}, indent=2))
        return int(found.refusal is not None)
    for line in found.lines:
        print(f"{budget.mebibytes(line.nbytes):>12}  {line.what}")
    print(f"{budget.mebibytes(found.nbytes):>12}  together")
    if found.room is not None:
        print(f"{budget.mebibytes(found.room):>12}  there are")
    if found.refusal is not None:
        print(f"does not fit: {found.refusal}")
    return int(found.refusal is not None)
