"""A state disk read without writing, for an auditor: everything on it, and whether more follows."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import StateError
from appliance.keys.providers import Secret
from appliance.state import frames, slots
from appliance.state.device import read
from appliance.state.disk import read_frames
from appliance.state.frames import Frame, FrameReader, Slot


def examine(path: Path, key: Secret) -> tuple[bytes, Slot, list[Frame]]:
    """Everything on a disk, from its first frame on, without writing: its id, the newer slot, every
    record.

    Raises StateError if it cannot be read or nothing opens, or if the log is not the one that the
    slot knows."""
    try:
        file, _ = open_file(path, disk=True)
    except WrongKindError:
        raise StateError(f"{path} is neither a disk nor a regular file") from None
    except OSError as error:
        raise StateError(f"{path} cannot be opened: {error.strerror}") from None
    try:
        there = slots.read(path, key, partial(read, file), "is it the right key, and the right disk?")
        if there is None:
            raise StateError(f"{path} is blank: no boot has begun to use it", hint="is it the right disk?")
        disk, both = there
        return disk, both[-1], list(slots.history(path, disk, both, read_frames(file, FrameReader(key.data, disk))))
    finally:
        os.close(file)


def followed(path: Path, log: list[Frame]) -> bool:
    """Tell whether bytes follow the last record of a disk that `examine` read: one that was being
    written, what was there before, or records that were altered behind what the slot knows."""
    with path.open("rb") as file:
        file.seek(log[-1].end if log else frames.LOG_AT)
        return any(file.read(frames.HEAD_BYTES))
