"""A builder's release log: its measurements, policies and revocations, as two files that any server
can serve.

`log.jsonl` has records in the form of the audit log: canonical lines, each with the hash of the one
before. `checkpoint` is a signed note over the tree of all of them, by the builder's key. Format:
docs/formats/release-log.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from appliance.attestation.findings import Finding
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.codec.printable import quantity
from appliance.errors import NoteError
from appliance.transparency import reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import NoteKey
from appliance.transparency.tree import LeafRange, leaf_hash

LOG, HEAD = "log.jsonl", "checkpoint"  # the files of a folder
ORIGIN: Final = "appliance/releases/"
FORMAT: Final = 1
MAX_BYTES: Final = 64 << 20
_ENVELOPE = ("v", "seq", "time", "prev", "event")
_HEX16, _HEX32, _HEX48 = (f"[0-9a-f]{{{size}}}" for size in (32, 64, 96))
_WORD = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}"
FIELDS: Final[dict[str, dict[str, str]]] = {  # event -> field -> the pattern of its text
    "releases.opened": {"log": _HEX16, "builder_ed25519": _HEX32},
    "release.measurements": {"sha384": _HEX48, "version": _WORD},
    "release.policy": {"sha384": _HEX48, "name": _WORD},
    "release.revoked": {"what": "measurements|policy", "sha384": _HEX48},
    "release.current": {}}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Releases:
    """A log that its builder signed as a whole. Digests are SHA-384, in hex."""

    head: Checkpoint
    lines: tuple[bytes, ...]  # without line feeds
    measurements: frozenset[str]
    policies: frozenset[str]
    revoked: frozenset[tuple[str, str]]
    newest: datetime

    def finding(self, measurements: str | None, policy: str, at: datetime, max_age: timedelta | None) -> Finding:
        """The rule `release`: measurements are the builder's and not revoked, nor is the policy.
        The log's newest record is not too old at that time. A revocation counts whenever it was
        made."""
        wrong = []
        if measurements is not None and measurements not in self.measurements:
            wrong.append("the log does not have the measurements")
        for what, digest in (("measurements", measurements), ("policy", policy)):
            if digest is not None and (what, digest) in self.revoked:
                wrong.append(f"the builder revoked the {what}")
        if max_age is not None and at - self.newest > max_age:
            wrong.append(f"its newest record is of {self.newest:%Y-%m-%dT%H:%M:%SZ}, older than {max_age}")
        if wrong:
            return Finding("release", "fails", "; ".join(wrong))
        listed = "has the policy" if policy in self.policies else "says nothing of the policy"
        return Finding("release", "holds", f"{quantity(self.head.size, 'record')} up to "
                       f"{self.newest:%Y-%m-%dT%H:%M:%SZ}; the log {listed}")


def record(seq: int, prev: bytes | None, event: str, fields: dict[str, str], at: datetime) -> bytes:
    """The line of a record, without a line feed. NoteError for one that the format has not."""
    made = {"v": FORMAT, "seq": seq, "time": f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "prev": None if prev is None else prev.hex(), "event": event, **fields}
    line = canonical(made)
    _read(line, seq, prev)
    return line


def read(log: bytes, head: bytes, builder: bytes, *, held: bytes | None = None) -> Releases:
    """A log whose checkpoint the builder's key (32 bytes) signed, and which grew from a `held` one.

    NoteError for anything else: records that do not follow each other, more or fewer than the
    checkpoint has, another key.
    """
    if len(log) > MAX_BYTES or (log and not log.endswith(b"\n")):
        raise NoteError("release log: too long, or its last line has no end")
    lines = tuple(log.split(b"\n")[:-1])
    tree, prev, sizes = LeafRange(), None, {0: LeafRange().root}
    found: dict[str, set[str]] = {"release.measurements": set(), "release.policy": set()}
    revoked, newest, origin = set[tuple[str, str]](), datetime.min.replace(tzinfo=UTC), ""
    for seq, line in enumerate(lines):
        said = _read(line, seq, prev)
        time = datetime.fromisoformat(said["time"])
        if time < newest:
            raise NoteError(f"release log: record {seq} is older than the one before it")
        newest, event = time, said["event"]
        if event == "releases.opened":
            origin = ORIGIN + said["log"]
            if said["builder_ed25519"] != builder.hex():
                raise NoteError("release log: it is another builder's")
        elif event == "release.revoked":
            revoked.add((said["what"], said["sha384"]))
        elif event in found:
            found[event].add(said["sha384"])
        prev = leaf_hash(line)
        tree.append(prev)
        sizes[tree.end] = tree.root
    here, _ = reading.signed_head(head, NoteKey(origin, builder))
    if (here.size, here.root) != (tree.end, tree.root):
        raise NoteError(f"release log: {quantity(tree.end, 'record')}, and the checkpoint knows {here.size}, or others")
    if held is not None:
        older, _ = reading.signed_head(held, NoteKey(origin, builder))
        if sizes.get(older.size) != older.root:
            raise NoteError("release log: it did not grow from the checkpoint that was held",
                            hint="somebody serves an older log, or another one")
    return Releases(here, lines, frozenset(found["release.measurements"]), frozenset(found["release.policy"]),
                    frozenset(revoked), newest)


def _read(line: bytes, seq: int, prev: bytes | None) -> dict[str, Any]:
    """The members of one line in its place. NoteError."""
    try:
        said = strict.json_value(line, integers=True)
        fields = FIELDS[said["event"]]
        good = (set(said) == {*_ENVELOPE, *fields} and canonical(said) == line and said["v"] == FORMAT
                and (said["seq"], said["prev"]) == (seq, None if prev is None else prev.hex())
                and (seq == 0) == (said["event"] == "releases.opened") and _TIME.fullmatch(said["time"])
                and all(re.fullmatch(pattern, said[name]) for name, pattern in fields.items()))
        datetime.fromisoformat(said["time"])
    except (ValueError, LookupError, TypeError, AttributeError):
        good = False
    if not good:
        raise NoteError(f"release log: line {seq} is not record {seq}")
    found: dict[str, Any] = said
    return found
