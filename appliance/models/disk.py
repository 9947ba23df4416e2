"""Reading a file once, front to back, from a disk that may lie.

The size is fixed when the file is opened; a file that turns out shorter or longer is refused, and no byte is ever
read twice, because a second read may bring other bytes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from appliance.errors import FormatError, ModelError, TamperedError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

CHUNK_NBYTES = 4 << 20  # per read: large enough for the disk, small enough to be still in cache when it is hashed


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of the file at `path` name it: its parsers know bytes alone."""
    try:
        yield
    except ModelError as error:
        _name(path, error)
        raise


def _name(path: Path, error: BaseException) -> None:
    if isinstance(error, ModelError) and not re.search(rf"(?<!\w){re.escape(str(path))}(?!\w)", error.summary):
        error.summary = f"{path}: {error.summary}"


def open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file to read: its descriptor, and its size in bytes. ModelError when it cannot be opened or is
    something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not wait for its writer
    except OSError as error:
        raise ModelError(f"{path} cannot be opened: {error.strerror or error}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ModelError(f"{path} is {_kind(status.st_mode)}; allowed: a regular file")
    return descriptor, status.st_size


class DiskFile:
    """A regular file, read sequentially. ModelError for whatever the disk does. Errors that leave the block name the
    file, whatever is wrong with its bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor, self.size = open_regular(path)
        self.offset = 0  # bytes read so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        os.close(self._descriptor)
        if error is not None:
            _name(self.path, error)

    def read_into(self, view: memoryview) -> None:
        """Fill `view` with the next bytes; TamperedError when the file ends before, ModelError for the disk."""
        while len(view):
            try:
                count = os.readv(self._descriptor, [view])
            except OSError as error:
                raise self._unreadable(error) from None
            if count == 0:
                raise TamperedError(f"{self.path} ended at byte {self.offset} while it was read; "
                                    f"its size was {self.size} when it was opened",
                                    hint="the file must not change while it is loaded")
            self.offset += count
            view = view[count:]

    def chunks(self, progress: Progress | None = None) -> Iterator[memoryview]:
        """The whole file, piece by piece; each is valid until the next. Refuses a file that goes on."""
        buffer = memoryview(bytearray(min(CHUNK_NBYTES, self.size)))
        while self.offset < self.size:
            part = buffer[:self.size - self.offset]
            self.read_into(part)
            yield part
            if progress is not None:
                progress(self.offset, self.size)
        self.expect_end()

    def expect_end(self) -> None:
        """Refuse with FormatError a file that goes on after `size` bytes."""
        try:
            more = os.read(self._descriptor, 1)
        except OSError as error:
            raise self._unreadable(error) from None
        if more:
            raise FormatError(f"{self.path} goes on after byte {self.offset}, its size when it was opened",
                              hint="the file must not change while it is loaded")

    def _unreadable(self, error: OSError) -> ModelError:
        return ModelError(f"{self.path} cannot be read at byte {self.offset}: {error.strerror or error}",
                          code="model-unreadable")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
             stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device"}
    return kinds.get(stat.S_IFMT(mode), "not a regular file")
