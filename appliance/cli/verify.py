"""`appliance verify URL|FILE`: is this an appliance, under this policy, in hardware that its
operator cannot read?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.binding import parse_nonce
from appliance.cli import verifying
from appliance.client import Verdict, ear, target
from appliance.client.verdict import unmade
from appliance.errors import ApplianceError, AttestationError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("target", metavar="URL|FILE",
                        help="https://HOST:PORT, vsock://CID:PORT, http://127.0.0.1:PORT (simulated), or a file of "
                        "evidence in JSON")
    verifying.add_reference(parser)
    verifying.add_overlap(parser)
    parser.add_argument("--at", metavar="TIME", type=verifying.time, help="judge by this time (default: now)")
    parser.add_argument("--nonce", metavar="HEX", type=_nonce,
                        help="the nonce that the evidence must answer, 16 to 64 bytes: a URL is asked with it, such as "
                        "with an auditor's (default of a URL: a fresh one)")
    parser.add_argument("--save", metavar="FILE", type=Path, help="keep the evidence, for another day or another judge")
    parser.add_argument("--ear", metavar="OUT", type=Path,
                        help="write the verdict as an EAT Attestation Result, a signed token, and its key as OUT.jwk")
    parser.add_argument("--ear-key", metavar="KEY.pem", type=Path,
                        help="sign it with this private key (Ed25519, P-256 or P-384; default: a key made for it)")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.epilog = ("exit codes: 0 verified; 1 evidence invalid; 2 could not check; 3 policy not met;\n"
                     "4 measured boot, or firmware proved, host trusted; 5 simulated, proves nothing;\n"
                     "6 verified, to a key; 7 measured boot, AWS trusted")


def _nonce(text: str) -> bytes:
    try:
        return parse_nonce(text)
    except AttestationError as error:
        raise argparse.ArgumentTypeError(error.summary) from None


def failure(error: ApplianceError, args: argparse.Namespace | None) -> dict[str, Any]:
    """Return the output of --json where no verdict could be made; on bad usage there are no
    arguments."""
    return unmade(error, None if args is None else args.target)


def run(args: argparse.Namespace) -> int:
    """Judge the target, print the verdict, and return its exit code."""
    verdict = _judge(args)
    if args.save is not None and verdict.raw is not None:
        keyfile.write_whole(args.save, verdict.raw)
    if args.ear is not None:
        key = ear.load_key(args.ear_key) if args.ear_key is not None else ear.new_key()
        keyfile.write_whole(args.ear, ear.token(verdict, key).encode() + b"\n")
        keyfile.write_whole(args.ear.with_name(args.ear.name + ".jwk"), ear.public_jwk(key))
    print(json.dumps(verdict.as_json(), indent=2) if args.json else verdict)
    return verdict.exit_code


def _judge(args: argparse.Namespace) -> Verdict:
    judge = verifying.judge(args)
    if target.is_url(args.target):
        return judge.verify(args.target, nonce=args.nonce, at=args.at)
    return judge.verify_file(Path(args.target), nonce=args.nonce, at=args.at)
