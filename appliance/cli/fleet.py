"""`appliance fleet`: judge which machines of a fleet fail, why and when, also under a what-if; and
sign a feed of bulletins."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.attestation import keyfile
from appliance.cli import feeds, numbers, passphrase, progress, verifying
from appliance.codec.printable import plain, quantity
from appliance.errors import about
from appliance.fleet import judging, ruling, whatif
from appliance.fleet.ruling import Ruling
from appliance.policy.explaining.checking import load
from appliance.policy.schema.platform import Requirements
from appliance.signed import feed

SHOWN = 40  # nodes in text; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _declare_feed(actions)
    judge = actions.add_parser(
        "judge", help="judge stored evidence, and rule on it again under a what-if",
        description="judge the evidence in a folder, one file a machine, and rule on it again under a what-if",
        epilog="Each file is judged once. The result is kept in DIR/judged.jsonl, which is yours to protect.\n"
        "Without --policy the requirements are the defaults of schema 2.\n"
        f"what-ifs: {', '.join(whatif.FORMS)}\n"
        "exit codes: 0 no machine fails, 1 some do, 2 cannot run",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    judge.add_argument("folder", metavar="DIR", type=Path, help="evidence as `appliance evidence` reads it, in folders")
    judge.add_argument("--policy", metavar="FILE", type=Path, help="the policy whose requirements count")
    judge.add_argument("--collateral", metavar="FOLDER", type=Path,
                       help="certificates, lists and documents for all (default: those beside each file)")
    judge.add_argument("--announced", metavar="FOLDER", type=Path,
                       help="Intel's early documents: appliance collateral fetch FILE --update early -o FOLDER")
    judge.add_argument("--at", metavar="TIME", type=verifying.time, help="rule by this time (default: now)")
    judge.add_argument("--judged-at", metavar="TIME", type=verifying.time,
                       help="judge what is new by this time (default: now)")
    judge.add_argument("--if", dest="changes", metavar="WHAT", action="append", default=[],
                       help="a what-if, such as milan=out or floor.genoa.snp=25; may be repeated")
    judge.add_argument("--update", choices=("standard", "early"), default="standard",
                       help="rule by Intel's step in force, or by the announced one (default: %(default)s)")
    judge.add_argument("--renewed", action="store_true",
                       help="suppose that lists and documents are fetched anew by then")
    judge.add_argument("--store", metavar="FILE", type=Path, help="what was judged (default: DIR/judged.jsonl)")
    judge.add_argument("--json", action="store_true", help="print JSON, with every machine")
    feeds.add(judge)
    unsafe = judge.add_argument_group("for tests only")
    unsafe.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="believe another root as well")


def _declare_feed(actions: Any) -> None:
    publish = actions.add_parser(
        "feed", help="sign a feed of bulletins, for others' check, verify and fleet judge",
        description="sign a feed of bulletins, for others' check, verify and fleet judge",
        epilog="exit codes: 0 written, 2 not in form, or cannot run",
        formatter_class=argparse.RawDescriptionHelpFormatter)
    publish.add_argument("output", metavar="OUT", type=Path, help="where the feed goes; unsigned without --key")
    publish.add_argument("--key", metavar="KEY.pem", type=Path, help="sign with this Ed25519 private key (PKCS #8)")
    publish.add_argument("--of", metavar="FILE", type=Path,
                         help="a feed to sign, signed before or not (default: the table that this version has)")
    publish.add_argument("--version", metavar="N", type=numbers.whole(0, 2**53 - 1), default=0,
                         help="the version of a new feed (default: %(default)d)")
    publish.add_argument("--json", action="store_true", help="print JSON")


def _feed(args: argparse.Namespace) -> int:
    """Write a feed."""
    made = feed.ours(args.version, datetime.now(UTC).date())
    if args.of is not None:
        with about(args.of):
            made = feed.opened(feeds.read(args.of))[0]
    feed.rows_of(made)
    key = None if args.key is None else keyfile.ed25519_private_key(args.key, passphrase.ask)
    written = json.dumps(made, indent=2).encode() + b"\n" if key is None else feed.sign(made, key)
    keyfile.write_whole(args.output, written)
    said = {"file": str(args.output), "version": made["version"], "bulletins": len(made["bulletins"]),
            "signed": key is not None}
    print(json.dumps(said) if args.json else f"{args.output}: version {said['version']}, "
          f"{quantity(len(made['bulletins']), 'bulletin')}, {'signed' if key is not None else 'not signed yet'}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    return {"judge": _judge, "feed": _feed}[args.action](args)


def _judge(args: argparse.Namespace) -> int:
    """Judge what is new, rule on all, and print it."""
    feeds.use(args)
    asked = Requirements() if args.policy is None else load(args.policy).policy.tee.evidence
    wanted = whatif.changed(asked, args.changes)
    now = datetime.now(UTC)
    with progress.Progress(quiet=args.json) as shown:
        nodes = judging.judge(
            args.folder, args.collateral, args.store or args.folder / judging.STORE, at=args.judged_at or now,
            announced=args.announced, roots=verifying.roots(args.unsafe_root),
            told=lambda done, total: shown("judging", done, total))
    at = args.at or now
    rulings = ruling.rule(nodes, wanted, at=at, update=args.update, renewed=args.renewed)
    failed = [each for each in rulings if each.faults]
    if args.json:
        print(json.dumps({"at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "update": args.update, "what_if": args.changes,
                          "machines": len(rulings), "failing": len(failed), "causes": dict(_causes(failed)),
                          "nodes": [_as_json(each) for each in rulings]}, indent=2))
    else:
        print("\n".join(map(plain, _lines(rulings, failed, at))))
    return 1 if failed else 0


def _causes(failed: list[Ruling]) -> list[tuple[str, int]]:
    """How many machines fail each rule, the most first."""
    return Counter(rule for each in failed for rule in sorted({fault.rule for fault in each.faults})).most_common()


def _as_json(each: Ruling) -> dict[str, Any]:
    return {"file": each.node.file, "kind": each.node.kind, "passes": not each.faults,
            "faults": [{"rule": fault.rule, "detail": fault.detail, "cure": fault.cure} for fault in each.faults],
            "ends": [{"at": f"{when:%Y-%m-%dT%H:%M:%SZ}", "cause": cause} for when, cause in each.ends]}


def _lines(rulings: list[Ruling], failed: list[Ruling], at: datetime) -> list[str]:
    """The report: how many fail and why, each of them, and a calendar of the others."""
    lines = [f"{len(failed)} of {len(rulings)} fail at {at:%Y-%m-%d %H:%M} UTC"]
    lines += [f"  {count:>6}  {rule}" for rule, count in _causes(failed)]
    for each in failed[:SHOWN]:
        lines += ["", each.node.file]
        for fault in each.faults:
            lines += [f"  {fault.rule}: {fault.detail}", *([f"    mended by: {fault.cure}"] if fault.cure else [])]
    if len(failed) > SHOWN:
        lines += ["", f"and {len(failed) - SHOWN} more: --json has all"]
    coming = Counter((when.date(), cause) for each in rulings if not each.faults for when, cause in each.ends)
    if coming:
        lines += ["", "the others pass; their next ends:"]
        lines += [f"  {day}  {count:>6}  {cause}" for (day, cause), count in sorted(coming.items())[:12]]
    return lines
