"""`appliance audit grown` and `appliance audit vkey`: what an auditor and a witness need of a log
that others keep."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from appliance.audit.chain import origin
from appliance.auditor import bundle, examine, held
from appliance.auditor.held import Anchor
from appliance.codec.printable import quantity
from appliance.errors import AuditError, NoteError
from appliance.transparency.note import NoteKey

_NAMED = "name the key that evidence binds, with --key"


def add_arguments(actions: Any) -> None:
    """Declare both actions."""
    grown = actions.add_parser(
        "grown", help="check the proof that a log grew from an earlier state",
        description="Check the proof that `appliance audit prove` printed: the log of a later checkpoint begins with "
        "all records of an earlier one, which you held.",
        epilog="exit codes: 0 it grew, 1 it did not, 2 it cannot be judged")
    grown.add_argument("proof", metavar="PROOF", type=Path, help="the proof")
    grown.add_argument("--held", metavar="FILE", type=Path, required=True, help="the earlier checkpoint, held by you")
    grown.add_argument("--later", metavar="FILE", type=Path, required=True,
                       help="the later one, such as `/v1/audit/checkpoint` of the appliance gives it")
    grown.add_argument("--key", metavar="KEY", action="append", required=True,
                       help="the audit key that evidence binds, in hex, which signed both; may be repeated, where a "
                       "log in a file has had several boots")
    grown.add_argument("--json", action="store_true", help="print JSON")
    vkey = actions.add_parser(
        "vkey", help="print a log's key as witnesses and tools of C2SP read it",
        description="Print NAME+ID+BASE64 of the keys that sign a log's checkpoints, one a line, for witnesses.",
        epilog="A log in a file has a new key at each boot, and names each itself. A checkpoint names none: --key")
    vkey.add_argument("file", metavar="LOG|CHECKPOINT", type=Path, help="the log's lines, or a checkpoint of it")
    vkey.add_argument("--key", metavar="KEY", action="append", default=[],
                      help="the audit key that evidence binds, in hex: only this one, and only if the log names it, "
                      "or it signed the checkpoint; may be repeated")
    vkey.add_argument("--json", action="store_true", help="print JSON")


def grown(args: argparse.Namespace) -> int:
    """Check a proof of growth between two checkpoints that known keys signed."""
    keys = [held.public_key(text) for text in args.key]
    old, new = (_signed(path, keys) for path in (args.held, args.later))
    try:
        size = bundle.grew(held.content(args.proof), old.checkpoint, new.checkpoint)
        told = f"the log of {quantity(new.checkpoint.size, 'record')} begins with the {size} that were held"
        wrong = None
    except AuditError as error:
        told, wrong = f"not shown: {error.summary}", error
    if args.json:
        print(json.dumps({
            "grew": wrong is None, "old": old.checkpoint.size, "size": new.checkpoint.size,
            "origin": new.checkpoint.origin, "reason": None if wrong is None else wrong.summary}, indent=2))
    else:
        print(told)
    return 0 if wrong is None else 1


def _signed(path: Path, keys: list[bytes]) -> Anchor:
    """Return a checkpoint that one of these keys signed. Raises NoteError."""
    found = held.read(path)
    if _signers(found, keys):
        return found
    raise NoteError(f"{path}: no key that was named signed it", hint=_NAMED)


def _signers(anchor: Anchor, keys: list[bytes]) -> list[NoteKey]:
    found = []
    for key in (NoteKey(anchor.checkpoint.origin, public) for public in keys):
        try:
            key.check(anchor.note)
        except NoteError:
            continue
        found.append(key)
    return found


def vkey(args: argparse.Namespace) -> int:
    """Print the keys of a log."""
    named = [held.public_key(text) for text in args.key]
    data = held.content(args.file, 1 << 30)
    found = _of_log(args.file, data, named) if data[:1] == b"{" else _of_checkpoint(args.file, named)
    print(json.dumps({"vkeys": [key.text for key in found]}, indent=2) if args.json
          else "\n".join(key.text for key in found))
    return 0


def _of_log(path: Path, data: bytes, named: list[bytes]) -> list[NoteKey]:
    report = examine.examine(data.splitlines(keepends=True))
    if report.log is None or report.bad is not None:
        raise AuditError(f"{path}: {'no log' if report.bad is None else report.bad.what}", code="audit-altered",
                         hint="appliance audit verify says more")
    keys = list(dict.fromkeys(boot.audit_key for boot in report.boots))
    if absent := [key for key in named if key not in keys]:
        raise NoteError(f"{path}: no boot of this log has the key {absent[0].hex()}",
                        hint="is it a log of the appliance that the evidence is of?")
    return [NoteKey(origin(report.log), key) for key in named or keys]


def _of_checkpoint(path: Path, named: list[bytes]) -> list[NoteKey]:
    if not named:
        raise NoteError(f"{path}: a checkpoint does not name the key that signed it", hint=_NAMED)
    found = _signers(held.read(path), named)
    if not found:
        raise NoteError(f"{path}: no key that was named signed it", hint=_NAMED)
    return found
