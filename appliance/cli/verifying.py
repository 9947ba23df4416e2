"""Arguments that `verify` and `connect` share: what the verifier holds and trusts."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.google.endorsement import ROOT_FILE
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.trust.unsafe import with_roots
from appliance.cli import feeds
from appliance.client import Verifier
from appliance.client.fleet.overlap import Overlap
from appliance.client.verdict import AWS_TRUSTED, HOST_TRUSTED, SIMULATED, Status
from appliance.errors import PolicyError
from appliance.policy import load

DIGEST_BYTES = 48
_ACCEPT: dict[str, Status] = {"simulated": SIMULATED, "host-trusted": HOST_TRUSTED,
                              "aws-trusted": AWS_TRUSTED}


def add_accept(parser: argparse.ArgumentParser) -> None:
    """Declare which lesser verdicts will do."""
    parser.add_argument("--accept", choices=sorted(_ACCEPT), action="append", default=[],
                        help="a lesser verdict that will do; may be repeated")


def accepted(args: argparse.Namespace) -> tuple[Status, ...]:
    """Those verdicts."""
    return tuple(_ACCEPT[name] for name in args.accept)


def add_reference(parser: argparse.ArgumentParser) -> None:
    """Declare what evidence is compared with."""
    parser.add_argument("--policy", metavar="FILE", type=Path, required=True,
                        help="the deployment policy, or its copy without tenants")
    add_image(parser)


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Declare what is to follow, while both will do."""
    change = parser.add_argument_group("while a deployment changes")
    change.add_argument("--next", metavar="FILE", type=Path,
                        help="the policy that is to follow: either will do until --until, and then this one only")
    change.add_argument("--next-measurements", metavar="FILE", type=Path,
                        help="the measurements of the image that is to follow (default: --measurements)")
    change.add_argument("--until", metavar="TIME", type=time,
                        help="the end of the overlap, such as 2026-12-01T12:00:00Z")


class _Either(argparse.Action):
    """An option of two names: one file is given by one of them."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: str | None = None) -> None:
        """Keep the file. A second one under the other name ends the program with exit code 2."""
        before = getattr(namespace, "given_as", option_string)
        if before != option_string:
            parser.error(f"{before} and {option_string} are given: keep one. A portable reference says what "
                         "measurements say, for each shape of machine")
        namespace.given_as = option_string
        setattr(namespace, self.dest, values)


def add_image(parser: argparse.ArgumentParser) -> None:
    """Declare what evidence is compared with beside the policy."""
    parser.add_argument("--measurements", "--reference", metavar="FILE", type=Path, action=_Either,
                        help="the builder's word on what hardware measures, or the image's portable reference, from "
                        "which that is derived; needed for all platforms but simulated")
    parser.add_argument("--gce-endorsement", metavar="FILE", type=Path,
                        help="beside a portable reference: Google's endorsement of the machine's firmware; "
                        f"{ROOT_FILE} is looked for beside it")
    parser.add_argument("--builder-key", metavar="KEY", help="the builder's public key: ed25519:HEX or a file; the "
                        "signature is beside the measurements, as .sig")
    parser.add_argument("--measurements-unsigned", action="store_true",
                        help="believe the measurements as they are: you rebuilt the image and compared")
    parser.add_argument("--releases", metavar="DIR", type=Path,
                        help="the builder's release log, log.jsonl and checkpoint: what it revoked is refused")
    parser.add_argument("--held-release", metavar="FILE", type=Path,
                        help="a checkpoint of that log from an earlier day, from which it must have grown")
    parser.add_argument("--max-release-age", metavar="AGE", type=age,
                        help="how old the log's newest record may be, such as 30d or 12h")
    parser.add_argument("--approvals", metavar="FILE", type=Path,
                        help="the policy's approvals (default: POLICY.approvals, if it exists)")
    parser.add_argument("--collateral", metavar="DIR", type=Path,
                        help="certificates, revocation lists, TCB documents, under any names; nothing is fetched")
    parser.add_argument("--keep", metavar="DIR", type=Path,
                        help="keep the collateral that comes with good evidence here, for a day on which none comes")
    parser.add_argument("--without-revocation", action="store_true",
                        help="do without a list of revoked SEV-SNP certificates; the verdict then says so")
    parser.add_argument("--ak", metavar="KEY", action="append", default=[],
                        help="a TPM's attestation key that you enrolled: sha256:HEX or a file; may be repeated")
    parser.add_argument("--ek-roots", metavar="DIR", type=Path,
                        help="certificates of TPM makers (or of the machine's own endorsement key): the TPM then has "
                        "to show, by a challenge, that its attestation key is beside a key that they certified")
    parser.add_argument("--self-test", metavar="SHA384", type=digest, action="append", default=[],
                        help="the digest that the boot's self-test must have, as its report and /health show it; "
                        "may be repeated")
    parser.add_argument("--machines", metavar="FILE", type=Path,
                        help="the signed list of machines that the policy demands (default: beside the policy, under "
                        "the name that the policy has)")
    feeds.add(parser)
    parser.add_argument("--key-bound", action="store_true",
                        help="accept evidence of a TLS key where the policy says session_binding = \"key\": anybody "
                        "who once got that key can relay it")
    unsafe = parser.add_argument_group("for tests only")
    unsafe.add_argument("--unsafe-any-ak", action="store_true",
                        help="believe a TPM quote by any key: it is then anybody's word")
    unsafe.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="believe another root (ARK, Intel-shaped or TPM) as well; every verdict says so")


def judge(args: argparse.Namespace) -> Verifier | Overlap:
    """Return the verifier of these arguments, or the overlap of two. Raises as `verifier` does."""
    follows = args.next is not None or args.next_measurements is not None
    if follows != (args.until is not None):
        raise PolicyError("an overlap needs what is to follow, and an end", code="overlap-incomplete",
                          hint="give both: --next FILE (or --next-measurements FILE) and --until TIME")
    if not follows:
        return verifier(args)
    following = argparse.Namespace(**vars(args))
    following.policy, following.measurements = args.next or args.policy, args.next_measurements or args.measurements
    if args.next is not None:
        following.approvals = following.machines = None  # those beside it: the others are of the policy before
    return Overlap(verifier(args), verifier(following), args.until)


def files(args: argparse.Namespace) -> list[Path]:
    """Return all files of a reference, with the signatures and approvals beside them."""
    named = [args.policy, args.measurements, args.next, args.next_measurements, args.approvals, args.machines,
             args.feed, args.gce_endorsement]
    found = [each for each in named if each is not None] + _listed(args)
    beside = [each.with_name(each.name + ending) for each in found for ending in (".sig", ".approvals")]
    folders = [each for each in (args.releases, args.collateral, args.ek_roots) if each is not None]
    return [*found, *beside, *folders]


def _listed(args: argparse.Namespace) -> list[Path]:
    """Return the lists of machines that lie beside policies."""
    found = [(path, load(path).policy.tee.evidence.machines) for path in (args.policy, args.next) if path is not None]
    return [path.parent / each.list_file for path, each in found if each is not None]


def verifier(args: argparse.Namespace) -> Verifier:
    """Return the verifier of these arguments. Raises PolicyError, AttestationError."""
    feeds.use(args)
    if args.measurements is None and (
            (args.builder_key is not None and args.releases is None) or args.measurements_unsigned):
        given = "--builder-key" if args.builder_key is not None else "--measurements-unsigned"
        raise PolicyError(f"{given} says whom to trust about measurements, but there are no measurements",
                          code="measurements-absent", hint="give them: --measurements FILE")
    if args.builder_key is not None and args.measurements_unsigned:
        raise PolicyError("--builder-key and --measurements-unsigned contradict each other",
                          code="measurements-unsigned", hint="give only the key: the signature is then checked")
    return Verifier.from_files(
        args.policy, args.measurements, builder_key=args.builder_key,
        measurements_unsigned=args.measurements_unsigned, approvals=args.approvals, collateral=args.collateral,
        keep=args.keep, gce_endorsement=args.gce_endorsement,
        need_revocation=not args.without_revocation, any_ak=args.unsafe_any_ak, attestation_keys=args.ak,
        ek_roots=args.ek_roots, self_tests=args.self_test, releases=args.releases, held_release=args.held_release,
        max_release_age=args.max_release_age, key_bound=args.key_bound, machines=args.machines,
        roots=roots(args.unsafe_root))


def age(text: str) -> timedelta:
    """Return an age from the command line, in hours or days."""
    match = re.fullmatch(r"([1-9][0-9]{0,5})([hd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 30d or 12h")
    return timedelta(hours=int(match[1]) * (24 if match[2] == "d" else 1))


def digest(text: str) -> bytes:
    """SHA-384 from the command line, in hex."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != DIGEST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a SHA-384 of {2 * DIGEST_BYTES} hex digits")
    return found


def roots(paths: list[Path]) -> Roots:
    """Return the vendors' roots, and the roots that a test names."""
    return with_roots([keyfile.read(path, "root") for path in paths]) if paths else VENDORS


def time(text: str) -> datetime:
    """Return a time from the command line; without a zone it is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC, the first and last day may be before the year 1 or after 9999
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-11-20T07:00:00Z") from None
