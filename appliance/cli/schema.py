"""`appliance schema`: the reference of the policy language."""

from __future__ import annotations

import argparse
import json

from appliance.policy import reference


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--format", choices=["markdown", "json-schema"], default="markdown",
                        help="a manual to read, or a JSON Schema of the policy's values (default: markdown)")
    parser.add_argument("--json", action="store_true", help="the same as --format json-schema")


def run(args: argparse.Namespace) -> int:
    """Print the reference."""
    if args.json or args.format == "json-schema":
        print(json.dumps(reference.json_schema(), indent=2))
    else:
        print(reference.markdown(), end="")
    return 0
