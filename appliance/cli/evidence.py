"""`appliance evidence FILE...`: whether raw evidence is genuine, and every claim in it."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from appliance.attestation.case.record import Record
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import MAX_BYTES, examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tpm.judging import files
from appliance.cli import verifying
from appliance.errors import AttestationError, UncheckedEvidenceError
from appliance.policy import inputfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path,
                        help="a SEV-SNP report, TDX quote, TPM quote (or its folder), certificate with evidence, the "
                        "appliance's own evidence, or an envelope of Trustee, TSM, attestation-rs or dstack")
    parser.add_argument("--collateral", metavar="DIR", type=Path,
                        help="where certificates and revocation lists are, under any names (default: FILE's folder)")
    parser.add_argument("--at", metavar="TIME", type=verifying.time, default=None,
                        help="judge by this time, as 2026-11-20T07:00:00Z or 2026-11-20 (default: now)")
    parser.add_argument("--ak", metavar="KEY", type=Path,
                        help="TPM: the attestation key's public key or certificate, which you know to be genuine")
    parser.add_argument("--event-log", metavar="LOG", type=Path,
                        help="TPM and TDX: the event log to replay, plain or in gzip (default: the one beside FILE)")
    parser.add_argument("--nonce", metavar="HEX", type=_hex,
                        help="the nonce that a TPM quote, by itself or in an envelope, or the appliance's own evidence "
                        "must answer")
    parser.add_argument("--json", action="store_true", help="print JSON: an object for each file, in a list")
    parser.epilog = ("Genuine means that the vendor's hardware said it, not that it is what you want: that is for a\n"
                     "policy to judge. exit codes: 0 genuine, 1 not genuine, 2 cannot tell; of several files the\n"
                     "worst: not genuine, then cannot tell")


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise argparse.ArgumentTypeError("the nonce is not hex") from None


def run(args: argparse.Namespace) -> int:
    """Examine each file; print what was found and the verdict."""
    at = args.at or datetime.now(UTC)
    outcomes = {path: _outcome(path, args, at) for path in args.files}
    if args.json:
        print(json.dumps([{"file": str(path), "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", **outcome.as_json()}
                          for path, outcome in outcomes.items()], indent=2))
    else:
        print("\n\n".join(f"{path}: {outcome}" for path, outcome in outcomes.items()))
    codes = {outcome.exit_code for outcome in outcomes.values()}
    return 1 if 1 in codes else max(codes)


def _outcome(path: Path, args: argparse.Namespace, at: datetime) -> Record:
    """Return the outcome for one file. If the file or its collateral cannot be read, it says so."""
    try:
        return _examine(path, args, at)
    except OSError as error:
        unread: AttestationError = UncheckedEvidenceError(
            f"{error.filename or path} cannot be read: {error.strerror}", code="file-unreadable")
    except AttestationError as error:
        unread = error
    print(f"error[{unread.code}]: {unread.summary}", file=sys.stderr)
    return Record("unread").failed(unread)


def _examine(path: Path, args: argparse.Namespace, at: datetime) -> Record:
    path = (files.message_in(path) or path) if path.is_dir() else path
    data = inputfile.read(path, MAX_BYTES)
    known = collateral_folder.load(args.collateral or path.parent)
    log = None if args.event_log is None else files.unpack(args.event_log.read_bytes())
    return examine(Material(data, path, known, args.ak, log, args.nonce), at=at)
