"""The state disk: an append-only log and a snapshot, on a raw disk of the host's, sealed.
docs/concepts/state.md.

Every append and every save is on the disk when it returns. A process or machine that is killed at
any point loses at most the record that it was writing. The host's alterations are noticed; that it
put back a whole older disk is not, from the disk alone: the epoch, one more at each boot, is in the
audit log for that. A disk has one writer: `state/device`.
"""

from __future__ import annotations

import functools
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from appliance.audit.sink import GROW
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.secure import stacks
from appliance.secure.derivation import hkdf_into
from appliance.state import frames, slots
from appliance.state.device import PAGE, Device, read
from appliance.state.frames import AUDIT, Frame, FrameReader, FrameSealer, Slot
from appliance.state.room import BOOT_BYTES, LogRoom
from appliance.state.slots import Slots
from appliance.state.snapshot import Snapshot

_BESIDE_QUOTAS = 1 << 14  # bytes of a snapshot for seeds of the log's periods and the list's version
MOST_QUOTAS = frames.MAX_SAVED - _BESIDE_QUOTAS  # bytes of a document of quotas, where nothing else has a place
_LEAST_LOG = 1 << 20  # bytes of the log's room that nothing may take


class StateDisk:
    """An open state disk. Safe to call from several threads. Close it to save the snapshot for the
    last time."""

    def __init__(self, path: Path, key: Secret, *, fresh: bool = False,
                 heard: Callable[[bytes], None] = lambda line: None,
                 first: Callable[[Device], None] = lambda device: None, most_saved: int = frames.MAX_SAVED) -> None:
        """Open, begin a new epoch, and take over the key, which `close` wipes. `fresh`: whatever is
        there is given up, which is what an ephemeral key means. A blank disk is formatted. `heard`
        gets each line of the audit log that is there. `first` writes what must be on the disk
        before that; `most_saved` bytes is the longest snapshot. Raises StateError."""
        self._heard, self._most_saved = heard, most_saved
        self.most_quotas = most_saved - _BESIDE_QUOTAS  # bytes of the longest document of quotas
        self._path, self._key = path, key
        self._lock = threading.RLock()
        self._broken = ""
        self._closed = False
        self.mark = b""  # of the table of keys of pages, as the log knows it: see `page_keys`
        self._device = Device(path)
        try:
            self._size = self._device.size
            require_size(path, self._size)
            first(self._device)
            self._slots = Slots(self._device, key)
            self.disk, self._slot = self._opened(fresh)
            self._slots.expect()
            self._last = self._device.read(self._slot.tail - frames.TAG_BYTES, frames.TAG_BYTES)
            self.torn = self._torn()
            _require_room(path, self.room)
            self._begin()
        except BaseException:
            self._device.close()
            stacks.wipe()
            raise

    @property
    def epoch(self) -> int:
        """How often this disk was opened, this time included."""
        return self._slot.epoch

    @property
    def records(self) -> int:
        """Records in the log, those of earlier epochs included."""
        return self._slot.sequence

    @property
    def saved(self) -> bytes:
        """The snapshot as it was saved last."""
        return self._slot.saved

    @functools.cached_property
    def snapshot(self) -> Snapshot:
        """The snapshot in its parts. StateError for one of another version."""
        return Snapshot(self.saved, self.save)

    @property
    def device(self) -> Device:
        """The open disk, for the part of it that is not the log's: see `reserve`."""
        return self._device

    @property
    def secret(self) -> bytearray:
        """The disk's key, not copied."""
        return self._key.data

    @property
    def end(self) -> int:
        """The byte behind the disk's last whole page."""
        return self._size // PAGE * PAGE

    def reserve(self, nbytes: int) -> int:
        """Take so many bytes at the disk's end out of the log's room; the byte where they begin.
        StateError where the log is there already, or would have no room."""
        begin = self.end - nbytes
        if begin < max(self._slot.tail + BOOT_BYTES, frames.LOG_AT + _LEAST_LOG):
            raise StateError(f"{self._path}: {self._size} bytes; {nbytes} of them are to keep sessions, beside the "
                             f"log's {max(self._slot.tail, frames.LOG_AT)}", code="state-full",
                             hint=f"lower prefix_cache.size of models with session_persistence, or {GROW}")
        self._size = begin
        return begin

    def lines(self) -> Iterator[bytes]:
        """Each line of the audit log that is there now, read and authenticated again. StateError
        where a record is not as it was written, or the disk is closed meanwhile."""
        with self._lock:
            count, reader = self.records, FrameReader(self._key.data, self.disk)
        while reader.sequence < count:
            with self._lock:
                if self._closed:
                    raise StateError(f"{self._path}: closed", code="state-broken")
                head = self._device.read(reader.tail, frames.HEAD_BYTES)
                frame = reader.accept(self._device.read(reader.tail, reader.frame_nbytes(head) or 0))
            if frame is None:
                raise StateError(f"{self._path}: record {reader.sequence} is not as it was written",
                                 code="state-tampered")
            if frame.kind == AUDIT:
                yield frame.payload

    def pin(self) -> None:
        """Note how far the log goes, so that its end cannot be cut off. Raises StateError."""
        with self._lock:
            self.save(self._slot.saved)

    def derive(self, purpose: bytes) -> bytearray:
        """Derive 32 bytes from the disk's secret, for one purpose; the caller wipes them."""
        return derive(self._key, self.disk, purpose)

    @property
    def free(self) -> int:
        """Bytes left for the log."""
        return self._size - self._slot.tail

    @property
    def room(self) -> LogRoom:
        """The log's room, and what is left of it."""
        return LogRoom(self._size - frames.LOG_AT, self.free)

    def append(self, kind: int, payload: bytes) -> int:
        """Write one record; its number. StateError when the disk is full, or failed before."""
        with self._lock:
            if self._broken:
                raise StateError(f"{self._path}: {self._broken}", code="state-broken",
                                 hint="the appliance must be restarted")
            slot = self._slot
            self._require_alone(self._frame_is_ours)
            if frames.frame_nbytes(kind, len(payload)) > self.free:  # before it is sealed: another may get this number
                raise StateError(f"{self._path}: full, {self.free} bytes are left", code="state-full",
                                 hint=GROW)
            frame = self._session.seal(slot.sequence, kind, payload, slot.chain)
            stacks.wipe()  # which costs little beside a disk that writes
            self._write(slot.tail, frame)
            self._last = frame[-frames.TAG_BYTES:]
            self._slot = replace(slot, sequence=slot.sequence + 1, tail=slot.tail + len(frame),
                                 chain=frames.next_chain(slot.chain, frame), session_salt=self._session.salt)
            return slot.sequence

    def save(self, snapshot: bytes) -> None:
        """Replace the snapshot, and note how far the log goes. StateError when it is too long or
        the disk fails."""
        with self._lock:
            if len(snapshot) > self._most_saved:
                raise StateError(f"{len(snapshot)} bytes to save, at most {self._most_saved}", code="state-full")
            slot = replace(self._slot, counter=self._slot.counter + 1, saved=snapshot)
            at, data = self._slots.seal(self.disk, slot)
            stacks.wipe()
            self._require_alone(self._slots.are_ours)
            self._write(at, data)
            self._slots.expect_written(at, data)
            self._slot = slot

    def close(self) -> None:
        """Note how far the log goes, wipe the key and what came of it. Closing twice does nothing.
        """
        with self._lock:
            if self._closed:
                return
            try:
                if not self._broken:
                    self.save(self._slot.saved)
            finally:
                self._device.close()
                self._closed = True
                self._broken = "closed"
                self._key.wipe()
                del self._session  # its key schedule, which OpenSSL wipes

    def wipe(self) -> None:
        """Wipe the key and what came of it, whatever another thread does with the disk; the process
        must end then."""
        self._key.wipe()
        self.__dict__.pop("_session", None)

    def _opened(self, fresh: bool) -> tuple[bytes, Slot]:
        """The newer of the slots that authenticate, brought forward to the log's end; or those of a
        new disk."""
        there = None if fresh else slots.read(
            self._path, self._key, self._device.read,
            "another key, or another disk, or somebody altered it; to begin anew, zero the disk")
        return self._format() if there is None else (there[0], self._recovered(*there))

    def _recovered(self, disk: bytes, found: list[Slot]) -> Slot:
        """The newer slot, with what was appended after it was saved. StateError where log and slots
        do not fit."""
        slot, log = found[-1], read_frames(self._device.descriptor, FrameReader(self._key.data, disk))
        for frame in slots.history(self._path, disk, found, log):
            if frame.kind == frames.AUDIT:
                self._heard(frame.payload)
            elif frame.kind == frames.PAGES:
                self.mark = frame.payload
            if frame.sequence < slot.sequence:
                continue
            epoch = int.from_bytes(frame.payload[:8], "little") if frame.kind == frames.SESSION else slot.epoch
            slot = replace(slot, epoch=max(slot.epoch, epoch), sequence=frame.sequence + 1, tail=frame.end,
                           chain=frame.chain, session_salt=frame.salt)
        return slot

    def _torn(self) -> int:
        """Bytes of a record that was being written when the power went, by its header or what there
        is of it; 0 where there is none."""
        reader, head = self._next(), self._device.read(self._slot.tail, frames.HEAD_BYTES)
        return reader.frame_nbytes(head) or reader.begun(head)

    def _next(self) -> FrameReader:
        """A reader of the record behind the last one."""
        slot = self._slot
        return FrameReader(self._key.data, self.disk, sequence=slot.sequence, tail=slot.tail, chain=slot.chain)

    def _format(self) -> tuple[bytes, Slot]:
        """A new disk: both slots and the first header of the log are made blank first, then slot 0
        is written."""
        for place in (0, frames.SLOT_BYTES, frames.LOG_AT):
            self._write(place, bytes(4096))
        disk = secrets.token_bytes(frames.ID_BYTES)
        slot = Slot(0, 0, 0, frames.LOG_AT, frames.chain_start(disk), bytes(frames.SALT_BYTES))
        self._write(*self._slots.seal(disk, slot))
        return disk, slot

    def _begin(self) -> None:
        """A new session: its frame carries the new epoch, and the slot after it."""
        self._slot = replace(self._slot, epoch=self._slot.epoch + 1)
        self._session = FrameSealer(self._key.data, self.disk, secrets.token_bytes(frames.SALT_BYTES))
        self.append(frames.SESSION, self.epoch.to_bytes(8, "little"))
        self.save(self._slot.saved)

    def _write(self, at: int, data: bytes) -> None:
        """Write all of it, and onto the disk. After a failure nothing is written any more: a number
        is sealed once."""
        try:
            self._device.write(at, data)
        except OSError as error:
            self._broken = f"a write failed: {error.strerror}"
            raise StateError(f"{self._path}: {error.strerror}", code="state-broken",
                             hint="see that the disk works; the appliance must be restarted") from None

    def _require_alone(self, ours: Callable[[], bool]) -> None:
        """StateError once another appliance has written to the disk, as on another machine: nothing
        more is written, for it would overwrite what the other one wrote."""
        if not ours():
            self._broken = "another appliance writes to this disk, or somebody altered it"
            raise StateError(f"{self._path}: {self._broken}", code="state-shared",
                             hint="give each appliance a disk of its own; the other one goes on with this one")

    def _frame_is_ours(self) -> bool:
        """Whether the log still ends with the last record that this one wrote or found."""
        size, reader = frames.TAG_BYTES + frames.HEAD_BYTES, self._next()
        near = self._device.read_anew(self._slot.tail - frames.TAG_BYTES, size + frames.MAX_SESSION_BYTES)
        nbytes = reader.frame_nbytes(near[frames.TAG_BYTES:size])
        begun = nbytes is not None and reader.accept(near[frames.TAG_BYTES:frames.TAG_BYTES + nbytes]) is not None
        return near[:frames.TAG_BYTES] == self._last and not begun


def _require_room(path: Path, room: LogRoom) -> None:
    """StateError where the log has no room for a boot's records; nothing is written then, so that
    the disk is as full at the next attempt."""
    if room.free < BOOT_BYTES:
        raise StateError(f"{path}: full: {room.free} of {room.whole + frames.LOG_AT} bytes are left, and a boot's "
                         f"records need {BOOT_BYTES}", code="state-full", hint=GROW)


def derive(key: Secret, disk: bytes, purpose: bytes) -> bytearray:
    """32 bytes from a disk's secret and id, for one purpose; the caller wipes them."""
    out = bytearray(32)
    hkdf_into(out, key.data, disk, frames.DOMAIN + purpose)
    return out


def read_frames(file: int, reader: FrameReader) -> Iterator[Frame]:
    """Every frame from where the reader stands to the end of the log."""
    while (size := reader.frame_nbytes(read(file, reader.tail, frames.HEAD_BYTES))) is not None:
        frame = reader.accept(read(file, reader.tail, size))
        if frame is None:
            return
        yield frame


def require_size(path: Path, nbytes: int) -> None:
    """Raise StateError for a disk that is too small."""
    if nbytes < frames.MIN_DISK_BYTES:
        raise StateError(f"{path}: {nbytes} bytes, at least {frames.MIN_DISK_BYTES} are needed", code="state-size")
