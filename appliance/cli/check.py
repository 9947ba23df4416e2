"""`appliance check FILE`: whether a policy is valid, and whether this version boots it; every
finding in it, with line, column and fix. Or the file in the newest schema, or how it stands against
baselines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from appliance.cli import feeds
from appliance.errors import PolicyError
from appliance.policy import policy_digest
from appliance.policy.baselines import judge, reading
from appliance.policy.bulletins import advice
from appliance.policy.explaining.checking import CheckResult, check_file
from appliance.policy.hcl.diagnostics import InvalidPolicyError
from appliance.policy.language.upgrade import UpgradeResult, upgrade
from appliance.policy.loading import read
from appliance.policy.schema.frozen import LATEST

UNBOOTABLE = 3  # exit code for a valid policy that this version boots nowhere
_NAMED = 3  # fields that the first line names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the policy")
    parser.add_argument("--models", type=Path, action="append", default=[], metavar="DIR",
                        help="a folder with model files, besides the policy's own; may be given again")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--upgrade", action="store_true",
                        help=f"write the policy in schema {LATEST}, with its comments and its meaning")
    parser.add_argument("--controls", metavar="NAME|FILE", action="append", default=[],
                        help="a mapping of controls that the deployment is to meet: one of ours by its name, such as "
                        "eu-ai-act-records, or a file of your own; may be repeated")
    parser.add_argument("--against", metavar="FILE", type=Path, action="append", default=[],
                        help="a baseline that the deployment is to meet, such as policies/baselines/hipaa.hcl or a "
                        "file of your own (docs/reference/baselines.md); may be repeated")
    feeds.add(parser)
    place = parser.add_mutually_exclusive_group()
    place.add_argument("-o", "--output", metavar="OUT", type=Path,
                       help="with --upgrade: the file to make (default, also -: standard output); FILE replaces it")
    place.add_argument("--in-place", action="store_true", help="with --upgrade: replace FILE")
    parser.epilog = ("The first line says whether the policy is valid, and whether this version boots it.\n"
                     "Model files that are there are looked at: a warning says which cannot run here, and why.\n"
                     "exit codes: 0 valid, and this version boots it (there may be warnings and notes), or upgraded;\n"
                     "1 not valid, or a baseline's rule fails, or something to decide before an upgrade;\n"
                     f"2 cannot run; {UNBOOTABLE} valid, but this version boots it nowhere: notes say why")


def run(args: argparse.Namespace) -> int:
    """Check one file: print the verdict, then its findings; or upgrade it."""
    feeds.use(args)
    if args.upgrade:
        return _upgrade(args)
    if args.output is not None or args.in_place:
        raise PolicyError("--output and --in-place say where an upgraded policy goes", code="output-unused",
                          hint="add --upgrade")
    baselines = list({each.path.resolve(): each for path in args.against for each in reading.load(path)}.values())
    checked = _with_controls(_with_templates(_with_bulletins(check_file(args.file))), args.controls)
    checked = _with_models(checked, [args.file.parent, *args.models])
    return _report(checked, args, judge.judge(checked, baselines))


def _report(checked: CheckResult, args: argparse.Namespace, rulings: list[judge.Ruling] | None = None) -> int:
    """Print verdict, findings, and how each rule of baselines stands."""
    rulings = rulings or []
    if args.json:
        against = {"against": [each.as_json() for each in rulings]} if args.against else {}
        print(json.dumps(_as_json(checked) | against, indent=2))
    else:
        print(f"{args.file}: {_verdict(checked)}")
        for diagnostic in checked.diagnostics:
            print(f"\n{diagnostic}")
        for line in _ruled(rulings):
            print(line)
    if not checked.valid or any(each.breaks for each in rulings):
        return 1
    return UNBOOTABLE if checked.obstacles else 0


def _ruled(rulings: list[judge.Ruling]) -> Iterator[str]:
    """Yield a table of the rules, then each failure with its line, reason and fix."""
    if not rulings:
        return
    counts = Counter(each.outcome for each in rulings)
    yield f"\nrules: pass {counts['pass']}, fail {counts['fail']}, not applicable {counts['not applicable']}"
    width = max(len(each.id) for each in rulings)
    for each in rulings:
        at = each.diagnostic
        where = "" if at is None else f"line {at.line}: {at.summary}{'' if each.written else ' (not written)'}"
        word = {"pass": "pass", "fail": "FAIL"}.get(each.outcome, "  - ")
        yield f"  {word}  {each.id:{width}}  {where}".rstrip()
    for each in rulings:
        if each.outcome == "fail":
            yield f"\n{each.diagnostic}"
            yield f"  reason: {each.rule.reason}"
            yield from [f"  controls: {', '.join(each.rule.controls)}"] if each.rule.controls else []
            yield from [f"  attack: {each.rule.attack} (docs/attacks.md)"] if each.rule.attack else []
            yield from [f"  and {each.further} more of its places"] if each.further else []


def _with_bulletins(checked: CheckResult) -> CheckResult:
    """Return the findings, and what makers' bulletins say of the hardware that the policy accepts.
    """
    return dataclasses.replace(checked, diagnostics=(*checked.diagnostics, *advice.diagnostics(checked)))


def _with_controls(checked: CheckResult, names: list[str]) -> CheckResult:
    """Return the findings, and what mappings of controls want of a policy that it does not do."""
    if not names:
        return checked
    from appliance.auditor.claims import controls  # claims bring all that judges evidence

    found = controls.warnings(checked, [controls.named(each) for each in names])
    return dataclasses.replace(checked, diagnostics=(*checked.diagnostics, *found))


def _with_templates(checked: CheckResult) -> CheckResult:
    """Return the findings, and one for each chat template in the policy that no model could use.
    Without the packages of a server templates are not looked at."""
    if checked.policy is None or all(model.chat_template is None for model in checked.policy.models):
        return checked
    try:
        from appliance.boot.planning import forecast
    except ImportError:
        return checked
    return dataclasses.replace(checked, diagnostics=(*checked.diagnostics, *forecast.template_findings(checked)))


def _with_models(checked: CheckResult, folders: list[Path]) -> CheckResult:
    """Return the findings, and one for each model file in the folders that cannot run here. Without
    the packages of a server model files are not looked at."""
    models = () if checked.policy is None else checked.policy.models
    if checked.policy is None or not any((folder / model.file).is_file() for folder in folders for model in models):
        return checked
    try:
        from appliance.boot import checks
        from appliance.boot.planning import forecast
        from appliance.models.catalogue import Catalogue
    except ImportError:
        return checked
    found = [*forecast.findings(checked, Catalogue(checks.find_models(checked.policy, folders)))]
    return dataclasses.replace(checked, diagnostics=(*checked.diagnostics, *found))


def _verdict(checked: CheckResult) -> str:
    counts = {severity: sum(d.severity == severity for d in checked.diagnostics)
              for severity in ("error", "warning", "note")}
    words = [f"{count} {severity}{'s' * (count != 1)}" for severity, count in counts.items() if count]
    standing = f"valid, schema {checked.version}" if checked.valid else "not valid"
    return standing + (f" ({', '.join(words)})" if words else "") + (f"; {_fate(checked)}" if checked.valid else "")


def _fate(checked: CheckResult) -> str:
    """Say whether this version boots a valid policy."""
    if obstacles := list(dict.fromkeys(checked.obstacles)):
        more = f" and {len(obstacles) - _NAMED} more" if len(obstacles) > _NAMED else ""
        return f"this version does not boot it, because of {', '.join(obstacles[:_NAMED])}{more}"
    unfit = sum(found.code == "model-file" for found in checked.diagnostics)
    here = f", but not with {unfit} of the model files that are here" if unfit else ""
    return f"this version boots it{here}"


def _as_json(checked: CheckResult) -> dict[str, object]:
    digest = policy_digest(checked.policy).hex() if checked.policy is not None else None
    return {"valid": checked.valid, "boots": checked.valid and not checked.obstacles, "schema": checked.version,
            "digest": digest,
            "source_sha384": checked.source_sha384.hex(),
            "diagnostics": [diagnostic.as_json() for diagnostic in checked.diagnostics]}


def _upgrade(args: argparse.Namespace) -> int:
    """Write the file in the newest schema, or say what a person has to decide first."""
    source = read(args.file)
    try:
        done = upgrade(source, str(args.file))
    except InvalidPolicyError:
        return _report(check_file(args.file), args)
    output = None if args.output is None or str(args.output) == "-" else args.output
    target = args.file if args.in_place else output
    if done.data is not None and target is not None:
        _write(target, done.data, source, args.file)
    if args.json:
        print(json.dumps(_upgraded_json(done, target), indent=2))
        return 0 if done.data is not None else 1
    for decision in done.decisions:
        print(f"{decision}\n", file=sys.stderr)
    for line in _upgraded_lines(done, args.file):
        print(line, file=sys.stderr)
    if done.data is not None and target is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(done.data)  # the policy's own bytes, whatever the locale
    return 0 if done.data is not None else 1


def _write(target: Path, data: bytes, source: bytes, file: Path) -> None:
    """Write the new file whole. Another file than the policy itself is never replaced."""
    from appliance.attestation import keyfile  # it brings cryptography, which plain checks do without

    same = target.exists() and target.samefile(file)
    if same and data == source:
        return
    if same:
        place = target.resolve()  # a link stays one
        keyfile.write_whole(place, data, mode=place.stat().st_mode & 0o777)
    else:
        keyfile.write_whole(target, data, replace=False)


def _upgraded_lines(done: UpgradeResult, file: Path) -> list[str]:
    """Return what a person should know of an upgrade."""
    if done.version == LATEST and done.before.valid:
        return [f"{file}: schema {LATEST} already; nothing to change"]
    if done.data is None or done.after.policy is None:
        count = len(done.decisions)
        return [f"{file}: not upgraded: {count} thing{'s' * (count != 1)} to decide first; nothing was written"]
    lines = [f"{path} = {value}: written, to keep the meaning; the default of schema {LATEST} is {default or 'absent'}"
             for path, value, default in done.kept]
    lines += [f"{path}: now {now[0].lower()}{now[1:]}" for path, now in done.meanings]
    change = f"schema {done.version} to {LATEST}" if done.version < LATEST else f"schema {LATEST} as it is now"
    lines.append(f"{file}: {change}; the policy digest changes: have approvals signed again, and give clients the new "
                 "policy")
    if done.before.policy is not None:
        lines.append(f"  from {policy_digest(done.before.policy).hex()}")
    return [*lines, f"  to   {policy_digest(done.after.policy).hex()}"]


def _upgraded_json(done: UpgradeResult, target: Path | None) -> dict[str, object]:
    """Return an upgrade as JSON; the text itself only where it was not written to a file."""
    text = done.data.decode() if done.data is not None and target is None else None
    written = str(target) if done.data is not None and target is not None else None
    return {
        **_as_json(done.after), "upgraded": done.data is not None, "from_schema": done.version,
        "kept": [each._asdict() for each in done.kept], "meanings": [each._asdict() for each in done.meanings],
        "decisions": [each.as_json() for each in done.decisions], "file": written, "text": text}
