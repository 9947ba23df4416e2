"""`appliance audit`: judge an audit log offline, and take proofs out of it."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from appliance.audit.chain import origin
from appliance.auditor import bundle, examine, held, receipts, unsealing
from appliance.auditor.examine import Trust
from appliance.auditor.outcome import Bad, Report
from appliance.auditor.records import Reader, Record, WrongRecordError, lines, of_version_1
from appliance.cli import audit_grown, audit_pack, numbers
from appliance.codec.canonical import canonical
from appliance.codec.printable import quantity
from appliance.codec.regularfile import open_file
from appliance.errors import AuditError, NoteError
from appliance.policy import policy_digest
from appliance.policy.explaining import checking
from appliance.transparency import reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Note, NoteKey, SignatureLine

_PERIOD_KEYS = "the keys of sealed records, as `appliance state --period-keys` writes them"
IN_QUESTION = 3  # the exit code of a log that what was named does not cover
_RECORDS = numbers.whole(0, (1 << 53) - 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    verify = _action(actions, "verify", "tell whether a log is whole, and name its first bad record",
                     "exit codes: 0 nothing is wrong, 1 a record is bad or absent, 2 it cannot be judged, "
                     f"{IN_QUESTION} nothing is wrong, and a boot is the log's own word: no key or checkpoint that was "
                     "named covers it, or no boot has a key that was named")
    verify.add_argument("--held", metavar="FILE", type=Path, action="append", default=[],
                        help="a checkpoint that was kept outside of the log; may be repeated")
    verify.add_argument("--key", metavar="KEY", action="append", default=[],
                        help="the audit key that evidence binds, in hex; may be repeated, one for each boot of a log "
                             "in a file")
    verify.add_argument("--witness", metavar="NAME=KEY", action="append", default=[],
                        help="a witness's key; those of --policy are known")
    verify.add_argument("--authority", metavar="SHA256", type=_sha256,
                        help="SHA-256 of the certificate that the timestamp authority's chain ends in; that of "
                        "--policy is known")
    verify.add_argument("--policy", metavar="FILE", type=Path, help="the deployment's policy: names must be its own")
    export = _action(actions, "export", "print some records with proofs that the log has them",
                     "the bundle proves these records to somebody who does not see the others. With --period-keys it "
                     "has the key of each sealed record, which opens only that record: anybody with the bundle can "
                     "read it")
    export.add_argument("--record", metavar="N", type=_RECORDS, action="append", default=[],
                        help="a record's number; may be repeated")
    export.add_argument("--receipt", metavar="FILE", type=Path, action="append", default=[],
                        help="the record of this receipt, by itself or behind its answer; may be repeated")
    export.add_argument("--held", metavar="FILE", type=Path, help="under this checkpoint, not the log's last one")
    export.add_argument("--period-keys", metavar="FILE", type=Path,
                        help=f"{_PERIOD_KEYS}: the bundle gets only the keys of its own records")
    shown = _action(actions, "detail", "print the detail of requests that is encrypted to the auditor",
                     "a line of JSON for each request: exact counts, exact times, and which API key asked")
    shown.add_argument("--auditor-key", metavar="FILE", type=Path, required=True,
                        help="the private key of privacy.auditor_key, X25519 in PEM")
    shown.add_argument("--period-keys", metavar="FILE", type=Path, help=_PERIOD_KEYS)
    opened = _action(actions, "open", "print the records, sealed ones opened as far as their keys are there",
                     "a line of JSON for each record; a period's key that was destroyed opens nothing any more. The "
                     "keys in a bundle open its records, once these are proved to be in the log")
    opened.add_argument("--period-keys", metavar="FILE", type=Path, help=f"of a log: {_PERIOD_KEYS}")
    opened.add_argument("--key", metavar="KEY", action="append", default=[],
                        help="of a bundle: the audit key that evidence binds, in hex")
    prove = _action(actions, "prove", "print the proof that a log grew from an earlier state",
                    "the proof is RFC 6962's, section 2.1.2; `appliance audit grown` checks it")
    prove.add_argument("--old", metavar="N", type=_RECORDS, required=True, help="records of the earlier state")
    prove.add_argument("--size", metavar="N", type=_RECORDS, help="records of the later state; by default all")
    audit_grown.add_arguments(actions)
    audit_pack.add_arguments(actions)


def _action(actions: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text, epilog=epilog)
    action.add_argument("log", metavar="LOG", type=Path, help="the log's lines; `appliance state` prints those of a "
                        "state disk" + ("; or a bundle" if name in ("verify", "open") else ""))
    action.add_argument("--json", action="store_true", help="print JSON" + (
        "" if name == "verify" else ", which this action always does"))
    return action


def _sha256(text: str) -> str:
    if re.fullmatch(r"[0-9a-fA-F]{64}", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a SHA-256: 64 hex digits")
    return text.lower()


def run(args: argparse.Namespace) -> int:
    """Run one action."""
    actions = {"verify": _verify, "export": _export, "detail": _detail, "open": _opened, "prove": _prove,
               "grown": audit_grown.grown, "vkey": audit_grown.vkey, "pack": audit_pack.run}
    return actions[args.action](args)


def _open(path: Path) -> BinaryIO:
    try:
        return os.fdopen(open_file(path)[0], "rb")
    except OSError as error:
        raise AuditError(f"{path}: {error.strerror}", hint="name the file that has the log's lines") from None


def _verify(args: argparse.Namespace) -> int:
    known = None if args.policy is None else checking.load(args.policy).policy
    reader = Reader(known)
    witnesses = [held.witness_key(text) for text in args.witness]
    if known is not None:
        witnesses += [held.witness_key(f"{each.name}={each.public_key}") for each in known.audit.witnesses]
    authority, under = args.authority, None
    if authority is None and known is not None and known.audit.timestamp_authority is not None:
        authority, under = known.audit.timestamp_authority.root_sha256, policy_digest(known).hex()
    trust = Trust(tuple(held.public_key(text) for text in args.key), witnesses=tuple(witnesses),
                  authority_sha256=authority, authority_policy=under)
    if _is_bundle(args.log):
        return _bundle(args, reader, trust.keys)
    with _open(args.log) as file:
        report = examine.examine(file, anchors=[held.read(path) for path in args.held], trust=trust, reader=reader)
    if args.json:
        print(json.dumps(_as_json(report), indent=2))
    else:
        _tell(report)
    if report.bad is not None:
        return 1
    return IN_QUESTION if report.in_question else 0


_BUNDLE = b'{"checkpoint":'


def _is_bundle(path: Path) -> bool:
    with _open(path) as file:
        return file.read(len(_BUNDLE)) == _BUNDLE


def _proved(path: Path, reader: Reader, keys: Sequence[bytes]) -> tuple[bundle.Extract, Checkpoint]:
    """Return a bundle's records, which are in the log that the one key signed."""
    if len(keys) != 1:
        raise NoteError("a bundle is judged by one key", hint="name the attested audit key with --key")
    data = held.content(path, 64 << 20)
    here = reading.head(bundle.noted(data))
    return bundle.read(data, NoteKey(here.origin, keys[0]), reader), here


def _bundle(args: argparse.Namespace, reader: Reader, keys: Sequence[bytes]) -> int:
    found, here = _proved(args.log, reader, keys)
    if args.json:
        print(json.dumps({"size": here.size, "root": here.root.hex(), "records": sorted(found.records)}, indent=2))
        return 0
    for record in found.records.values():
        print(record.line.decode("ascii"))
    print(f"{quantity(len(found.records), 'record')} of {here.origin}, which had {quantity(here.size, 'record')}",
          file=sys.stderr)
    if found.keys:
        print("the bundle has keys of sealed records: appliance audit open prints what they open", file=sys.stderr)
    return 0


def _records(path: Path) -> tuple[list[Record], Report]:
    """Return the records of a log that has nothing wrong in itself."""
    with _open(path) as file:
        data = list(file)
    report = examine.examine(data)
    if report.bad is not None:
        raise AuditError(f"{path}: {_described(report.bad)}", code="audit-altered",
                         hint="appliance audit verify says more")
    reader = Reader()
    try:
        return [reader.read(line) for line in lines(data) if not of_version_1(line)], report
    except WrongRecordError as error:
        raise AuditError(f"{path}: {error}", code="audit-altered") from None


def _export(args: argparse.Namespace) -> int:
    records, report = _records(args.log)
    note = held.read(args.held).note if args.held is not None else _last(records, report)
    numbers = args.record + [_number(path, records) for path in args.receipt]
    if not numbers:
        raise NoteError("no record to export", hint="name its number with --record, or its receipt with --receipt")
    periods = None if args.period_keys is None else held.period_keys(args.period_keys)
    print(json.dumps(bundle.export(records, numbers, note, periods), separators=(",", ":"), sort_keys=True))
    return 0


def _number(path: Path, records: Sequence[Record]) -> int:
    """Return the number of the record that a receipt is about."""
    leaf = receipts.record_of(held.content(path, receipts.MAX_ANSWER_BYTES)).leaf
    found = next((record.seq for record in records if record.leaf.hex() == leaf), None)
    if found is None:
        raise NoteError(f"{path}: the log does not have its record")
    return found


def _last(records: Sequence[Record], report: Report) -> Note:
    """Return the last checkpoint in a log, as a note."""
    for record in reversed(records):
        if record.event == "audit.checkpoint" and report.log is not None:
            said = record.fields
            boot = next(each for each in report.boots if each.boot == said["boot"])
            here = Checkpoint(origin(report.log), said["size"], bytes.fromhex(said["root"]))
            key = NoteKey(here.origin, boot.audit_key)
            return Note(here.text, (SignatureLine(key.name, key.id, bytes.fromhex(said["signature"])),))
    raise NoteError("the log has no checkpoint", hint="name a checkpoint that was held outside, with --held")


def _detail(args: argparse.Namespace) -> int:
    private = held.auditor_key(args.auditor_key)
    for seq, said in _read(args):
        if "detail" in said:
            found = unsealing.detail(bytes.fromhex(said["detail"]), private, said["request"])
            print(json.dumps({"seq": seq, "request": said["request"], "prompt_tokens": found.prompt_tokens,
                              "completion_tokens": found.completion_tokens, "duration_us": found.duration_us,
                              "first_token_us": found.first_token_us, "key_sha256": found.key_sha256.hex()}))
        elif "outcome" in said:
            ended = unsealing.outcome(bytes.fromhex(said["outcome"]), private, said["request"])
            print(json.dumps({"seq": seq, "request": said["request"], **ended}))
    return 0


def _read(args: argparse.Namespace) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the fields of each record, opened as far as keys were named."""
    keys = {} if args.period_keys is None else held.period_keys(args.period_keys)
    records, _ = _records(args.log)
    reader = Reader()
    for record in records:
        yield record.seq, reader.opened(record, keys)


def _opened(args: argparse.Namespace) -> int:
    if _is_bundle(args.log):
        reader = Reader()
        found, _ = _proved(args.log, reader, [held.public_key(text) for text in args.key])
        records = [reader.opened_by(found.keys[seq], each) if seq in found.keys else each.fields
                   for seq, each in found.records.items()]
    elif args.period_keys is None:
        raise NoteError("a log's sealed records are opened by its periods' keys", hint="name them with --period-keys")
    else:
        records = [said for _, said in _read(args)]
    for said in records:
        print(canonical(said).decode("ascii"))
    return 0


def _prove(args: argparse.Namespace) -> int:
    records, _ = _records(args.log)
    print(json.dumps(bundle.growth(records, args.old, len(records) if args.size is None else args.size)))
    return 0


def _described(bad: Bad) -> str:
    where = f"record {bad.position}" if bad.until == bad.position else f"a record from {bad.position} to {bad.until}"
    return f"{where}: {bad.what}"


def _tell(report: Report) -> None:
    log = "no log" if report.log is None else f"log {report.log.hex()}"
    print(f"{log}: " + ", ".join((quantity(report.records, "record"), quantity(len(report.boots), "boot"), quantity(
        report.checkpoints, "checkpoint"), quantity(report.cosignatures, "valid cosignature"))))
    if report.unchained:
        print(f"before them, proved by nothing: {quantity(report.unchained, 'record')} of version 1")
    for boot in report.boots:
        if boot.repaired_bytes:
            print(f"epoch {boot.epoch}: a torn record was cut off, {quantity(boot.repaired_bytes, 'byte')}")
    if report.stamps:
        last = report.stamps[-1]
        print(f"{quantity(len(report.stamps), 'valid timestamp')}; record {last.size - 1} and all before it existed at "
              f"{last.time:%Y-%m-%dT%H:%M:%SZ}, says {last.authority}")
    if report.sealed:
        print(f"{quantity(report.sealed, 'sealed record')}; destroyed are the keys of "
              f"{quantity(len(report.expired), 'period')}")
    for note in report.notes:
        print(f"note: {note}")
    if report.bad is not None:
        print(f"bad: {_described(report.bad)}")
        if report.bad.since < report.bad.position:
            print(f"bad from record {report.bad.since} on, if the appliance was set back to an older disk")
    else:
        _tell_proved(report)


def _tell_proved(report: Report) -> None:
    """Say what something from outside proves, and what is the log's own word."""
    if report.proved:
        print(f"complete and unaltered up to record {report.proved - 1}, by {report.by}")
    for key in report.strange:
        print(f"no boot of this log has the key {key.hex()}: it is another log's, or boots are absent")
    if not report.own_word:
        return
    first, last = report.proved, report.records - 1
    which = f"record {last}" if first == last else f"records {first} to {last}"
    print(f"the log's own word: {which}, which nothing that was named covers")
    for boot in report.unbound if report.outside else ():
        print(f"the log's own word: epoch {boot.epoch}, from record {boot.first} on, by the key {boot.audit_key.hex()}")
    if not report.signed:
        print("no checkpoint: nothing tells whether more records came after them")
    elif report.signed > report.proved:
        print(f"the log's own word: the checkpoint in record {report.signed}, by a key that the log names itself")
    if not report.outside:
        print("name a checkpoint that was held (--held), or the key that evidence binds (--key)")


def _as_json(report: Report) -> dict[str, Any]:
    bad = report.bad
    return {
        "log": None if report.log is None else report.log.hex(), "records": report.records,
        "unchained": report.unchained, "checkpoints": report.checkpoints, "cosignatures": report.cosignatures,
        "boots": [{"epoch": each.epoch, "first": each.first, "boot": each.boot, "audit_key_ed25519":
                   each.audit_key.hex(), "repaired_bytes": each.repaired_bytes} for each in report.boots],
        "proved": report.proved, "proved_by": report.by, "own_word": {
            "records": report.own_word, "signed": report.signed, "epochs": [each.epoch for each in report.unbound],
            "keys_of_no_boot": [key.hex() for key in report.strange]}, "timestamps": [
            {"size": each.size, "time": each.time.isoformat(), "authority": each.authority} for each in report.stamps],
        "sealed": report.sealed, "expired": report.expired, "notes": report.notes,
        "bad": None if bad is None else {"position": bad.position, "until": bad.until, "since": bad.since,
                                         "what": bad.what}}
