"""A file that somebody named on a command line or in a policy, read without waiting for ever.

Opening a FIFO waits for its other end, which may never come. A pipe that somebody writes, such as
`<(command)` of a shell, is read like a file; one that nobody writes is an error.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

CHUNK = 1 << 20
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
UNWRITTEN = "it is a FIFO that nobody writes to"


def read(path: Path, most: int) -> bytes:
    """At most `most` bytes of a file. OSError where it cannot be read, or is a FIFO that nobody
    writes to."""
    descriptor = os.open(path, _FLAGS)
    try:
        data = b"" if stat.S_ISREG(os.fstat(descriptor).st_mode) else _first(descriptor, path, most)
        while len(data) < most and (more := os.read(descriptor, min(most - len(data), CHUNK))):
            data += more
        return data
    finally:
        os.close(descriptor)


def _first(descriptor: int, path: Path, most: int) -> bytes:
    """The bytes that a pipe holds already; it waits for its writer from now on. A pipe without a
    writer is at its end at once."""
    try:
        data = os.read(descriptor, min(most, CHUNK))
    except BlockingIOError:
        data = None
    if data == b"" and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENXIO, UNWRITTEN, str(path))
    os.set_blocking(descriptor, True)
    return data or b""


def require_regular(path: Path) -> None:
    """OSError, with `strerror`, for anything but a regular file: for a library that opens the file
    by itself."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
