"""Open a regular file, or a disk where one will do, and nothing else; and never wait for the other
end of a FIFO."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class WrongKindError(OSError):
    """The opened file is of another kind; `mode` is its st_mode."""

    def __init__(self, path: Path, mode: int) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file", str(path))
        self.mode = mode


def open_file(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600, *, disk: bool = False
              ) -> tuple[int, os.stat_result]:
    """The descriptor of a regular file, or with `disk` of a block device, and what fstat(2) says of
    it.

    `flags` and `mode` are those of open(2); the descriptor is close-on-exec. Raises OSError where
    it cannot be opened, WrongKindError among it.
    """
    descriptor = os.open(path, flags | ALWAYS, mode)
    try:
        status = os.fstat(descriptor)
        if not (stat.S_ISREG(status.st_mode) or (disk and stat.S_ISBLK(status.st_mode))):
            raise WrongKindError(path, status.st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, status
