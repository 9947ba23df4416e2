"""The audit log as it is on the state disk, for those who may read it. Where a TPM keeps the disk's
key, nobody can read a copy of the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from appliance.api.problems import RequestError
from appliance.state.disk import StateDisk

PIECE_BYTES = 64 << 10  # that are read at once, and a line more


class HeldLog:
    """The log on one disk, and who reads it: one request at a time, since each reads from the first
    record."""

    def __init__(self, disk: StateDisk | None) -> None:
        """`disk` None: the log is elsewhere."""
        self._disk = disk
        self._read = False

    def open(self) -> AsyncIterator[bytes]:
        """Every line that is on the disk now, in pieces; `leave` once that was called.

        Raises RequestError `not_found`, or `too_many_requests` while another one reads."""
        if self._disk is None:
            raise RequestError("not_found", 'the audit log is not on a state disk: sink = "state" in the policy')
        if self._read:
            raise RequestError("too_many_requests", "another request reads the log: retry later")
        self._read = True
        return _pieces(self._disk.lines())

    def leave(self) -> None:
        """Let the next one read."""
        self._read = False


async def _pieces(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(_piece, lines):
        yield piece


def _piece(lines: Iterator[bytes]) -> bytes:
    held = bytearray()
    for line in lines:
        held += line
        if len(held) >= PIECE_BYTES:
            break
    return bytes(held)
