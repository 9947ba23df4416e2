"""Writing a large file so that no half file ever has its name.

The bytes go to `NAME.part` beside the file; when all are on the disk, one rename makes them the
file. A process that ends before leaves no file of the final name. A lock keeps two processes from
writing the same part.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import ModelError

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)  # of file systems without them, link(2)
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


class PartialFile:
    """`NAME.part` while it is written. Leaving the block closes it; only `finish` gives it its
    name."""

    def __init__(self, path: Path, *, mode: int, begins: bytes) -> None:
        """Open or make the part of `path` with permission bits `mode`. Raises ModelError if that
        fails, if `path` exists, if another process has the part, or if the file there does not
        begin with `begins`, as every part does."""
        if os.path.lexists(path):  # a link into nowhere, too: `finish` would not replace it
            raise ModelError(f"{path} exists", hint="remove it, or name another file")
        self.path, self.part, self._mode, self._stays = path, path.with_name(path.name + ".part"), mode, True
        self._descriptor = self._folder = -1
        self._claimed = False
        try:
            with self._disk("opened"):
                self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # `finish` needs it
                self._descriptor = self._opened(mode)
            self._claim(begins)
            self._claimed = True
        except BaseException:
            self.close()
            raise

    def _opened(self, mode: int) -> int:
        try:
            return open_file(self.part, _FLAGS, mode)[0]
        except WrongKindError:
            raise ModelError(f"{self.part} is not a regular file", hint="remove it, or name another file") from None

    def _claim(self, begins: bytes) -> None:
        """Lock the part. Raises ModelError if another process has it, or if the opened file is not
        a part."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(f"{self.part} is being written by another process",
                             hint="wait for it, or name another file") from None
        except OSError as error:
            raise ModelError(f"{self.part} cannot be locked: {error.strerror}", code="model-unwritable",
                             hint="name a file on a file system that has locks") from None
        here = os.fstat(self._descriptor)
        try:
            named = os.path.samestat(here, os.lstat(self.part))
        except FileNotFoundError:
            named = False
        if not named:  # the former holder of the lock named or removed it after it was opened here
            raise ModelError(f"{self.part} was finished or removed by another process just now",
                             hint="run the command again if what is wanted is not there")
        if here.st_nlink > 1:  # an end between the two names that `finish` gives; to write it would destroy the other
            raise ModelError(f"{self.part} is another file, too: it has {here.st_nlink} names",
                             hint="remove this one, or name another file")
        with self._disk("read"):
            start = os.pread(self._descriptor, len(begins), 0)
        if not begins.startswith(start):
            raise ModelError(f"{self.part} is not what this command left: it begins otherwise",
                             hint="move it away, or name another file")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the part, which stays unless it is empty, and give up its lock."""
        if self._claimed and os.fstat(self._descriptor).st_size == 0:
            self.discard()
        self._claimed = False
        for descriptor in (self._descriptor, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._folder = -1

    @contextlib.contextmanager
    def _disk(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            hint = ("the part stays; run the command again to go on when the disk has room"
                    if self._stays else "nothing of it stays; run the command again when the disk has room")
            if error.errno == errno.ENAMETOOLONG:
                hint = "choose a shorter name, with room for .part behind it"
            elif self._descriptor < 0:
                hint = "name a file in a folder that can be read and written"
            elif isinstance(error, FileExistsError):
                hint = "remove what came meanwhile, or name another file"
            raise ModelError(f"{self.part} cannot be {what}: {error.strerror or error}", code="model-unwritable",
                             hint=hint) from None

    @property
    def size(self) -> int:
        """Size of the part in bytes."""
        return os.fstat(self._descriptor).st_size

    def demand(self, nbytes: int) -> None:
        """Check that the file system has room for a part of `nbytes` bytes. Raises ModelError if
        not."""
        free = shutil.disk_usage(self.part.parent).free
        missing = nbytes - os.fstat(self._descriptor).st_blocks * 512 - free
        if missing > 0:
            raise ModelError(f"{self.part} needs {nbytes} bytes; the file system lacks {missing}",
                             code="model-unwritable", hint="make room, or name a file on another disk")

    def anew(self) -> None:
        """Replace the part by a new file. Owner, mode and readers of the old one are not of our
        choice."""
        self._stays = False
        with self._disk("made"):
            self.part.unlink()
            descriptor = os.open(self.part, _FLAGS | os.O_EXCL, self._mode)
            os.close(self._descriptor)
            self._descriptor = descriptor
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def truncate(self, nbytes: int) -> None:
        """Cut the part to `nbytes` bytes."""
        with self._disk("cut"):
            os.ftruncate(self._descriptor, nbytes)

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        while len(view):
            with self._disk("written"):
                count = os.pwrite(self._descriptor, view, offset)
            view = view[count:]
            offset += count

    def finish(self) -> None:
        """Bring the part to the disk and give it its name."""
        with self._disk("completed"):
            os.fsync(self._descriptor)
            self._rename()
            os.fsync(self._folder)

    def _rename(self) -> None:
        """Give the part its name, refusing a file that has come since; where there are no links,
        without that."""
        try:
            os.link(self.part, self.path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.part.replace(self.path)
        else:
            self.part.unlink()

    def discard(self) -> None:
        """Remove the part."""
        with contextlib.suppress(OSError):
            self.part.unlink()
