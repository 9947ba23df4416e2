"""`appliance collateral fetch EVIDENCE -o DIR`: fetch what evidence needs to be verified, and
verify it at once."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from appliance.attestation.case.record import Record
from appliance.attestation.google import endorsement, requests
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import MAX_BYTES, examine
from appliance.attestation.judge.material import Material
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.judging.requests import Request
from appliance.cli import numbers, verifying
from appliance.client import fetch, needs
from appliance.client.fetch import Source
from appliance.client.needs import Needs
from appliance.errors import AttestationError, ForgedEvidenceError, PolicyError, UncheckedEvidenceError
from appliance.policy import inputfile

TIMEOUT = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    summary = "fetch the certificates, lists and TCB documents that a piece of evidence needs, and verify it"
    sub = actions.add_parser("fetch", help=summary, description=summary,
                             formatter_class=argparse.RawDescriptionHelpFormatter)
    sub.add_argument("evidence", metavar="EVIDENCE", type=Path,
                     help="a SEV-SNP report, TDX quote, Azure report, certificate with evidence, or our own")
    where = sub.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", metavar="DIR", type=Path,
                       help="the folder for the files, made if absent; then the folder for --collateral")
    where.add_argument("--print", action="store_true", dest="told",
                       help="fetch nothing: print the requests as curl commands, to be made elsewhere")
    sub.add_argument("--from", metavar="DIR|URL", dest="mirror",
                     help="a mirror: a folder laid out by URL path, or a base URL (https, or http on the loopback) "
                     "(default: the services of AMD and Intel)")
    sub.add_argument("--if-due", action="store_true",
                     help="with -o: fetch only what DIR lacks, or what ends within 14 days (or the last third of its "
                     "life)")
    sub.add_argument("--update", choices=("standard", "early"), default="standard",
                     help="which of Intel's documents: the ones in force, or early ones, to see what fails at their "
                     "next promotion; use a folder of their own (default: standard)")
    sub.add_argument("--gce", action="store_true",
                     help="of a machine of Google's: fetch and verify its endorsement of the firmware as well")
    sub.add_argument("--at", metavar="TIME", type=verifying.time, help="judge by this time (default: now)")
    sub.add_argument("--timeout", metavar="SECONDS", type=numbers.SECONDS, default=TIMEOUT,
                     help="for one whole answer (default: 30)")
    sub.add_argument("--json", action="store_true", help="print JSON")
    unsafe = sub.add_argument_group("for tests only")
    unsafe.add_argument("--unsafe-root", metavar="CERT", type=Path, action="append", default=[],
                        help="believe another root (ARK, Intel-shaped or GCE-cc-tcb-root) as well")
    sub.epilog = ("exit codes: 0 everything was fetched and the evidence is genuine (with --print: printed),\n"
                  "1 not genuine, 2 something could not be fetched, or cannot tell")


def run(args: argparse.Namespace) -> int:
    """Print the requests, or make them and judge."""
    try:
        data = inputfile.read(args.evidence, MAX_BYTES)
    except OSError as error:
        raise UncheckedEvidenceError(f"{args.evidence} cannot be read: {error.strerror}",
                                     code="file-unreadable") from None
    found = needs.of(data, early=args.update == "early", google=args.gce)
    if args.told and args.if_due:
        raise PolicyError("--if-due: --print looks at no folder, so it cannot tell what is due", code="usage",
                          hint="name the folder: -o DIR")
    if args.told:
        print(json.dumps({"kind": found.kind, "requests": [needs.as_json(each) for each in found.all()],
                          "remarks": list(found.remarks)}, indent=2) if args.json else needs.explained(found))
        return 0
    return _fetch(args, data, found)


def _fetch(args: argparse.Namespace, data: bytes, found: Needs) -> int:
    source = fetch.source(args.mirror, timeout=args.timeout, tell=_progress)
    roots = verifying.roots(args.unsafe_root)
    try:
        args.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolicyError(f"{args.output} cannot be made: {error.strerror}", code="file-unwritable") from None
    for remark in found.remarks:
        _progress(remark)
    at = args.at or datetime.now(UTC)
    results = _each(found.wanted, source, args.output, at if args.if_due else None)
    known = collateral_folder.load(args.output)
    outcome = examine(Material(data, args.evidence, known, roots=roots), at=at)
    lacking = [each for each in results if "error" in each]
    code = max(outcome.exit_code, 2) if lacking and outcome.exit_code != 1 else outcome.exit_code
    google = _google(data, args.output, known, roots, at) if args.gce else None
    if google is not None and code != 1:
        code = max(code, google["exit_code"]) if google["exit_code"] != 1 else 1
    print(json.dumps({"exit_code": code, "folder": str(args.output), "fetched": results,
                      "remarks": list(found.remarks), "at": f"{at:%Y-%m-%dT%H:%M:%SZ}",
                      "test_roots": bool(args.unsafe_root), "evidence": outcome.as_json(),
                      **({} if google is None else {"gce": google})}, indent=2)
          if args.json else _shown(args, outcome, results, google))
    return code


def _google(data: bytes, folder: Path, known: Collateral, roots: Roots, at: datetime) -> dict[str, Any]:
    """Return what Google's endorsement says of the firmware that evidence shows."""
    launch = needs.launch_value(data)
    file = folder / requests.of_tdx(launch)[0].file
    try:
        said = endorsement.read(inputfile.read(file, endorsement.MAX_BYTES), at=at, certificates=known.certificates,
                                root=roots.others.get("gce", endorsement.ROOT))
    except OSError as error:
        return {"exit_code": 2, "said": f"not endorsed: {file} cannot be read: {error.strerror}"}
    except AttestationError as error:
        forged = isinstance(error, ForgedEvidenceError)
        return {"exit_code": 1 if forged else 2, "said": f"not endorsed: {error.summary}"}
    svn = said.tdx_svn if launch in {each.mrtd for each in said.tdx} else said.snp_svn
    if svn is None or launch not in {*(each.mrtd for each in said.tdx), *said.snp.values()}:
        return {"exit_code": 1, "said": "not endorsed: the endorsement is of other launch values"}
    return {"exit_code": 0, "svn": svn, "firmware_sha384": said.firmware_sha384.hex(), "said":
            f"endorsed by Google, security version {svn}, file {requests.firmware(said.firmware_sha384)}"}


def _each(wanted: tuple[tuple[Request, ...], ...], source: Source, folder: Path,
          due: datetime | None) -> list[dict[str, Any]]:
    """Make the requests of each group until one is answered; once one is, its place tells the
    product line. With `due`, only what is due at that time is asked for."""
    results, line = [], None
    for group in wanted:
        chosen = group if line is None or len(group) == 1 else (group[line],)
        result, answered = _one_of(chosen, source, folder, due)
        if len(chosen) > 1:
            line = answered
        results.append(result)
    return results


def _one_of(group: tuple[Request, ...], source: Source, folder: Path,
            due: datetime | None) -> tuple[dict[str, Any], int | None]:
    """Return the outcome of a group's requests, and which one was answered."""
    told: list[AttestationError] = []
    for place, request in enumerate(group):
        until = None if due is None else fetch.kept_until(request, folder, due)
        if until is not None:
            _progress(f"{request.why}: not due, {request.file} is good until {until:%Y-%m-%d}")
            return {"url": request.url, "why": request.why, "files": [request.file],
                    "good_until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}, place
    for place, request in enumerate(group):
        _progress(f"{request.why}: GET {request.url}")
        try:
            names = fetch.keep(source.get(request), request, folder)
        except AttestationError as error:
            told.append(error)
            continue
        _progress(f"  kept as {', '.join(names)}")
        return {"url": request.url, "why": request.why, "files": names}, place
    for each in told:
        print(f"error[{each.code}]: {each}", file=sys.stderr)
    return {"url": group[0].url, "why": group[0].why, "error": "; ".join(each.summary for each in told)}, None


def _shown(args: argparse.Namespace, outcome: Record, results: list[dict[str, Any]],
           google: dict[str, Any] | None) -> str:
    kept = sum("error" not in each and "good_until" not in each for each in results)
    good = sum("good_until" in each for each in results)
    hint = f"\n  hint: {outcome.hint}" if outcome.hint else ""
    due = f", {good} not due" if good else ""
    root = "\nBELIEVES ANOTHER ROOT, for tests" if args.unsafe_root else ""
    code = f" [{outcome.code}]" if outcome.code else ""
    firmware = "" if google is None else f"\nfirmware: {google['said']}"
    return (f"{kept} of {len(results)} fetched into {args.output}{due}\n{args.evidence}: {outcome.kind}\n"
            f"verdict: {outcome.verdict.upper()}{code}\n  {outcome.reason}{hint}{root}{firmware}")


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
