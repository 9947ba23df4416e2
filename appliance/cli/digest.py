"""`appliance digest FILE`: the digest that hardware evidence carries."""

from __future__ import annotations

import argparse
import json
import sys

from appliance.policy.digest import policy_pcr
from appliance.policy.explaining.checking import load
from appliance.policy.language.redacted import without_tenants


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", help="the policy")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print all forms of the digest as JSON")
    form.add_argument("--without-tenants", action="store_true",
                      help="print a copy of the policy without its tenants, which has the same digest")


def run(args: argparse.Namespace) -> int:
    """Print the digest of a valid policy, or its copy without tenants."""
    loaded = load(args.file)
    if args.without_tenants:
        sys.stdout.buffer.write(without_tenants(loaded).encode())  # the policy's own bytes, whatever the locale
    elif args.json:
        print(json.dumps({
            "policy_sha384": loaded.digest.hex(), "host_data": loaded.host_data.hex(),
            "tpm_pcr15_sha256": policy_pcr(loaded.digest).hex(),
            "source_sha384": loaded.source_sha384.hex(), "schema": loaded.policy.appliance.schema_version,
        }, indent=2))
    else:
        print(loaded.digest.hex())
    return 0
