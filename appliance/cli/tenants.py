"""`appliance tenants FILE`: sign a list of tenants as the authority that a policy pins, or check a
signed one. `appliance tenants push URL FILE`: have a running appliance take a signed one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.cli import administering, passphrase
from appliance.codec.printable import plain, quantity
from appliance.errors import PolicyError, about
from appliance.policy.explaining.checking import load
from appliance.signed import desk, tenants

PATH, PUSH = "/v1/admin/tenants", "push"
USAGE = """appliance tenants FILE --key KEY.pem [-o OUT] [--json]
       appliance tenants FILE --policy POLICY [--json]
       appliance tenants push URL FILE --policy POLICY [what `appliance models` takes] [--json]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = USAGE
    parser.add_argument("words", metavar="FILE", nargs="+", help="the list as JSON, or with --policy the signed list; "
                        f"`push URL FILE`: a signed list for the appliance at {administering.URL}")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with this Ed25519 private key (PKCS #8)")
    what.add_argument("--policy", metavar="POLICY", type=Path, help="check that this policy accepts the signed list")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path, help="where the signed list goes (needs --key)")
    parser.add_argument("--json", action="store_true", help="print JSON (a signed list is JSON in any case)")
    administering.add_arguments(parser)
    parser.epilog = ("exit codes: 0 signed, accepted or in force, 2 not in form, not accepted, or cannot run; of push "
                     "also 1 the appliance refused, and if it is not verified, that of the verdict (see appliance "
                     "verify)")


def run(args: argparse.Namespace) -> int:
    """Sign, check, or push."""
    push = len(args.words) == 3 and args.words[0] == PUSH
    if not push and len(args.words) != 1:
        args.parser.error(f"FILE, or {PUSH} URL FILE")
    file = Path(args.words[-1])
    if args.key is None and args.output is not None:
        raise PolicyError("--output is where a signed list goes: it needs --key", code="output-unused")
    data = tenants.read(file)
    if push:
        return _push(args, data, file)
    return _sign(args, data, file) if args.policy is None else _check(args, data, file)


def _push(args: argparse.Namespace, data: bytes, file: Path) -> int:
    """Verify an appliance, and have it take a list that the policy accepts."""
    if args.policy is None:
        raise PolicyError(f"{PUSH} shows a key to an appliance that is verified first", code="policy-absent",
                          hint="give its policy: --policy FILE")
    with about(file):
        tenants.parse(data, load(args.policy).policy)
    args.url = args.words[1]
    return administering.run(args, PATH, data, _words)


def _words(told: Any) -> str:
    return plain(f"version {told['version']} is in force: {quantity(told['tenants'], 'tenant')}, keys revoked: "
                 f"{told['revoked_keys']}, generation {told['generation']}")


def _check(args: argparse.Namespace, data: bytes, file: Path) -> int:
    policy = load(args.policy).policy
    with about(file):
        found = tenants.parse(data, policy)
    print(json.dumps({"version": found.version, "tenants": len(found.tenants)}) if args.json else
          f"version {found.version}, {quantity(len(found.tenants), 'tenant')}")
    return 0


def _sign(args: argparse.Namespace, data: bytes, file: Path) -> int:
    with about(file):
        listed = tenants.decode(data, tenants.LIST_KEYS, {"tiers"})
    key = keyfile.ed25519_private_key(args.key, passphrase.ask)
    with about(file):
        signed = desk.sign_tenants(listed, key)
    if args.output is None:
        print(signed.decode(), end="")
    else:
        keyfile.write_whole(args.output, signed)
        if args.json:
            print(json.dumps({"file": str(args.output), "version": listed["version"],
                              "tenants": len(listed["tenants"])}))
    return 0
