"""The outcome of an examination: what is bad, what is proved, and what is the log's own word.

A record is proved where something from outside covers it: a checkpoint that was held, a witness's
cosignature, or a key that was named or that evidence binds. All else a log says of itself, and
whoever has the file can write it: a boot whose key nobody vouches for, and records that no
checkpoint covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

_MOST_NAMED = 5


@dataclass(frozen=True)
class Bad:
    """The first record that is not what was written.

    `until`: the last that it may be, where that is not known more closely. `since`: the first that
    it may be, where the appliance itself was set back to an older disk.
    """

    position: int
    what: str
    until: int
    since: int

    @classmethod
    def at(cls, position: int, what: str) -> Bad:
        """Make the finding on a record that is known exactly."""
        return cls(position, what, position, position)


@dataclass(frozen=True)
class Boot:
    """One boot's part of the log."""

    epoch: int
    first: int
    boot: str
    audit_key: bytes
    repaired_bytes: int
    version: int  # of the log's format


@dataclass(frozen=True)
class Stamp:
    """A timestamp that verifies: the first `size` records existed at `time`, says `authority`."""

    size: int
    time: datetime
    authority: str


@dataclass(frozen=True)
class Cover:
    """A proof from outside of a log: the first `size` records are as they were, by `name`."""

    size: int
    name: str


@dataclass
class Report:
    """The outcome of an examination.

    `proved`: so many records are complete and unaltered by something from outside, which is `by`.
    `held`: so many by held checkpoints and cosignatures, `witnessed`: so many by the latter.
    `signed`: so many are by the log's own word, its last checkpoint by a key that it names itself.
    `unbound`: boots that nothing from outside covers. `strange`: keys that were named, and that no
    boot has. `outside`: whether there was anything to prove by.
    """

    log: bytes | None = None
    records: int = 0
    unchained: int = 0
    boots: list[Boot] = field(default_factory=list)
    checkpoints: int = 0
    cosignatures: int = 0
    witnessed: int = 0
    held: int = 0
    proved: int = 0
    by: str = "nothing"
    signed: int = 0
    unbound: list[Boot] = field(default_factory=list)
    strange: list[bytes] = field(default_factory=list)
    outside: bool = False
    bad: Bad | None = None
    sealed: int = 0  # records whose own fields are sealed under keys of periods
    expired: list[int] = field(default_factory=list)  # periods whose keys the log says are destroyed
    stamps: list[Stamp] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def own_word(self) -> int:
        """How many records at the log's end nothing from outside covers."""
        return self.records - self.proved

    @property
    def in_question(self) -> bool:
        """Whether something was named to prove the log by, and a boot is its own word still."""
        return bool(self.strange) or (self.outside and bool(self.unbound))

    @property
    def unbound_words(self) -> str:
        """The epochs of boots that nothing from outside covers, in words."""
        epochs = [str(boot.epoch) for boot in self.unbound]
        more = f" and {len(epochs) - _MOST_NAMED} more" if len(epochs) > _MOST_NAMED else ""
        several = len(epochs) > 1
        return (f"epoch{'s' * several} {', '.join(epochs[:_MOST_NAMED])}{more} {'are' if several else 'is'} the log's "
                "own word")

    def settle(self, covers: Sequence[Cover], keys: Sequence[bytes], own: Sequence[tuple[int, bytes]], *,
               held: bool) -> None:
        """Set what is proved. `own`: sizes of the log's own checkpoints, with the key of each.
        `held`: whether a checkpoint was held, though it may cover nothing.

        Without `keys`, those of boots under a cover count. A boot is covered by a checkpoint from
        outside that came after its first record, or by one of its own key if that key counts.
        """
        outermost = self.held = max((each.size for each in covers), default=0)
        known = set(keys or (boot.audit_key for boot in self.boots if boot.first < outermost))
        proofs = [Cover(size, f"the checkpoint in record {size}") for size, key in own if key in known]
        best = max((*proofs, *covers), key=lambda each: each.size, default=Cover(0, "nothing"))
        self.proved, self.by = best.size, best.name if best.size else "nothing"
        self.signed = max((size for size, _ in own), default=0)
        self.outside = bool(keys or covers or held)
        self.unbound = [boot for boot in self.boots if boot.first >= outermost and not (
            boot.audit_key in known and boot.first < self.proved)]
        self.strange = [key for key in keys if all(boot.audit_key != key for boot in self.boots)]
