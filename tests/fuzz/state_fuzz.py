"""Fuzz target: state disks that the host altered. The first byte says whether the rest is a slot or a log."""

from __future__ import annotations

from appliance.state import frames
from tests.support import state_by_spec
from tests.support.state_log import frames_of

SECRET, DISK = bytes(range(1, 33)), b"fuzzed disk 0001"
RECORDS = [(frames.SESSION, (1).to_bytes(8, "little")), (frames.AUDIT, b'{"a":1}\n'), (frames.AUDIT, b"x" * 300),
           (frames.SESSION, (2).to_bytes(8, "little")), (frames.AUDIT, b"last\n")]


def log() -> bytes:
    """A log of two sessions."""
    session, chain, data = frames.FrameSealer(SECRET, DISK, b"s" * 32), frames.chain_start(DISK), b""
    for number, (kind, payload) in enumerate(RECORDS):
        if kind == frames.SESSION:
            session = frames.FrameSealer(SECRET, DISK, bytes([number]) * 32)
        frame = session.seal(number, kind, payload, chain)
        chain, data = frames.next_chain(chain, frame), data + frame
    return data


def slot() -> bytes:
    """A slot."""
    of = frames.Slot(7, 2, 5, frames.LOG_AT + 99, b"c" * 32, b"s" * 32, b"{}")
    return frames.seal_slot(SECRET, DISK, b"t" * 32, of)


def fuzz(data: bytes) -> None:
    """Read; only a prefix of the genuine records may come out, and both readers must find the same."""
    if data[:1] == b"\0":
        found = frames.open_slot(SECRET, data[1:])
        if found is not None and data[1:].startswith(slot()[:64]) and found[1].saved != b"{}":
            raise AssertionError("opened what nobody sealed")
        if found is not None and not data[1:].startswith(slot()):
            raise AssertionError("opened what nobody sealed")
        return
    read = [(frame.kind, frame.payload) for frame in frames_of(frames.FrameReader(SECRET, DISK), data[1:])]
    if read != RECORDS[:len(read)]:
        raise AssertionError("read what nobody wrote")
    if read != state_by_spec.log(SECRET, DISK, data[1:]):
        raise AssertionError("two readers find two logs")


def seeds() -> list[bytes]:
    """A slot and a log."""
    return [b"\0" + slot(), b"\1" + log(), b"\1" + log() + bytes(100)]
