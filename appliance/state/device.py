"""The state disk's device: opened for this process alone, and read again for traces of another one.

A lock keeps out every process of one kernel. Another machine that has the same disk takes no lock
of ours. So the places where its first writes would be are read anew before each write, past the
page cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import weakref
from pathlib import Path

from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import StateError

PAGE = 4096
_USED = "another process uses it: an appliance, or a file system that is mounted from it"
_ALONE = "stop the other one, or give each appliance a disk of its own"


class Device:
    """An open disk. It is closed, and its lock goes, with the object at the latest."""

    def __init__(self, path: Path) -> None:
        """StateError when it cannot be opened, is neither a disk nor a file, or another process has
        it."""
        self._path = path
        self.descriptor = _open(path)
        self._close = weakref.finalize(self, os.close, self.descriptor)
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise StateError(f"{path}: {_USED}", code="state-in-use", hint=_ALONE) from None
            raise StateError(f"{path} cannot be locked: {error.strerror}", code="state-absent",
                             hint="use a disk, or a file on a file system that has locks") from None

    @property
    def size(self) -> int:
        """Bytes."""
        return os.lseek(self.descriptor, 0, os.SEEK_END)

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes, fewer at the end of the disk. StateError when it fails."""
        return read(self.descriptor, at, size)

    def read_anew(self, at: int, size: int) -> bytes:
        """As `read`, but from the disk itself: another machine may have written to it since the
        kernel read it."""
        first = at // PAGE * PAGE
        os.posix_fadvise(self.descriptor, first, -(-(at + size) // PAGE) * PAGE - first, os.POSIX_FADV_DONTNEED)
        return self.read(at, size)

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Write all of it, and onto the disk. OSError when it fails."""
        done, view = 0, memoryview(data)
        while done < len(data):
            done += os.pwrite(self.descriptor, view[done:], at + done)
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Close it. Closing twice does nothing."""
        self._close()


def read(descriptor: int, at: int, size: int) -> bytes:
    """`size` bytes of an open disk, fewer at its end. StateError when it fails."""
    found = b""
    try:
        while len(found) < size and (more := os.pread(descriptor, size - len(found), at + len(found))):
            found += more
    except OSError as error:
        raise StateError(f"state disk: {error.strerror}", code="state-broken") from None
    return found


def _open(path: Path) -> int:
    try:
        # A disk is claimed by O_EXCL, under whatever name others have it; for a file the lock does
        # as much.
        claim = os.O_EXCL if stat.S_ISBLK(path.stat().st_mode) else 0
        return open_file(path, os.O_RDWR | claim, disk=True)[0]
    except WrongKindError:
        raise StateError(f"{path} is neither a disk nor a file", code="state-absent") from None
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise StateError(f"{path}: {_USED}", code="state-in-use", hint=_ALONE) from None
        raise StateError(f"{path}: {error.strerror}", code="state-absent",
                         hint="attach a writable disk, or leave the state block out") from None
