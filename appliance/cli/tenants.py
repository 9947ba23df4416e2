"""`appliance tenants FILE`: sign a list of tenants as the authority that a policy pins, or check a
signed one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.attestation import keyfile
from appliance.cli import passphrase
from appliance.codec.printable import quantity
from appliance.errors import PolicyError, about
from appliance.policy import load
from appliance.signed import tenants as tenantlist


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the list as JSON, or with --policy the signed list")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with this Ed25519 private key (PKCS #8)")
    what.add_argument("--policy", metavar="POLICY", type=Path, help="check that this policy accepts the signed list")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="where the signed list goes (needs --key)")
    parser.add_argument("--json", action="store_true", help="print JSON (a signed list is JSON in any case)")
    parser.epilog = "exit codes: 0 signed or accepted, 2 not in form, not accepted, or cannot run"


def run(args: argparse.Namespace) -> int:
    """Sign, or check."""
    data = tenantlist.read(args.file)
    if args.policy is not None:
        if args.output is not None:
            raise PolicyError("--output is where a signed list goes: it needs --key", code="output-unused")
        policy = load(args.policy).policy
        with about(args.file):
            found = tenantlist.parse(data, policy)
        print(json.dumps({"version": found.version, "tenants": len(found.tenants)}) if args.json else
              f"version {found.version}, {quantity(len(found.tenants), 'tenant')}")
        return 0
    with about(args.file):
        listed = tenantlist.decode(data, {"appliance", "version", "tenants"})
    key = keyfile.ed25519_private_key(args.key, passphrase.ask)
    with about(args.file):
        signed = tenantlist.sign(listed, key)
    if args.output is None:
        print(signed.decode(), end="")
    else:
        keyfile.write_whole(args.output, signed)
        if args.json:
            print(json.dumps({"file": str(args.output), "version": listed["version"],
                              "tenants": len(listed["tenants"])}))
    return 0
