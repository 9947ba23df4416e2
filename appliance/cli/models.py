"""`appliance models`: have a running appliance load and unload the models of its policy.

The appliance is verified first, as by `appliance connect`; then an API key with the role `admin` is
shown to it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from appliance.cli import administering
from appliance.codec.printable import plain

PATH = "/v1/admin/models"
ACTIONS = {"list": "show the models of the policy, and which are loaded", "load": "load a model",
           "unload": "unload a model: its answers end before, and it is wiped",
           "swap": "unload one model and load another, in one generation"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions, each with the same options."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in ACTIONS.items():
        one = actions.add_parser(name, help=about, description=about)
        one.add_argument("url", metavar="URL", help=administering.URL)
        if name == "swap":
            one.add_argument("unload", metavar="OLD", help="the model that leaves")
            one.add_argument("load", metavar="NEW", help="the model that comes")
        elif name != "list":
            one.add_argument(name, metavar="MODEL", help="its name in the policy")
        one.add_argument("--policy", metavar="FILE", type=Path, required=True,
                         help="the deployment policy, or its copy without tenants")
        administering.add_arguments(one)
        one.add_argument("--json", action="store_true", help="print the appliance's answer as JSON")
        one.epilog = administering.EXIT_CODES


def run(args: argparse.Namespace) -> int:
    """Verify, ask, and print what is loaded then."""
    change = {name: value for name in ("load", "unload") if (value := getattr(args, name, None)) is not None}
    note = "; a model is read whole before the answer comes" if "load" in change else ""
    body = json.dumps(change).encode() if change else None
    return administering.run(args, PATH, body, _table, note=note)


def _table(told: Any) -> str:
    lines = [plain(f"{each['id']:24}{each['state']:12}load = \"{each['load']}\"") for each in told["data"]]
    return "\n".join([*lines, f"generation {told['generation']}"])
