"""Whether what is on a state disk is one history: every record from the first on, and both slots in
their places.

Two appliances that write to one disk, each from its own idea of where the log ends, overwrite each
other's records and slots. The rest authenticates in part, since both have the key, but it does not
fit together. That damage is looked for here. A host that puts back parts of an older copy leaves
the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from appliance.codec.printable import quantity
from appliance.errors import StateError
from appliance.state import format as form
from appliance.state.format import Frame, Slot

_KEEP = "keep a copy of the disk for an audit, and zero it to begin anew"


def checked(path: Path, disk: bytes, slots: Iterable[Slot], frames: Iterable[Frame]) -> Iterator[Frame]:
    """The frames of the whole log, each once what the slots say of it was found true. StateError at
    what does not fit together: `state-forked` where the disk has two histories, `state-tampered`
    where the log ends too early."""
    slots = sorted(slots, key=lambda slot: slot.counter)
    newest, count, end = slots[-1], 0, form.LOG_AT
    _in_order(path, slots)
    _placed(path, slots, 0, form.chain_start(disk))
    for frame in frames:
        count, end = count + 1, frame.end
        _placed(path, slots, count, frame.chain)
        yield frame
    if count < newest.sequence:
        raise StateError(f"{path}: {quantity(count, 'authentic record')}, but {newest.sequence} written; byte {end} of "
                         "the disk begins none that follows", code="state-tampered",
                         hint=f"two appliances wrote to the disk at once, or somebody cut or altered its log: {_KEEP}")


def _in_order(path: Path, slots: list[Slot]) -> None:
    """A record that is later by its counter is not earlier by anything else, and one session has
    one epoch."""
    for older, newer in pairwise(slots):
        same = older.session_salt == newer.session_salt
        if older.epoch > newer.epoch or older.sequence > newer.sequence or (
                older.epoch == newer.epoch and any(older.session_salt) and not same):
            raise _forked(path, f"its two slots, of epochs {older.epoch} and {newer.epoch}, do not follow each other")


def _placed(path: Path, slots: list[Slot], count: int, chain: bytes) -> None:
    for slot in slots:
        if slot.sequence == count and slot.chain != chain:
            raise _forked(path, f"the slot of epoch {slot.epoch} knows another record {count - 1} than the log has")


def _forked(path: Path, what: str) -> StateError:
    return StateError(f"{path}: two histories: {what}", code="state-forked",
                      hint=f"two appliances wrote to it at once, or a part of an older copy was put back: {_KEEP}")
