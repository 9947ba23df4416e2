"""`appliance key new`: an API key, shown once, and the line that goes into the policy."""

from __future__ import annotations

import argparse
import json

from appliance.policy import apikey


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=["new"], help="make a new API key")
    parser.add_argument("--json", action="store_true", help="print key and hash as JSON")


def run(args: argparse.Namespace) -> int:
    """Make a key and print it with its SHA-256; it is kept nowhere."""
    key = apikey.new()
    digest = apikey.sha256(key)
    if args.json:
        print(json.dumps({"api_key": key, "api_key_sha256": digest}, indent=2))
    else:
        print(f"API key, shown this once; give it to the tenant:\n  {key}\n")
        print(f'its hash, for the tenant\'s block or list:\n  api_key_sha256 = ["{digest}"]')
    return 0
