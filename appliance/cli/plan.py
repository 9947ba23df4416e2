"""`appliance plan OLD NEW`: what a change of policy, tenant list or image does, and in which order
to go.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from appliance.attestation.case import measurements
from appliance.client.rollout import plan
from appliance.client.rollout.plan import Materials, RolloutPlan
from appliance.errors import PolicyError
from appliance.policy import inputfile
from appliance.policy.changes.compare import FieldChange
from appliance.policy.explaining.checking import load
from appliance.signed import tenants

_SIGNS = {"loosens": "-", "tightens": "+", "changes": "~"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("old", metavar="OLD", type=Path, help="the policy that is in force")
    parser.add_argument("new", metavar="NEW", type=Path, help="the policy that is to follow; OLD again, where only "
                        "tenants or the image change")
    parser.add_argument("--tenants", nargs=2, metavar=("OLD", "NEW"), type=Path, help="both signed lists of tenants")
    parser.add_argument("--measurements", nargs=2, metavar=("OLD", "NEW"), type=Path,
                        help="both images' measurements.json, whose signatures are not looked at")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.epilog = ("signs: - something is looser than before, + tighter, ~ another\n"
                     "exit codes: 0 nothing changes, 1 something changes and nothing is looser, 2 cannot run;\n"
                     "3 something is looser; 4 something is lost, or does not start as it was given")


def run(args: argparse.Namespace) -> int:
    """Compare, predict and print."""
    lists = None if args.tenants is None else (tenants.read(args.tenants[0]), tenants.read(args.tenants[1]))
    measured = None if args.measurements is None else (_measured(args.measurements[0]), _measured(args.measurements[1]))
    made = plan.make(Materials(load(args.old), load(args.new), lists, measured))
    if args.json:
        print(json.dumps(made.as_json(), indent=2))
    else:
        for line in _lines(made):
            print(line)
    return plan.EXIT_CODES[made.risk]


def _measured(path: Path) -> measurements.Measurements:
    try:
        return measurements.parse(inputfile.read(path, measurements.MAX_BYTES + 1))
    except OSError as error:
        raise PolicyError(f"{path} cannot be read: {error.strerror}", code="measurements-unreadable",
                          hint="give the measurements.json of both images: appliance image predict DIR") from None


def _lines(made: RolloutPlan) -> Iterator[str]:
    """Yield the plan as text."""
    same = made.digests[0] == made.digests[1]
    yield f"risk: {made.risk}"
    yield f"policy digest: {made.digests[0]}, in both" if same else (
        f"policy digest: from {made.digests[0]}\n                 to {made.digests[1]}")
    yield from _section("changes of the policy", [line for each in made.changes for line in _change(each)])
    yield from _section("changes of tenants", [line for each in made.tenants for line in _change(each)])
    yield from _section("measured values that are others", [
        f"{each.platform} {each.rule}: {each.others} new, {each.kept} kept" for each in made.images])
    yield from _section("who refuses", [
        f"{each.who}: {each.of} ({', '.join(each.rules)})\n      until: {each.mended_by}" for each in made.refusals])
    yield from _section("steps", [f"{number}. {step}" for number, step in enumerate(made.steps, 1)])


def _section(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"\n{title}:"
        yield from (f"  {line}" for line in lines)


def _change(found: FieldChange) -> Iterator[str]:
    yield f"{_SIGNS[found.direction]} {found.path}: {found.before or 'absent'} -> {found.after or 'absent'}"
    yield f"    {found.meaning}"
