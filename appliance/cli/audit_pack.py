"""`appliance audit pack`: write a pack for auditors, or judge one, offline."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.attestation.binding import parse_nonce
from appliance.auditor import held
from appliance.auditor.archive import zipped
from appliance.auditor.archive.manifest import lacking
from appliance.auditor.archive.members import BY_NAME
from appliance.auditor.claims import controls
from appliance.auditor.claims.case import Given, LackingError
from appliance.auditor.claims.table import CLAIMS, FORMER
from appliance.auditor.pack import gather, judge
from appliance.auditor.pack.gather import Files
from appliance.auditor.pack.judge import Outcome
from appliance.auditor.report import engagement, population
from appliance.auditor.report.engagement import Engagement
from appliance.cli import verifying
from appliance.codec.printable import plain, quantity
from appliance.errors import AttestationError, AuditError
from appliance.signed import machines

_PACK = """Write one archive with all that an auditor takes home, and a report for people in it.

Every file is optional: the pack says what is missing, and what that leaves open. Receipts go in without answers and
without openings, so a pack has no content of requests."""



def add_arguments(actions: Any) -> None:
    """Declare `pack`, and `pack verify` below it."""
    make = actions.add_parser("pack", help="write an archive for auditors, or judge one", description=_PACK,
                              formatter_class=argparse.RawDescriptionHelpFormatter)
    make.add_argument("-o", "--output", metavar="PACK", type=Path, help="the archive to write")
    for option, text in (
            ("--policy", "the policy; its .approvals beside it are taken as well"), ("--approvals", "its approvals"),
            ("--measurements", "predicted measurements; their .sig beside them is taken as well"),
            ("--sbom", "the bill of materials"), ("--provenance", "the signed provenance, as a DSSE envelope"),
            ("--health", "the boot's report: the body of /health"), ("--log", "the audit log's lines")):
        make.add_argument(option, metavar="FILE", type=Path, help=text)
    for option, text in (
            ("--bundle", "a publisher's bundle of model-signing"),
            ("--evidence", "evidence, as `appliance verify --save` writes it"),
            ("--extract", "records with proofs, as `appliance audit export` prints them"),
            ("--held", "a checkpoint that was kept outside of the log"),
            ("--receipt", "a receipt, or an answer that ends with one"),
            ("--leakage", "a table of `python -m benchmarks.leakage`: what an onlooker can tell"),
            ("--controls", "a mapping of controls of your own")):
        make.add_argument(option, metavar="FILE", type=Path, action="append", default=[],
                          help=f"{text}; may be repeated")
    for option, text in (("--releases", "the builder's release log: log.jsonl and checkpoint"),
                         ("--collateral", "certificates, revocation lists, TCB documents")):
        make.add_argument(option, metavar="DIR", type=Path, help=text)
    _add_judging(make)
    make.epilog = "exit codes: 0 written and no claim fails, 1 written and a claim fails, 2 not written"
    below = make.add_subparsers(dest="pack_action", metavar="verify")
    verify = below.add_parser("verify", help="judge a pack again, offline", formatter_class=make.formatter_class,
                              description="Judge every claim and control of a pack again, by its members and what you "
                              "know yourself. Nothing is fetched.")
    verify.add_argument("pack", metavar="PACK", type=Path, help="the archive")
    verify.add_argument("--sha256", metavar="HEX", help="the digest that the archive must have, if you noted it")
    verify.add_argument("--require", metavar="CLAIM", choices=sorted(CLAIMS), action="append", default=[],
                        type=lambda name: FORMER.get(name, name),
                        help="a claim that must hold, not only go unchecked; may be repeated")
    verify.add_argument("--report", metavar="FILE", type=Path, help="write your own report, in HTML")
    _add_exports(verify)
    verify.add_argument("--policy-sha384", metavar="HEX", type=verifying.digest, help="the digest that the policy must "
                        "have (`appliance digest`)")
    verify.add_argument("--self-test", metavar="SHA384", type=verifying.digest, action="append", default=[],
                        help="a digest that the boot's self-test may have; may be repeated")
    verify.add_argument("--key", metavar="KEY", action="append", default=[],
                        help="an audit key that evidence elsewhere binds, in hex; may be repeated")
    verify.add_argument("--witness", metavar="NAME=KEY", action="append", default=[],
                        help="a witness's key, besides those of the policy; may be repeated")
    verify.add_argument("--held", metavar="FILE", type=Path, action="append", default=[], dest="own_held",
                        help="a checkpoint that you kept yourself; may be repeated")
    verify.add_argument("--machines", metavar="FILE", type=Path,
                        help="the signed list of machines that the policy demands; no pack carries it")
    verify.add_argument("--period-keys", metavar="FILE", type=Path,
                        help="the keys of sealed records, as `appliance state --period-keys` writes them")
    verify.add_argument("--max-release-age", metavar="AGE", type=verifying.age,
                        help="how old the release log's newest record may be, such as 30d or 12h")
    verify.add_argument("--held-release", metavar="FILE", type=Path,
                        help="a checkpoint of the release log that you kept, from which it must have grown")
    _add_judging(verify)
    verify.epilog = "exit codes: 0 no claim fails and each required one holds, 1 otherwise, 2 it cannot be judged"


def _add_exports(verify: argparse.ArgumentParser) -> None:
    verify.add_argument("--oscal", metavar="FILE", type=Path, help="write OSCAL assessment results, in JSON")
    verify.add_argument("--population", metavar="FILE", type=Path,
                        help="write the log's records as CSV, one row each, to draw samples from")
    verify.add_argument("--period", metavar="FROM/TO", type=_period,
                        help="the period of your opinion, such as 2026-01-01/2026-06-30: for report, OSCAL and CSV")
    verify.add_argument("--entity", metavar="NAME", help="whose system your opinion is on: for report and OSCAL")


def _add_judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", metavar="TIME", type=verifying.time, help="judge by this time (default: now)")
    parser.add_argument("--builder-key", metavar="KEY", help="the builder's public key: ed25519:HEX or a file")
    parser.add_argument("--measurements-unsigned", action="store_true",
                        help="believe the measurements as they are: you rebuilt the image and compared")
    parser.add_argument("--without-revocation", action="store_true",
                        help="do without a list of revoked SEV-SNP certificates")
    parser.add_argument("--nonce", metavar="HEX", type=_nonce, action="append", default=[],
                        help="a nonce that evidence must answer; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="for tests only: believe another root as well")


def _nonce(text: str) -> bytes:
    try:
        return parse_nonce(text)
    except AttestationError as error:
        raise argparse.ArgumentTypeError(error.summary) from None


def _period(text: str) -> engagement.Interval:
    try:
        return engagement.period(text)
    except AuditError as error:
        raise argparse.ArgumentTypeError(f"{error.summary}; {error.hint}") from None


def run(args: argparse.Namespace) -> int:
    """Write a pack, or judge one."""
    return _verify(args) if args.pack_action == "verify" else _write(args)


def _given(args: argparse.Namespace, **more: Any) -> Given:
    key = None if args.builder_key is None else keyfile.ed25519_public_key(args.builder_key)
    return Given((args.at or datetime.now(UTC)).replace(microsecond=0), key, args.measurements_unsigned,
                 nonces=tuple(args.nonce), need_revocation=not args.without_revocation,
                 roots=verifying.roots(args.unsafe_root), **more)


def _write(args: argparse.Namespace) -> int:
    if args.output is None:
        raise AuditError("no file to write the pack to", code="usage", hint="name it with -o PACK, or judge one: "
                         "appliance audit pack verify PACK")
    begun = time.monotonic()
    found = gather.members(Files(
        args.policy, args.approvals, args.measurements, None, args.sbom, args.provenance, args.releases, args.bundle,
        args.evidence, args.collateral, args.health, args.log, args.extract, args.held, args.receipt, args.controls,
        args.leakage))
    data, findings = judge.written(found, _given(args))
    keyfile.write_whole(args.output, data)
    failed = [each for each in findings.values() if each.outcome == "fails"]
    missing = [BY_NAME[name].what for name in lacking(found) if name not in ("report", "controls")]
    if args.json:
        print(json.dumps({
            "pack": str(args.output), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
            "members": len(found) + 1, "missing": missing, "seconds": round(time.monotonic() - begun, 2),
            "fails": {each.rule: each.detail for each in failed}}, indent=2))
    else:
        print(f"{args.output}: {quantity(len(found) + 1, 'member')}, {quantity(len(data), 'byte')}, "
              f"sha256 {hashlib.sha256(data).hexdigest()}")
        print(f"missing: {', '.join(missing) or 'nothing'}")
        for each in failed:
            print(plain(f"fails: {CLAIMS[each.rule].says} {each.detail}"))
    return 1 if failed else 0


def _verify(args: argparse.Namespace) -> int:
    try:
        data = held.content(args.pack, zipped.MAX_BYTES)
    except OSError as error:
        raise AuditError(f"{args.pack}: {error.strerror}", code="file-unreadable", hint="name a pack") from None
    if args.sha256 is not None and hashlib.sha256(data).hexdigest() != args.sha256.lower():
        raise AuditError(f"{args.pack}: its SHA-256 is {hashlib.sha256(data).hexdigest()}", code="pack-altered",
                         hint="you noted the digest of another pack")
    found = judge.judge(data, _given(
        args, policy_sha384=args.policy_sha384, self_tests=frozenset(args.self_test),
        keys=tuple(map(held.public_key, args.key)), witnesses=tuple(map(held.witness_key, args.witness)),
        anchors=tuple(map(held.read, args.own_held)), max_release_age=args.max_release_age,
        period_keys={} if args.period_keys is None else held.period_keys(args.period_keys),
        machines=None if args.machines is None else machines.read(args.machines),
        held_release=None if args.held_release is None else held.content(args.held_release)))
    _export(args, found)
    lacking = [name for name in args.require if found.findings[name].outcome != "holds"]
    if args.json:
        print(json.dumps(found.as_json() | {"required": {name: found.findings[name].outcome for name in args.require}},
                         indent=2))
    else:
        _tell(found, lacking)
    return 1 if found.failed or lacking else 0


def _export(args: argparse.Namespace, found: Outcome) -> None:
    """Write the files that were asked for."""
    about = Engagement(args.entity, args.period)
    if args.report is not None:
        keyfile.write_whole(args.report, found.page(about))
    if args.oscal is not None:
        keyfile.write_whole(args.oscal, found.oscal(about))
    if args.population is not None:
        try:
            rows, count = population.table(found.case, args.period)
        except LackingError as error:
            raise AuditError(f"no population: {error}", code="pack-member", hint="take a pack with the log") from None
        keyfile.write_whole(args.population, rows)
        print(f"{args.population}: rows written: {count}", file=sys.stderr)


def _tell(found: Outcome, lacking: list[str]) -> None:
    print(f"pack {found.sha256}, judged as of {found.case.given.at:%Y-%m-%dT%H:%M:%SZ}")
    for warning in found.warnings:
        print(plain(f"warning: {warning}"))
    lacks = ", ".join(BY_NAME[name].what for name in found.manifest.missing)
    print(f"missing: {lacks or 'nothing'}")
    for title, outcome in (("shown", "holds"), ("FAILS", "fails"), ("not shown", "not checked")):
        shown = [each for each in (*found.findings.values(), found.report) if each.outcome == outcome]
        if shown:
            print(f"\n{title}:")
        for each in shown:
            says = CLAIMS[each.rule].says if each.rule in CLAIMS else "The report in the pack is what its members give."
            print(plain(f"  {each.rule:<22} {says}" + (f" ({each.detail})" if each.detail else "")))
    for framework, judged in found.frameworks:
        told = ", ".join(f"{count} {status}" for status, count in controls.counts(judged).items() if count)
        print(f"\n{plain(framework.framework)}: {told}")
    for name in lacking:
        print(f"\nrequired, and not shown: {name}")
