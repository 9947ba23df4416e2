"""`appliance schema`: the reference of the policy language."""

from __future__ import annotations

import argparse
import json

from appliance.cli import numbers
from appliance.policy.language import json_schema, reference, tables
from appliance.policy.schema import frozen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--format", choices=["markdown", "json-schema", "table"], default="markdown",
                        help="a manual to read, a JSON Schema of the policy's values, or the table of fields and "
                        "defaults that the policy digest is made by (default: markdown)")
    parser.add_argument("--json", action="store_true", help="the same as --format json-schema")
    parser.add_argument("--version", type=numbers.whole(1, frozen.LATEST), default=frozen.LATEST,
                        help="the version of the language, which a policy declares (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Print the reference."""
    if args.json or args.format == "json-schema":
        print(json.dumps(json_schema.json_schema(args.version), indent=2))
    elif args.format == "table":
        print(tables.text_of(args.version), end="")
    else:
        print(reference.markdown(args.version), end="")
    return 0
