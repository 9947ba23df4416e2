"""`appliance accept IMAGE`: boot an image on a machine, try each attack of a host, and write a
bundle that anybody may judge."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

from appliance.acceptance import judge, trial
from appliance.acceptance.attacks import ATTACKS
from appliance.acceptance.machine import BOOT, AcceptanceError
from appliance.acceptance.materials import Given
from appliance.attestation import keyfile
from appliance.cli import numbers, passphrase, verifying
from appliance.errors import PolicyError
from appliance.policy import inputfile
from appliance.policy.explaining import checking


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("image", metavar="DIR", type=Path, nargs="?", help="the image's folder")
    parser.add_argument("-o", "--output", metavar="BUNDLE", type=Path, help="the bundle to write")
    parser.add_argument("--policy", metavar="FILE", type=Path,
                        help="the deployment policy; it goes into the bundle. With --judge, the bundle's has to be it")
    _add_reference(parser)
    parser.add_argument("--build", metavar="OPTIONS", type=shlex.split,
                        help="build the image first, with these options of appliance image build, in one word")
    parser.add_argument("--predict", metavar="OPTIONS", type=shlex.split,
                        help="predict its measurements, with these options of appliance image predict, in one word")
    parser.add_argument("--boot", metavar="OPTIONS", type=shlex.split, default=[],
                        help="the options of appliance image boot, in one word, but for --port")
    parser.add_argument("--boot-command", metavar="COMMAND", type=shlex.split,
                        help="the command that boots an image here, in the place of appliance image boot: it gets "
                        "the folder, --port PORT and the words of --boot")
    parser.add_argument("--attack", metavar="NAME", choices=sorted(ATTACKS), action="append", default=[],
                        help=f"only this one of {', '.join(ATTACKS)}; may be repeated (default: all). With "
                        "--judge, only this one has to be there")
    parser.add_argument("--seconds", metavar="N", type=numbers.SECONDS, default=900,
                        help="how long a machine may take until it serves (default: %(default)s)")
    parser.add_argument("--key", metavar="KEY.pem", type=Path,
                        help="sign the bundle with this Ed25519 key (default: a key made for it)")
    parser.add_argument("--judge", metavar="BUNDLE", type=Path, help="judge a bundle instead, offline")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    parser.epilog = ("exit codes: those of appliance verify for the machine, if all attacks were tried and refused:\n"
                     "0 verified, 4 measured boot, host trusted, 5 simulated, 7 measured boot, AWS trusted;\n"
                     "1 an attack was accepted, or is missing, or the bundle is not whole;\n"
                     "2 cannot run, or the machine is not verified")


def _add_reference(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measurements", metavar="FILE", type=Path,
                        help="the image's measurements (default: measurements.json of its folder)")
    parser.add_argument("--builder-key", metavar="KEY", help="the builder's public key: ed25519:HEX or a file")
    parser.add_argument("--approvals", metavar="FILE", type=Path,
                        help="the policy's approvals (default: POLICY.approvals, if it exists)")
    parser.add_argument("--machines", metavar="FILE", type=Path, help="the signed list of machines")
    parser.add_argument("--collateral", metavar="DIR", type=Path,
                        help="certificates, revocation lists, TCB documents; they go into the bundle")
    parser.add_argument("--without-revocation", action="store_true",
                        help="do without a list of revoked SEV-SNP certificates")
    parser.add_argument("--ak", metavar="KEY", action="append", default=[],
                        help="a TPM's attestation key that you enrolled: sha256:HEX or a file; may be repeated")
    parser.add_argument("--key-bound", action="store_true",
                        help='accept evidence of a TLS key where the policy says session_binding = "key"')
    parser.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="for tests only: believe another root as well")


def run(args: argparse.Namespace) -> int:
    """Accept a machine, or judge a bundle."""
    if args.judge is not None:
        return _judge(args, _read(args.judge))
    for name, value in (("DIR", args.image), ("--policy FILE", args.policy), ("--output BUNDLE", args.output)):
        if value is None:
            raise PolicyError(f"an acceptance needs {name}", code="usage",
                              hint="appliance accept DIR --policy FILE -o BUNDLE, or --judge BUNDLE")
    try:
        data = trial.accept(_plan(args))
    except trial.UnverifiedError as error:
        kept = args.output.with_name(f"{args.output.name}.evidence.json")
        keyfile.write_whole(kept, error.sight.evidence)
        raise AcceptanceError(error.summary, code=error.code, hint=f"{error.hint}; its evidence is in {kept}") from None
    keyfile.write_whole(args.output, data)
    return _judge(args, data)


def _plan(args: argparse.Namespace) -> trial.Plan:
    measured = args.measurements or args.image / "measurements.json"
    given = Given(
        args.policy, args.image, measured if measured.is_file() or args.predict is not None else None,
        args.builder_key, args.approvals, args.machines, args.collateral, tuple(args.ak), args.without_revocation,
        args.key_bound)
    own = {} if args.key is None else {"key": keyfile.ed25519_private_key(args.key, passphrase.ask)}
    return trial.Plan(
        given, tuple(args.boot), tuple(args.boot_command or BOOT),
        None if args.build is None else tuple(args.build), None if args.predict is None else tuple(args.predict),
        trial.names(args.attack), args.seconds, verifying.roots(args.unsafe_root),
        (lambda _: None) if args.json else (lambda line: print(line, flush=True)), **own)


def _read(path: Path) -> bytes:
    try:
        return inputfile.read(path, judge.MAX_BYTES + 1)
    except OSError as error:
        raise AcceptanceError(f"{path}: {error.strerror}", code="file-unreadable") from None


def _judge(args: argparse.Namespace, data: bytes) -> int:
    trust = judge.Trust(args.builder_key, tuple(args.ak), verifying.roots(args.unsafe_root),
                        None if args.policy is None else checking.load(args.policy).digest, trial.names(args.attack))
    try:
        found = judge.judge(data, trust)
    except AcceptanceError as error:
        if error.code not in ("bundle-altered", "bundle-refused"):
            raise
        _tell(args, {"held": False, **error.as_json()}, f"NOT ACCEPTED: {error.summary}\n  hint: {error.hint}")
        return 1
    _tell(args, found.as_json(), "\n".join(_lines(found)))
    return found.verdict.exit_code if found.held else 1


def _tell(args: argparse.Namespace, value: object, text: str) -> None:
    print(json.dumps(value, indent=2) if args.json else text)


def _lines(found: judge.Judgement) -> list[str]:
    head = f"{found.verdict.status.upper()}: {found.verdict.reason}"
    lines = [head if found.held else f"NOT ACCEPTED: {found.against}",
             f"  {found.machine}, appliance {found.version}, judged as of {found.verdict.at:%Y-%m-%dT%H:%M:%SZ}",
             f"  policy sha384:{found.verdict.policy_sha384.hex()}"]
    if found.verdict.test_roots:
        lines.append("  TEST ROOTS: not the vendors' alone were believed")
    width = max(map(len, ATTACKS))
    for ended in ("accepted", "refused", "silent", "not tried"):
        lines += [f"  {ended:<10}{each.name:<{width}}  {each.what}: {each.by}" for each in found.lines
                  if each.ended == ended]
    lines += [f"  {'missing':<10}{name:<{width}}  {ATTACKS[name].what}" for name in found.missing]
    return [*lines, *(f"  not proved: {each}" for each in found.remarks)]
