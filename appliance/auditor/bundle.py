"""Proofs that are taken out of a log: of single records, and that one state grew from another.

A bundle proves some records to someone who must not see the others. It may have the keys of sealed
records, each of which opens only its record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from appliance.audit import retained
from appliance.auditor import unsealing
from appliance.auditor.records import Reader, Record, WrongRecordError
from appliance.codec import strict
from appliance.codec.printable import quantity
from appliance.errors import AuditError, NoteError
from appliance.transparency import proofs, reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Note, NoteKey
from appliance.transparency.tree import HASH_BYTES, included

FORMAT = "appliance/audit-bundle/v1"
FORMAT_2 = "appliance/audit-bundle/v2"  # of a bundle with keys
_MOST_PATH = 64


@dataclass(frozen=True)
class Extract:
    """A bundle: a signed checkpoint, records of the log under it by their numbers, and keys that
    open sealed ones."""

    note: Note
    records: dict[int, Record]
    keys: dict[int, bytes] = field(default_factory=dict)


def export(records: Sequence[Record], numbers: Sequence[int], note: Note,
           periods: Mapping[int, bytes] | None = None) -> dict[str, Any]:
    """Make a bundle of records under a checkpoint of this log, with the keys of sealed records if
    the periods' keys are given. Raises NoteError if a record is not there."""
    here = reading.head(note.text)
    leaves = [record.leaf for record in records[:here.size]]
    if proofs.root(leaves) != here.root:
        raise NoteError("the checkpoint knows other records than the log has")
    missing = [number for number in numbers if not 0 <= number < here.size]
    if missing:
        raise NoteError(f"record {missing[0]} is not under the checkpoint of {quantity(here.size, 'record')}")
    chosen = [records[number] for number in sorted(set(numbers))]
    keys = {} if periods is None else {each.seq: {"key": _own_key(each, periods).hex()} for each in chosen
                                       if "sealed" in each.fields}
    return {"format": FORMAT_2 if keys else FORMAT, "checkpoint": note.encode().decode(), "records": [
        {"index": each.seq, "line": each.line.decode("ascii"),
         "path": [other.hex() for other in proofs.path(leaves, each.seq)], **keys.get(each.seq, {})}
        for each in chosen]}


def _own_key(record: Record, periods: Mapping[int, bytes]) -> bytes:
    """Return the key that opens a record and no other. Raises NoteError if there is none such."""
    period, seq = record.fields["period"], record.seq
    if not unsealing.own(record.fields):
        raise NoteError(f"record {seq} is of version 2 of the log, where a key opens all records of a boot and period",
                        hint="leave out --period-keys, and show its reader what audit open prints of it")
    if period not in periods:
        raise NoteError(f"record {seq}: the key of its period, {period}, is not among those that were named",
                        hint="appliance state DISK --period-keys writes those that are not destroyed")
    key = unsealing.key_of(periods[period], record.fields)
    Reader().opened_by(key, record)  # a key that opens nothing is not handed out
    return key


def growth(records: Sequence[Record], old: int, size: int) -> dict[str, Any]:
    """Return the proof that the log of `size` records grew from that of the first `old`."""
    if not 0 <= old <= size <= len(records):
        raise NoteError(f"no growth from {old} to {size} in a log of {quantity(len(records), 'record')}")
    leaves = [record.leaf for record in records[:size]]
    return {"old": old, "size": size, "old_root": proofs.root(leaves[:old]).hex(), "root": proofs.root(leaves).hex(),
            "proof": [each.hex() for each in proofs.grown(leaves, old)]}


def grew(data: bytes, old: Checkpoint, new: Checkpoint) -> int:
    """How many records the later of two checkpoints shares with the earlier one, by the proof of
    `growth`. Raises AuditError if it shows no such thing, NoteError for another form."""
    try:
        value = strict.json_value(data, integers=True)
        said = (value["old"], value["size"], bytes.fromhex(value["old_root"]), bytes.fromhex(value["root"]))
        proof = [bytes.fromhex(each) for each in value["proof"]]
        if set(value) != {"old", "size", "old_root", "root", "proof"} or len(proof) > 2 * _MOST_PATH or any(
                type(each) is not int for each in said[:2]):
            raise ValueError("another form")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError("proof of growth: not in form", hint="appliance audit prove LOG --old N prints one") from None
    if old.origin != new.origin:
        raise AuditError(f"the checkpoints are of two logs, {old.origin} and {new.origin}", code="audit-grown")
    if said != (old.size, new.size, old.root, new.root):
        raise AuditError(f"the proof leads from record {said[0]} to {said[1]}, the checkpoints from {old.size} to "
                         f"{new.size}" + (", with other roots" if said[:2] == (old.size, new.size) else ""),
                         code="audit-grown", hint=f"appliance audit prove LOG --old {old.size} --size {new.size}")
    if not proofs.follows(old.size, old.root, new.size, new.root, proof):
        raise AuditError("the later state does not begin with the earlier one", code="audit-grown")
    return old.size


def noted(data: bytes) -> str:
    """Return the text of a bundle's checkpoint, whoever signed it. Raises NoteError for another
    form."""
    try:
        return reading.note(strict.json_value(data, integers=True)["checkpoint"].encode()).text
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError("bundle: not in form") from None


def read(data: bytes, key: NoteKey, reader: Reader) -> Extract:
    """Return a bundle whose checkpoint this key signed and whose records are under it.
    NoteError."""
    try:
        value = strict.json_value(data, integers=True)
        if set(value) != {"format", "checkpoint", "records"} or value["format"] not in (FORMAT, FORMAT_2):
            raise ValueError("another format")
        here, note = reading.signed_head(value["checkpoint"].encode(), key)
        found: dict[int, Record] = {}
        keys: dict[int, bytes] = {}
        for entry in value["records"]:
            index, record = entry["index"], reader.read(entry["line"].encode("ascii"))
            path = [bytes.fromhex(each) for each in entry["path"]]
            if len(path) > _MOST_PATH or any(len(each) != HASH_BYTES for each in path) or index in found:
                raise ValueError("a path is not in form")
            if record.seq != index or not included(record.leaf, index, here.size, path, here.root):
                raise NoteError(f"bundle: record {index} is not under its checkpoint")
            found[index] = record
            if value["format"] == FORMAT_2 and "key" in entry:
                keys[index] = _key(entry["key"], record)
    except (ValueError, LookupError, TypeError, AttributeError, WrongRecordError) as error:
        raise NoteError(f"bundle: not in form: {error}" if isinstance(error, WrongRecordError) else
                        "bundle: not in form") from None
    return Extract(note, found, keys)


def _key(text: str, record: Record) -> bytes:
    """Read the key of a record. Raises ValueError if the record has no key of its own."""
    key = bytes.fromhex(text)
    if len(key) != retained.KEY_BYTES or "sealed" not in record.fields or not unsealing.own(record.fields):
        raise ValueError("a key is not in form, or of a record that has none")
    return key


def without_keys(data: bytes) -> bytes:
    """Return a bundle for somebody who must not open its records; without keys it stays as it is.
    Raises NoteError for another form."""
    noted(data)
    value = strict.json_value(data, integers=True)
    try:
        if value["format"] != FORMAT_2:
            return data
        entries = [{name: part for name, part in entry.items() if name != "key"} for entry in value["records"]]
    except (LookupError, TypeError, AttributeError):
        raise NoteError("bundle: not in form") from None
    return json.dumps({**value, "format": FORMAT, "records": entries}, separators=(",", ":"), sort_keys=True).encode()
