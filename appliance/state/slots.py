"""The two slots of a state disk: which of them counts, and whether they and the log are one history
from the first record on.

Two appliances that write to one disk, each from its own idea of where the log ends, overwrite each
other's records and slots. The rest authenticates in part, since both have the key, but it does not
fit together. That damage is looked for here. A host that puts back parts of an older copy leaves
the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

from appliance.codec.printable import quantity
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.state import frames
from appliance.state.device import Device
from appliance.state.frames import Frame, Slot

_KEEP = "keep a copy of the disk for an audit, and zero it to begin anew"
_AT = (0, frames.SLOT_BYTES)

Read = Callable[[int, int], bytes]
"""Reads so many bytes of a disk, from a place on."""


class Slots:
    """The slots of an open disk. Each is written in the place of the older one."""

    def __init__(self, device: Device, key: Secret) -> None:
        self._device, self._key = device, key
        self._heads = [b"", b""]  # as they must still be when the next is written

    def seal(self, disk: bytes, slot: Slot) -> tuple[int, bytes]:
        """The place of a slot, and its bytes there."""
        data = frames.seal_slot(self._key.data, disk, secrets.token_bytes(frames.SALT_BYTES), slot)
        return _AT[slot.counter % 2], data

    def expect(self) -> None:
        """Note how both are now."""
        self._heads = [self._device.read(at, frames.SLOT_HEAD_BYTES) for at in _AT]

    def expect_written(self, at: int, data: bytes) -> None:
        """Note what was written in a place."""
        self._heads[_AT.index(at)] = data[:frames.SLOT_HEAD_BYTES]

    def are_ours(self) -> bool:
        """Whether both are those that this process wrote or found."""
        return self._heads == [self._device.read_anew(at, frames.SLOT_HEAD_BYTES) for at in _AT]


def read(path: Path, key: Secret, read_at: Read, hint: str) -> tuple[bytes, list[Slot]] | None:
    """The disk's id and the slots that authenticate, the newest last; None for a blank disk.
    StateError where none does, with the `hint`, or they are of two disks."""
    parts = [read_at(at, frames.SLOT_BYTES) for at in _AT]
    opened = [pair for part in parts if (pair := frames.open_slot(key.data, part)) is not None]
    if not opened and _are_blank(parts, read_at(frames.LOG_AT, frames.HEAD_BYTES)):
        return None
    if not opened:
        raise StateError(f"{path}: neither slot opens", code="state-tampered", hint=hint)
    if len({disk for disk, _ in opened}) > 1:
        raise StateError(f"{path}: the slots are of two disks", code="state-tampered")
    return opened[0][0], sorted((slot for _, slot in opened), key=lambda slot: slot.counter)


def is_blank(device: Device) -> bool:
    """Whether a disk is one that a boot would format."""
    return _are_blank([device.read(at, 4096) for at in _AT], device.read(frames.LOG_AT, frames.HEAD_BYTES))


def _are_blank(slots: list[bytes], log: bytes) -> bool:
    """Whether a disk is blank, or was left in the middle of its formatting: the other slot and the
    log are blank."""
    first, second = slots
    begun = first[:8].rstrip(b"\0")
    blank = begun == frames.SLOT_MAGIC or (frames.SLOT_MAGIC.startswith(begun) and not any(first[8:4096]))
    return blank and not any(second[:4096]) and not any(log)


def history(path: Path, disk: bytes, slots: Iterable[Slot], log: Iterable[Frame]) -> Iterator[Frame]:
    """The frames of the whole log, each once what the slots say of it was found true. StateError at
    what does not fit together: `state-forked` where the disk has two histories, `state-tampered`
    where the log ends too early."""
    slots = sorted(slots, key=lambda slot: slot.counter)
    newest, count, end = slots[-1], 0, frames.LOG_AT
    _in_order(path, slots)
    _placed(path, slots, 0, frames.chain_start(disk))
    for frame in log:
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
