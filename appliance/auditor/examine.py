"""Whether a log is whole and unaltered, and up to which record that is proved.

Records are read in order, and the first that cannot stand in its place is named. Each commits to
the one before it, so a break lies between two records. The record after them tells which of them
was altered, and so does a signed checkpoint, in the log or held outside.

Without anything from outside a log has nothing but its own word: `outcome` says what covers what.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from appliance.audit.chain import origin
from appliance.auditor.held import Anchor
from appliance.auditor.outcome import Bad, Boot, Cover, Report, Stamp
from appliance.auditor.records import Reader, Record, WrongRecordError, lines, of_version_1
from appliance.codec.printable import quantity
from appliance.errors import NoteError
from appliance.signed import timestamps
from appliance.signed.timestamps import Timestamp
from appliance.transparency import ed25519
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, Note, NoteKey, SignatureLine
from appliance.transparency.proofs import root
from appliance.transparency.tree import LeafRange

CLOCK_SECONDS = 60  # by which clocks may differ without a word
_OTHER_KEY = "a boot with another audit key than the one before, on a state disk, which keeps its key"


@dataclass(frozen=True)
class Trust:
    """The keys that an auditor trusts.

    `keys`: audit keys, by one of which held checkpoints must be signed. `bound`: audit keys that
    evidence binds, although the log may have boots of other keys. Without both, keys of boots that
    a held checkpoint covers are taken.
    """

    keys: tuple[bytes, ...] = ()
    bound: tuple[bytes, ...] = ()
    witnesses: tuple[NoteKey, ...] = ()
    authority_sha256: str | None = None  # of the certificate that the timestamp authority's chain ends in
    authority_policy: str | None = None  # SHA-384 of the policy that names it; None: it dated every boot


def examine(data: Iterable[bytes], *, anchors: Sequence[Anchor] = (), trust: Trust | None = None,
            reader: Reader | None = None) -> Report:
    """Examine a log, given as lines with their line feeds."""
    return _Examination(data, anchors, trust or Trust(), reader or Reader()).report


class _Examination:
    """One log under examination."""

    def __init__(self, data: Iterable[bytes], anchors: Sequence[Anchor], trust: Trust, reader: Reader) -> None:
        self.report = Report()
        self._trust, self._keys = trust, trust.keys or trust.bound
        self._anchors = sorted(anchors, key=lambda each: each.checkpoint.size)
        self._records: list[Record | str] = []  # a text says why a line is none
        self._read(data, reader)
        self._tree = LeafRange()
        self._roots: dict[int, bytes] = {}  # at sizes of checkpoints, in the log or held
        self._good: list[int] = []  # sizes of signed checkpoints in the log
        self._signed: dict[int, Checkpoint] = {}  # each of them that is a record so far
        self._own: list[tuple[int, bytes]] = []  # their sizes, and the key of each one's boot
        self._covers: list[Cover] = []  # proofs of records from outside
        self._on_disk = False  # whether the log says that it is a state disk's, which keeps its key
        self._under: str | None = None  # the present boot's policy
        self._walk()
        self._hold_against()
        self.report.settle(self._covers, self._keys, self._own, held=any(each.proves for each in self._anchors))

    def _read(self, data: Iterable[bytes], reader: Reader) -> None:
        self._unchained = 0  # records of version 1, as the present boot's first record says
        self._before: dict[int, int] = {}  # records of version 1 before each record
        for line in lines(data):
            if of_version_1(line):
                self.report.unchained += 1
                continue
            self._before[len(self._records)] = self.report.unchained
            try:
                self._records.append(reader.read(line))
            except WrongRecordError as error:
                self._records.append(str(error))
        self.report.records = len(self._records)

    def _walk(self) -> None:
        """Go through the records until one cannot stand where it stands."""
        sizes = {each.checkpoint.size for each in self._anchors}
        self._roots[0] = self._tree.root
        for position, record in enumerate(self._records):
            self.report.bad = self._misplaced(position, record)
            if self.report.bad is not None or isinstance(record, str):
                return
            self._tree.append(record.leaf)
            if self._tree.end in sizes:
                self._roots[self._tree.end] = self._tree.root
        if self._records and self.report.unchained != self._before[len(self._records) - 1]:
            self.report.notes.append("records of version 1 follow the last one that is chained")

    def _misplaced(self, position: int, record: Record | str) -> Bad | None:
        if isinstance(record, str):
            return Bad.at(position, record)
        if record.seq != position:
            return Bad.at(position, f"record {record.seq} stands in the place of record {position}")
        before = self._records[position - 1] if position else None
        if (wrong := self._boots(position, record)) is not None:
            if record.prev is not None and isinstance(before, Record) and before.event == "log.opened" and (
                    record.prev != before.leaf and self._fits(position - 1, record.prev)):
                return Bad.at(position - 1, "it is not the record that the next one follows")
            return Bad.at(position, wrong)
        if isinstance(before, Record) and record.prev != before.leaf:
            return self._broken(position, before, record)
        self.report.sealed += "sealed" in record.fields
        if record.event in ("log.opened", "boot.start"):
            self._under = record.fields.get("policy_sha384")
        if record.event == "state.opened" and self._of_this_disk(record):
            return Bad.at(self.report.boots[-1].first, _OTHER_KEY)
        if record.event == "audit.expired":
            self.report.expired += [record.fields["period"]] if "period" in record.fields else []
        if record.event == "audit.checkpoint":
            return self._checkpoint(position, record)
        if record.event == "audit.timestamped" and (wrong := self._timestamped(record)) is not None:
            return Bad.at(position, wrong)
        if record.event == "audit.cosigned" and (wrong := self._cosigned(record)) is not None:
            return Bad.at(position, wrong)
        return None

    def _boots(self, position: int, record: Record) -> str | None:
        """Tell whether boots follow each other; why not."""
        said, boots = record.fields, self.report.boots
        if record.event != "log.opened":
            if not boots:
                return "the log does not begin with log.opened"
            same = (said["boot"], said["epoch"], said["v"]) == (boots[-1].boot, boots[-1].epoch, boots[-1].version)
            return None if same and self._before[position] == self._unchained else "it is of another boot"
        log = bytes.fromhex(said.get("log", ""))
        if not {"log", "audit_key_ed25519", "repaired_bytes", "unchained"} <= set(said):
            return "a boot's first record lacks a field"
        if any(each.checkpoint.origin != origin(log) for each in self._anchors):
            return "it begins another log than the one that the held checkpoints are of"
        if boots and (log != self.report.log or said["epoch"] <= boots[-1].epoch or said["boot"] in {
                each.boot for each in boots}):
            return "a boot of another log, or one whose epoch is not higher than the one before"
        if boots and said["v"] < boots[-1].version:
            return f"a boot of version {said['v']} behind one of version {boots[-1].version}"
        if said["unchained"] != self._before[position]:
            return (f"before it, by its word, {quantity(said['unchained'], 'record')} of version 1; there: "
                    f"{self._before[position]}")
        key = bytes.fromhex(said["audit_key_ed25519"])
        if (wrong := ed25519.fault(key)) is not None:
            return f"a boot whose audit key is not usable: {wrong}"
        if self._on_disk and key != boots[-1].audit_key:
            return _OTHER_KEY
        self.report.log, self._unchained = log, said["unchained"]
        boots.append(Boot(said["epoch"], position, said["boot"], key, said["repaired_bytes"], said["v"]))
        return None

    def _of_this_disk(self, record: Record) -> bool:
        """Keep in mind that the log is on the state disk that a boot opened. Returns whether an
        earlier boot of it had another key than this one."""
        log, boots = self.report.log, self.report.boots
        self._on_disk = self._on_disk or (log is not None and record.fields.get("disk") == log.hex())
        return self._on_disk and any(each.audit_key != boots[-1].audit_key for each in boots)

    def _broken(self, position: int, before: Record, record: Record) -> Bad:
        """Find which of two records is not what was written, where the chain breaks between
        them."""
        what = "it is not the record that the next one follows"
        if record.prev is not None and self._fits(position - 1, record.prev):
            return Bad.at(position - 1, what)
        after = self._records[position + 1] if position + 1 < len(self._records) else None
        if record.event != "log.opened" and isinstance(after, Record) and (
                after.seq, after.prev) == (position + 1, record.leaf):
            return Bad.at(position - 1, what)
        return Bad(position, "it does not follow the record before it", position, position - 1)

    def _fits(self, altered: int, leaf: bytes) -> bool:
        """Whether a signed checkpoint is met if this record alone had another leaf hash."""
        leaves = [each.leaf for each in self._records if isinstance(each, Record)]
        if len(leaves) != len(self._records):
            return False
        leaves[altered] = leaf
        keys = [each.audit_key for each in reversed(self.report.boots)]
        later = [each.checkpoint for each in self._anchors]
        later += [found for each in self._records[altered:] if isinstance(each, Record)
                  and each.event == "audit.checkpoint" and (found := self._genuine(each, keys)) is not None][:1]
        return any(altered < each.size <= len(leaves) and root(leaves[:each.size]) == each.root for each in later)

    def _genuine(self, record: Record, keys: Iterable[bytes]) -> Checkpoint | None:
        """Return the checkpoint in a record, if one of these keys signed it."""
        said = record.fields
        if self.report.log is None or not {"size", "root", "signature"} <= set(said):
            return None
        found = Checkpoint(origin(self.report.log), said["size"], bytes.fromhex(said["root"]))
        for public in dict.fromkeys(keys):
            key = NoteKey(found.origin, public)
            try:
                key.check(Note(found.text, (SignatureLine(key.name, key.id, bytes.fromhex(said["signature"])),)))
            except NoteError:
                continue
            return found
        return None

    def _checkpoint(self, position: int, record: Record) -> Bad | None:
        boot = self.report.boots[-1]
        found = self._genuine(record, [boot.audit_key])
        if found is None or found.size != position:
            return Bad.at(position, "a checkpoint that its boot's key did not sign here")
        if found.root != self._tree.root:
            first = self._good[-1] if self._good else 0
            return Bad(first, f"the checkpoint in record {position} knows other records", position - 1, first)
        self.report.checkpoints += 1
        self._roots[position] = found.root
        self._signed[position] = found
        self._own.append((position, boot.audit_key))
        if not self._keys or boot.audit_key in self._keys:
            self._good.append(position)
        else:
            self._say(f"the audit key of epoch {boot.epoch} is not one of those that were named, so its checkpoints "
                      "prove nothing")
        return None

    def _cosigned(self, record: Record) -> str | None:
        said = record.fields
        if not {"witness", "size", "cosigned_at", "signature"} <= set(said) or said["size"] not in self._signed:
            return "a cosignature of a checkpoint that is not in the log"
        key = next((each for each in self._trust.witnesses if each.name == said["witness"]), None)
        if key is None:
            self._say(f"cosignatures of {said['witness']} were not checked: its key was not named")
            return None
        data = said["cosigned_at"].to_bytes(8, "big") + bytes.fromhex(said["signature"])
        try:
            NoteKey(key.name, key.public, COSIGNS).check(Note(self._signed[said["size"]].text, (
                SignatureLine(key.name, NoteKey(key.name, key.public, COSIGNS).id, data),)))
        except NoteError:
            return "a cosignature that does not verify"
        self.report.cosignatures += 1
        self.report.witnessed = max(self.report.witnessed, said["size"])
        over = quantity(said["size"], "record")
        self._covers.append(Cover(said["size"], f"the cosignature of {key.name} over {over}"))
        return None

    def _timestamped(self, record: Record) -> str | None:
        said = record.fields
        if not {"size", "token"} <= set(said) or said["size"] not in self._signed:
            return "a timestamp of a checkpoint that is not in the log"
        if self._trust.authority_sha256 is None:
            self._say("timestamps were not checked: the authority's certificate was not named")
            return None
        if self._trust.authority_policy not in (None, self._under):
            self._say("timestamps of boots under another policy were not checked: it may name another authority")
            return None
        token, text = bytes.fromhex(said["token"]), self._signed[said["size"]].text
        try:
            found = timestamps.verify(token, hashlib.sha256(text.encode()).digest(), self._trust.authority_sha256)
        except NoteError as error:
            return f"a timestamp that does not verify ({error.summary})"
        if found.token != token:
            return "a timestamp with bytes that its authority did not sign"
        self.report.stamps.append(Stamp(said["size"], found.time, found.authority))
        self._compare_clock(said["size"], found)
        return None

    def _compare_clock(self, size: int, found: Timestamp) -> None:
        """Say where the host's clock was ahead of the authority's: a record has a later time than
        the one by which it existed."""
        last = self._records[size - 1] if size else None
        if isinstance(last, Record):
            ahead = (datetime.fromisoformat(last.fields["time"]) - found.time).total_seconds()
            if ahead > CLOCK_SECONDS:
                self._say(f"record {size - 1} says {last.fields['time']}, and existed {ahead:.0f} s before that, says "
                          "the timestamp authority: the host's clock was ahead")

    def _say(self, text: str) -> None:
        if text not in self.report.notes:
            self.report.notes.append(text)

    def _hold_against(self) -> None:
        """Compare with each checkpoint that is held outside, the smallest first."""
        for anchor in self._anchors:
            bad, here = self.report.bad, anchor.checkpoint
            if bad is not None and bad.position < here.size:
                return
            found = self._contradiction(anchor)
            if found is not None:
                self.report.bad = found
                return
            if self.report.log is not None and anchor.proves and self._of_key(anchor):
                self._covers.append(Cover(here.size, anchor.name))

    def _contradiction(self, anchor: Anchor) -> Bad | None:
        here, log = anchor.checkpoint, self.report.log
        knows = f"{anchor.name} knows {quantity(here.size, 'record')}"
        if log is None:
            return Bad.at(0, f"the log is empty, and {knows}") if here.size else None
        self._check_key(anchor)
        if here.size > len(self._records):
            return Bad.at(len(self._records), f"the log ends here, and {knows}")
        if self._roots.get(here.size) == here.root:
            return None
        proved = max((size for size in self._good if size < here.size), default=0)
        held = max((each.checkpoint.size for each in self._anchors if each.checkpoint.size < here.size), default=0)
        opened = [boot.first for boot in self.report.boots if held <= boot.first < here.size]
        since = min([max(proved, held), *opened])
        return Bad(max(proved, held), f"{anchor.name} knows other records", here.size - 1, since)

    def _check_key(self, anchor: Anchor) -> None:
        """Say where no key of the log signed a held checkpoint. Raises NoteError if keys were
        named, and the judge's own checkpoint is by none of them: then it is not to be held against
        anything."""
        if self._of_key(anchor):
            return
        if self._trust.keys and anchor.proves:
            raise NoteError(f"{anchor.name}: no key that was named signed it",
                            hint="is it a checkpoint of this appliance, and is the key the attested one?")
        self._say(f"{anchor.name} is signed by a key that no boot of this log names")

    def _of_key(self, anchor: Anchor) -> bool:
        """Tell whether a permitted key signed a held checkpoint: a named key or, if none is named,
        the key of its last record's boot."""
        here, boots = anchor.checkpoint, self.report.boots
        under = [boot.audit_key for boot in boots if boot.first < here.size or not here.size]
        publics = self._trust.keys if anchor.proves else ()
        for public in publics or under[-1:]:
            try:
                NoteKey(here.origin, public).check(anchor.note)
            except NoteError:
                continue
            return True
        return False
