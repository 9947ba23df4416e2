"""`appliance key new`: an API key, shown once, and the line that goes into the policy.
`appliance key public FILE.pem`: a public key as policies name it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.cli import passphrase
from appliance.policy import apikey


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "make a new API key"
    new = actions.add_parser("new", help=summary, description=summary)
    new.add_argument("--json", action="store_true", help="print key and hash as JSON")
    summary = "print the public half of a key file as policies name it: ed25519:HEX, x25519:HEX"
    public = actions.add_parser("public", help=summary, description=summary)
    public.add_argument("file", metavar="FILE.pem", type=Path, help="a private or a public key in PEM, as openssl "
                        "writes it: Ed25519, X25519, P-256, P-384 or P-521")
    public.add_argument("--json", action="store_true", help="print the public key as JSON")


def run(args: argparse.Namespace) -> int:
    """Do one action."""
    return _new(args) if args.action == "new" else _public(args)


def _new(args: argparse.Namespace) -> int:
    """Make a key and print it with its SHA-256; it is kept nowhere."""
    key = apikey.new()
    digest = apikey.sha256(key)
    if args.json:
        print(json.dumps({"api_key": key, "api_key_sha256": digest}, indent=2))
    else:
        print(f"API key, shown this once; give it to the tenant:\n  {key}\n")
        print(f'its hash, for the tenant\'s block or list:\n  api_key_sha256 = ["{digest}"]')
    return 0


def _public(args: argparse.Namespace) -> int:
    """Print the public key alone, so that it can stand in a command."""
    from appliance.attestation import keyfile  # it brings cryptography, which `key new` does without

    named = keyfile.named_public_key(args.file, passphrase.ask)
    print(json.dumps({"public_key": named}, indent=2) if args.json else named)
    return 0
