"""`appliance image release`: append to the builder's release log."""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.case import measurements
from appliance.cli import passphrase
from appliance.codec.printable import quantity
from appliance.imaging.papers import releases
from appliance.imaging.papers.releases import Entry
from appliance.policy import inputfile
from appliance.policy.explaining import checking


def add_arguments(actions: Any) -> None:
    """Declare the action."""
    summary = "append measurements, policies or revocations to a release log"
    action = actions.add_parser("release", help=summary, description=summary)
    action.add_argument("folder", metavar="DIR", type=Path,
                        help="the log's folder, to be served as it is; made if absent")
    action.add_argument("--key", metavar="KEY.pem", type=Path, required=True,
                        help="the builder's Ed25519 key (PKCS #8)")
    for word, text in (("", "that are released"), ("revoke-", "that clients shall refuse from now on")):
        action.add_argument(f"--{word}measurements", metavar="FILE", type=Path, action="append", default=[],
                            help=f"measurements {text}; may be repeated")
        action.add_argument(f"--{word}policy", metavar="FILE", type=Path, action="append", default=[],
                            help=f"a policy {text}; may be repeated")
    action.add_argument("--json", action="store_true", help="print the log's head as JSON")
    action.epilog = "without anything to append: a record that the log is current, for clients who ask for a newest age"

def _release(args: argparse.Namespace) -> int:
    entries = [*(_measurements(path) for path in args.measurements), *(_policy(path) for path in args.policy)]
    for event, fields in (*map(_measurements, args.revoke_measurements), *map(_policy, args.revoke_policy)):
        entries.append(("release.revoked", {"what": event.removeprefix("release."), "sha384": fields["sha384"]}))
    found = releases.append(args.folder, entries or [("release.current", {})],
                            keyfile.ed25519_private_key(args.key, passphrase.ask))
    if args.json:
        head = found.head
        print(json.dumps({"origin": head.origin, "size": head.size, "root": head.root.hex()}, indent=2))
    else:
        print(f"{args.folder}: {quantity(found.head.size, 'record')}, {quantity(len(found.measurements), 'release')}, "
              f"{quantity(len(found.revoked), 'revocation')}")
    return 0


def _measurements(path: Path) -> Entry:
    data = inputfile.read(path, measurements.MAX_BYTES)
    version = measurements.parse(data).build.version
    return "release.measurements", {"sha384": hashlib.sha384(data).hexdigest(), "version": version}


def _policy(path: Path) -> Entry:
    loaded = checking.load(path)
    return "release.policy", {"sha384": loaded.digest.hex(), "name": loaded.policy.appliance.name}


ACTIONS = {"release": _release}
