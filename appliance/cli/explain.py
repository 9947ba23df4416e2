"""`appliance explain FIELD|CODE`: a field of the policy, or the code of an error: what, why, and what
to do."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import textwrap

from appliance.errors import ApplianceError
from appliance.manual import codes, fields
from appliance.manual.codes import CodeEntry
from appliance.manual.fields import FieldEntry

_WIDTH, _SHOWN = 100, 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", metavar="FIELD|CODE", nargs="?",
                        help="a field such as tee.platforms, or a code such as key-denied; without: all of them")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    parser.epilog = "exit codes: 0 explained, 2 not known"


def run(args: argparse.Namespace) -> int:
    """Explain one name, or list all."""
    if args.name is None:
        return _list(args)
    found = [*fields.matching(args.name)]
    code = codes.entry(args.name)
    if code is None and not found:
        raise _unknown(args.name)
    if args.json:
        print(json.dumps({"fields": [dataclasses.asdict(each) for each in found],
                          "code": None if code is None else _as_json(code)}, indent=2))
        return 0
    print("\n\n".join([*([_code(code)] if code else []), *(map(_field, found) if len(found) <= _SHOWN else
                                                            ["\n".join(each.path for each in found)])]))
    return 0


def _as_json(code: CodeEntry) -> dict[str, object]:
    return {**dataclasses.asdict(code), "forms": [each._asdict() for each in code.forms]}


def _list(args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({"fields": [*fields.entries()], "codes": [*codes.entries()]}, indent=2))
        return 0
    print("fields of a policy\n" + "\n".join(f"  {path}" for path in fields.entries()))
    group = ""
    for each in codes.entries().values():
        if each.group != group:
            group = each.group
            print(f"codes: {group}")
        print(f"  {each.code:<26}{each.means}")
    return 0


def _code(code: CodeEntry) -> str:
    lines = [f"{code.code}: {code.means}", f"  why:  {code.why}", f"  do:   {code.fix}"]
    shown = code.forms[:_SHOWN]
    if shown:
        lines.append("  it says, with … for the case at hand:")
    for form in shown:
        lines.append(_wrapped(f"- {form.message}", 4))
        if form.hint:
            lines.append(_wrapped(f"hint: {form.hint}", 6))
    if len(code.forms) > _SHOWN:
        lines.append(f"    and {len(code.forms) - _SHOWN} more")
    return "\n".join(lines)


def _field(field: FieldEntry) -> str:
    default = "it has no default: it must be written" if field.default is None else f"default {field.default}"
    lines = [f"{field.path}", _wrapped(field.means, 2), f"  allowed: {field.allowed}; {default}"]
    if field.block:
        lines.append(_wrapped(f"why: {field.block}", 2))
    if field.within:
        lines.append(_wrapped(f"in it: {', '.join(field.within)}", 2))
    if field.enforced_by == "later":
        lines.append("  This version checks it and does not carry it out: a boot refuses it.")
    elif field.enforced_by:
        lines.append(f"  carried out by: {field.enforced_by}")
    if field.since > 1:
        lines.append(f"  since schema {field.since}; an older policy: appliance check --upgrade FILE")
    lines.append("  in a policy:\n" + textwrap.indent(field.example(), "    "))
    return "\n".join(lines)


def _wrapped(text: str, depth: int) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=" " * depth, subsequent_indent=" " * (depth + 2))


def _unknown(name: str) -> ApplianceError:
    known = [*codes.entries(), *fields.entries(), *{path.rpartition(".")[2] for path in fields.entries()}]
    near = difflib.get_close_matches(name, dict.fromkeys(known), 3, 0.6)
    hint = f"near it: {', '.join(near)}; all of them: appliance explain" if near else "all of them: appliance explain"
    return ApplianceError(f"{name[:80]!r} is neither a field of a policy nor the code of an error",
                          code="explain-unknown", hint=hint)
