"""`appliance check FILE`: every finding in a policy, with line, column and fix."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from appliance.policy import Checked, check_file, policy_digest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="the policy")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR",
                        help="a folder with model files, besides the policy's own; may be given again")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.epilog = ("Model files that are there are looked at: a warning says which cannot run here, and why. "
                     "exit codes: 0 valid (there may be warnings, and notes on what this version does not enforce), "
                     "1 findings, 2 cannot run")


def run(args: argparse.Namespace) -> int:
    """Check one file: print its findings, then the verdict."""
    checked = _with_models(check_file(args.file), [Path(args.file).parent, *args.models])
    if args.json:
        print(json.dumps(_as_json(checked), indent=2))
    else:
        for diagnostic in checked.diagnostics:
            print(f"{diagnostic}\n")
        print(f"{args.file}: {_verdict(checked)}")
    return 0 if checked.valid else 1


def _with_models(checked: Checked, folders: list[Path]) -> Checked:
    """The findings, and one for each model file in the folders that cannot run here. Without the packages of a server
    model files are not looked at."""
    models = () if checked.policy is None else checked.policy.models
    if checked.policy is None or not any((folder / model.file).is_file() for folder in folders for model in models):
        return checked
    try:
        from appliance.boot import checks, fitness
    except ImportError:
        return checked
    found = [*fitness.findings(checked, checks.find_models(checked.policy, folders))]
    return dataclasses.replace(checked, diagnostics=(*checked.diagnostics, *found))


def _verdict(checked: Checked) -> str:
    counts = {severity: sum(d.severity == severity for d in checked.diagnostics)
              for severity in ("error", "warning", "note")}
    words = [f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items() if count]
    return ("valid" if checked.valid else "not valid") + (f" ({', '.join(words)})" if words else "")


def _as_json(checked: Checked) -> dict[str, object]:
    digest = policy_digest(checked.policy).hex() if checked.policy is not None else None
    return {"valid": checked.valid, "digest": digest, "source_sha384": checked.source_sha384.hex(),
            "diagnostics": [diagnostic.as_json() for diagnostic in checked.diagnostics]}
