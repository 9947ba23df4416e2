"""`appliance approve FILE`: sign a policy's digest as one of its approvers, and show who has
signed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from appliance.attestation import keyfile
from appliance.cli import passphrase
from appliance.errors import PolicyError, about
from appliance.policy import Loaded
from appliance.policy.explaining.checking import load
from appliance.signed import approvals, desk


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy, or its copy without tenants")
    parser.add_argument("--as", dest="approver", metavar="NAME",
                        help="the approver's name (default: the approver to whom the policy gives the key)")
    signer = parser.add_mutually_exclusive_group()
    signer.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with this Ed25519 private key (PKCS #8)")
    signer.add_argument("--signature", metavar="FILE", type=Path,
                        help="add a signature made elsewhere: 64 bytes over what --message wrote (needs --as)")
    signer.add_argument("--message", metavar="OUT", type=Path, help="write the bytes to sign, and nothing else")
    parser.add_argument("--approvals", metavar="FILE", type=Path, help="where they are kept (default: FILE.approvals)")
    parser.add_argument("--json", action="store_true", help="print the tally as JSON")
    parser.epilog = ("Without --key, --signature or --message, shows who has signed.\n"
                     "exit codes: 0 approved by as many as required, 1 not yet, 2 cannot run")


def run(args: argparse.Namespace) -> int:
    """Add an approval, or show the tally."""
    loaded, path = load(args.file), args.approvals or approvals.beside(args.file)
    if args.approver is not None and args.key is None and args.signature is None:
        raise PolicyError("--as names the approver: it needs --key or --signature", code="approver-unused")
    if args.message is not None:
        keyfile.write_whole(args.message, approvals.message(loaded.digest))
        if args.json:
            print(json.dumps({"policy_sha384": loaded.digest.hex(), "message": str(args.message)}, indent=2))
        return 0
    found = approvals.read(path)
    if args.key is not None or args.signature is not None:
        made = _approval(args, loaded)
        with about(path):
            found = desk.with_approval(found, loaded.digest, made)
        keyfile.write_whole(path, found.to_json())
    counted = approvals.tally(loaded.policy, loaded.digest, found)
    if args.json:
        print(json.dumps({"policy_sha384": loaded.digest.hex(), "required": counted.required,
                          "valid": counted.valid, "wrong": counted.wrong, "file": str(path)}, indent=2))
    else:
        print(f"policy {loaded.digest.hex()}\napprovals: {counted}")
    return 0 if counted.enough else 1


def _approval(args: argparse.Namespace, loaded: Loaded) -> approvals.Approval:
    """Return the new approval, which must count."""
    if args.key is not None:
        key = keyfile.ed25519_private_key(args.key, passphrase.ask)
        name = args.approver or desk.approver_of(loaded.policy, key.public_key().public_bytes_raw())
        made = desk.approve(key, name, loaded.digest)
    elif args.approver is None:
        raise PolicyError("--signature needs --as NAME", code="approver-unknown")
    else:
        made = desk.from_signature(args.approver, keyfile.read(args.signature, "signature"))
    desk.check_approval(loaded.policy, loaded.digest, made)
    return made
