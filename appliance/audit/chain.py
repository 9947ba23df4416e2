"""The chain of an audit log: its place in the tree, its last record, its checkpoints.

The chain follows every record, those of earlier boots first and then each that is written. It keeps
no record: a tree's `LeafRange` takes memory as the logarithm of the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance import hostclock
from appliance.audit.events import CHAINED
from appliance.codec import strict
from appliance.errors import AuditError
from appliance.receipts.statement import ORIGIN
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import Note, NoteKey, SignatureLine, sign
from appliance.transparency.tree import LeafRange, consistency, leaf_hash

_SIGNATURE = re.compile("[0-9a-f]{128}")
_MARKS = 4  # checkpoints back to which a witness may still cosign
_COPY = "keep a copy of it for an audit, and name another file to begin a new log"


def origin(log: bytes) -> str:
    """The origin of a log's checkpoints, from its 16 bytes of identity."""
    return ORIGIN + log.hex()


@dataclass(frozen=True)
class SignedHead:
    """A signed checkpoint, and for each witness the size that it cosigned last, with the proof that
    the log grew from there."""

    checkpoint: Checkpoint
    signature: bytes
    key: NoteKey
    grown: Mapping[str, tuple[int, tuple[bytes, ...]]] = field(default_factory=dict)

    @property
    def note(self) -> Note:
        """It as a note."""
        return Note(self.checkpoint.text, (SignatureLine(self.key.name, self.key.id, self.signature),))


def _usable(record: Mapping[str, Any], place: int) -> bool:
    """Whether the fields that the chain goes by are in form, in a record that stands at a place."""
    if not isinstance(record["event"], str):
        return False
    if record["event"] == "audit.checkpoint":
        return _SIGNATURE.fullmatch(record["signature"]) is not None and type(record["size"]) is int
    if record["event"] in ("audit.cosigned", "audit.timestamped"):
        named = record["event"] == "audit.timestamped" or isinstance(record["witness"], str)
        return named and type(record["size"]) is int and 0 <= record["size"] < place
    return True


@dataclass
class _Mark:
    """The tree at an earlier checkpoint, and what came since."""

    old: LeafRange
    since: LeafRange


class Chain:
    """A log from its first record on. `follow` reads what is there; `begin` starts a boot's part.
    """

    def __init__(self) -> None:
        self.log: bytes | None = None  # its identity, 16 bytes; None before its first record
        self.epoch = 0
        self.version = 0  # that of the last record
        self.unchained = 0  # records of version 1, which are no part of it
        self.tree = LeafRange()
        self.head: bytes | None = None  # leaf hash of the last record
        self.newest: SignedHead | None = None  # the newest checkpoint that is a record
        self.cosigned: dict[str, int] = {}  # the size that each witness cosigned last
        self.stamped = 0  # the size that the timestamp authority dated last
        self.dated: dict[tuple[str, str], float] = {}  # of this boot: when each kind came last, by witness
        self._marks: dict[int, _Mark] = {}
        self._recent: dict[int, SignedHead] = {}  # of this boot: those that a witness may still cosign
        self._key: Ed25519PrivateKey | None = None

    def follow(self, line: bytes) -> None:
        """Take in a record that an earlier boot wrote, without its line feed. AuditError where it
        does not follow."""
        try:
            record = strict.json_value(line)
            if record["v"] == 1:
                self.unchained += 1
                return
            version, place, event = record["v"], (record["seq"], record["prev"]), record["event"]
            if self.log is None and event == "log.opened":
                self.log = bytes.fromhex(record["log"])
            self.epoch = max(self.epoch, int(record["epoch"]))
            usable = _usable(record, self.tree.end)
        except (ValueError, LookupError, TypeError, OverflowError):
            raise AuditError("audit log: a line is no record", code="audit-altered", hint=_COPY) from None
        if not usable:
            raise AuditError(f"audit log: record {self.tree.end} is not in form", code="audit-altered", hint=_COPY)
        if place != (self.tree.end, self.prev) or self.log is None or not self._goes_on(version, event):
            raise AuditError(f"audit log: record {self.tree.end} does not follow the one before it",
                             code="audit-altered", hint=_COPY)
        self.version = version
        self.add(line, record)

    def _goes_on(self, version: object, event: str) -> bool:
        """Whether a record may be of this version: that of its boot, and at least that of the boot
        before."""
        if event != "log.opened":
            return version == self.version
        return type(version) is int and version in CHAINED and version >= self.version

    def begin(self, log: bytes, epoch: int, key: Ed25519PrivateKey) -> None:
        """Start the part of a boot, which signs with `key`."""
        self.log, self.epoch, self._key = self.log or log, epoch, key

    @property
    def prev(self) -> str | None:
        """The `prev` of the next record."""
        return None if self.head is None else self.head.hex()

    @property
    def key(self) -> NoteKey:
        """The public key of this boot, under the log's origin."""
        private = self._private
        return NoteKey(origin(self.log or b""), private.public_key().public_bytes_raw())

    def add(self, line: bytes, record: Mapping[str, Any]) -> None:
        """Take in the next record: its line, and what that says."""
        event, size = record["event"], record.get("size")
        if event == "audit.checkpoint" and size == self.tree.end:
            self._mark(bytes.fromhex(record["signature"]))
            self._date("checkpoint")
        elif event == "audit.cosigned":
            self.cosigned[record["witness"]] = record["size"]
            self._date("cosignature", record["witness"])
        elif event == "audit.timestamped":
            self.stamped = record["size"]
            self._date("timestamp")
        leaf = leaf_hash(line)
        self.tree.append(leaf)
        for mark in self._marks.values():
            mark.since.append(leaf)
        self.head = leaf

    def signed(self) -> SignedHead:
        """The signed head of the log as it is."""
        here = Checkpoint(origin(self.log or b""), self.tree.end, self.tree.root)
        line = sign(here.text, here.origin, self._private)
        return SignedHead(here, line.data, self.key, self._grown())

    @property
    def recent(self) -> tuple[SignedHead, ...]:
        """Checkpoints of this boot that a witness may still cosign, the newest first."""
        return tuple(self._recent[size] for size in sorted(self._recent, reverse=True))

    @property
    def private(self) -> Ed25519PrivateKey:
        """The key of this boot, by which receipts are signed, too."""
        return self._private

    @property
    def _private(self) -> Ed25519PrivateKey:
        if self._key is None:
            raise AuditError("audit log: no boot has begun its part")
        return self._key

    def _date(self, kind: str, witness: str = "") -> None:
        if self._key is not None:
            self.dated[kind, witness] = hostclock.seconds()

    def _mark(self, signature: bytes) -> None:
        size, grown = self.tree.end, self._grown()
        here = Checkpoint(origin(self.log or b""), size, self.tree.root)
        if self._key is not None:
            self.newest = self._recent[size] = SignedHead(here, signature, self.key, grown)
        self._marks[size] = _Mark(self.tree.copy(), LeafRange(size))
        needed = {*sorted(self._marks)[-_MARKS:], *self.cosigned.values()}
        self._marks = {at: mark for at, mark in self._marks.items() if at in needed}
        self._recent = {at: each for at, each in self._recent.items() if at in needed}

    def _grown(self) -> dict[str, tuple[int, tuple[bytes, ...]]]:
        found = {}
        for name, size in self.cosigned.items():
            if (mark := self._marks.get(size)) is not None:
                found[name] = size, consistency(mark.old, mark.since)
        return found
