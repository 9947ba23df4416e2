"""Frames between the boot and its key release process: a kind, a length, and so many bytes, over a
pair of pipes.

Bytes are read into one buffer that the reader owns and can wipe; no file, argument or environment
variable ever holds them. Each side treats what the other sends as input: kind and length are
checked before anything is read.
"""

from __future__ import annotations

import os
import select
import struct
import time

from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe

REACH, REACHED = b"R", b"H"
TASK, NONCE, EVIDENCE, ANSWER, KEY, SEALED, REFUSAL = b"T", b"N", b"E", b"A", b"K", b"S", b"X"
MAX_BYTES = {REACH: 1 << 16, REACHED: 8192, TASK: 1 << 16,
             NONCE: 2048, EVIDENCE: 1 << 21, ANSWER: 32, KEY: 4096, SEALED: 1024, REFUSAL: 8192}
_HEAD = struct.Struct(">cI")


class PipeError(Exception):
    """The other side ended, is silent beyond the deadline, or sent what it must not; the text says
    which."""


class Pipe:
    """Two file descriptors, used in turns: one side speaks, the other waits."""

    def __init__(self, reader: int, writer: int, deadline: float | None = None) -> None:
        """`deadline` on the monotonic clock; None waits forever."""
        self._reader, self._writer, self._deadline = reader, writer, deadline

    def send(self, kind: bytes, body: bytes | bytearray) -> None:
        """Write one frame whole. PipeError when the other side is gone."""
        if len(body) > MAX_BYTES[kind]:
            raise PipeError(f"a frame of {len(body)} bytes is too long")
        try:
            for part in (_HEAD.pack(kind, len(body)), body):
                view = memoryview(part)
                while view:
                    self._wait(select.POLLOUT, self._writer)
                    view = view[os.write(self._writer, view[:4096]):]  # a ready pipe takes so many without waiting
        except OSError:
            raise PipeError("it ended early") from None

    def receive(self, *kinds: bytes) -> tuple[bytes, bytearray]:
        """One frame of one of these kinds; the caller wipes what is secret. PipeError for anything
        else."""
        head = self._exactly(_HEAD.size)
        kind, length = _HEAD.unpack(head)
        if kind not in kinds or length > MAX_BYTES[kind]:
            raise PipeError("it sent what was not asked for")
        return kind, self._exactly(length)

    def _exactly(self, count: int) -> bytearray:
        buffer = SecretBytes(count)
        view, got = memoryview(buffer), 0
        try:
            while got < count:
                self._wait(select.POLLIN, self._reader)
                step = os.readv(self._reader, [view[got:]])
                if step == 0:
                    raise PipeError("it ended early")
                got += step
        except (OSError, PipeError) as error:
            view.release()
            wipe(buffer)
            raise error if isinstance(error, PipeError) else PipeError("it ended early") from None
        return buffer

    def _wait(self, event: int, descriptor: int) -> None:
        if self._deadline is None:
            return
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(0, round(1000 * (self._deadline - time.monotonic())))):
            raise PipeError("it did not end in time")
