"""The log of a state disk that is in memory whole."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.state.frames import HEAD_BYTES, Frame, FrameReader


def frames_of(reader: FrameReader, data: bytes) -> Iterator[Frame]:
    """Every frame of a log that is in memory whole, from where the reader stands; `data` begins
    there."""
    at = 0
    while (size := reader.frame_nbytes(data[at:at + HEAD_BYTES])) is not None:
        frame = reader.accept(data[at:at + size])
        if frame is None:
            return
        yield frame
        at += size
