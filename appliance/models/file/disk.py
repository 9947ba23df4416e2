"""Reading a file from a disk that may lie: the caller authenticates what it gets.

A second read may bring other bytes, so a file is hashed by reading each byte once, as `chunks`
does. The size is fixed when the file is opened. A file that turns out shorter is refused, and
`expect_end` refuses a longer one.

The file is never mapped: a mapped file that is cut short kills the process, and mapped bytes change
after they were checked. Each read goes into memory that only this process has.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import re
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from appliance import optional
from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import FormatError, ModelError, TamperedError

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

CHUNK_NBYTES = 4 << 20  # per read: large enough for the disk, small enough to be still in cache when it is hashed
BLOCK = 4096
"""Reads past the page cache begin and end at a multiple of this."""

_PROBES = 64


class RandomFile:
    """A regular file, read by offset from any thread. `size` is what it was when it was opened.
    Errors that leave its `with` block name it, whatever is wrong with its bytes."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises ModelError if it cannot be opened or is not a regular file."""
        self.path = path
        self._descriptor, self.size = _open_regular(path)
        self.parts: tuple[tuple[int, int], ...] = ((0, self.size),)
        """First byte and bytes of each file that it is made of: one, unless it is sharded."""
        self.direct = False
        """Whether reads go past the page cache."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()
        if isinstance(error, ModelError) and not any(
                re.search(rf"(?<!\w){re.escape(str(path))}(?!\w)", error.summary) for path in self.paths):
            error.summary = f"{self.path}: {error.summary}"

    @property
    def descriptor(self) -> int:
        """For advice to the kernel; -1 after `close`."""
        return self._descriptor

    def place(self, offset: int) -> tuple[int, int, int]:
        """Return the descriptor that has the byte at `offset`, its place there, and bytes from
        there to the end."""
        return self._descriptor, offset, self.size - offset

    @property
    def paths(self) -> tuple[Path, ...]:
        """Each file that it is made of."""
        return tuple(self.named(start)[0] for start, _ in self.parts)

    def named(self, offset: int) -> tuple[Path, int]:
        """Return the file that has the byte at `offset`, and its place there: for errors."""
        return self.path, offset

    def bypass_cache(self) -> None:
        """From here on read past the page cache: offsets, sizes and buffers must be multiples of
        4096 bytes. Raises ModelError if the file system cannot; reads go through the page cache
        then.
        """
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
            with mmap.mmap(-1, BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
                os.preadv(self._descriptor, [block], 0)  # some file systems take the flag and then refuse to read
        except OSError as error:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)
            raise ModelError(f"{self.path} cannot be read past the page cache: {error.strerror or error}") from None
        self.direct = True

    def again(self) -> RandomFile:
        """The same file, whatever has its name by now, opened a second time. Raises ModelError if
        that cannot be."""
        found = RandomFile(Path(f"/proc/self/fd/{self._descriptor}"))
        found.path = self.path
        return found

    def cached(self) -> bool:
        """Whether the page cache has the file, as far as pages from all over it tell."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # a page that is not there brings no others
        try:
            with mmap.mmap(-1, BLOCK, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
                before = _blocks_read()  # a busy disk may make even such reads wait, and succeed
                return all(os.preadv(self._descriptor, [page], self.size * probe // _PROBES // BLOCK * BLOCK,
                                     os.RWF_NOWAIT) and before == _blocks_read() for probe in range(_PROBES))
        except OSError:  # it would have to wait, or the file system cannot tell
            return False
        finally:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_NORMAL)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from byte `offset` on. Raises TamperedError if the file ends before,
        ModelError for the disk."""
        if self._descriptor < 0:
            raise ModelError(f"{self.path} was closed")
        while len(view):
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                if self.direct and offset % BLOCK:  # where the read before it met the end
                    raise self.ended(offset) from None
                raise self.unreadable(offset, error.strerror or str(error)) from None
            if count == 0:
                raise self.ended(offset)
            view = view[count:]
            offset += count

    def chunks(self, progress: Progress | None = None) -> Iterator[memoryview]:
        """Yield the whole file, piece by piece; each is valid until the next. Refuses a file that
        goes on."""
        buffer = memoryview(bytearray(min(CHUNK_NBYTES, self.size)))
        for start in range(0, self.size, CHUNK_NBYTES):
            part = buffer[:self.size - start]
            self.read_into(part, start)
            yield part
            if progress is not None:
                progress(start + len(part), self.size)
        self.expect_end()

    def expect_end(self) -> None:
        """Refuse with FormatError a file that goes on after `size` bytes."""
        with contextlib.suppress(TamperedError):
            self.read_into(memoryview(bytearray(1)), self.size)
            raise FormatError(f"{self.path} goes on after byte {self.size}, its size when it was opened",
                              hint="the file must not change while it is loaded")

    def unreadable(self, offset: int, why: str) -> ModelError:
        """Return the error of a read that failed."""
        if self._descriptor < 0:
            return ModelError(f"{self.path} was closed")
        return ModelError(f"{self.path} cannot be read at byte {offset}: {why}", code="model-unreadable")

    def ended(self, offset: int) -> TamperedError:
        """Return the error of a file that became shorter."""
        return TamperedError(f"{self.path} ends at byte {offset}; its size was {self.size} when it was opened",
                             hint="the file must not change while it is in use")

    def close(self) -> None:
        """Close the file; reads fail from here on."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _open_regular(path: Path) -> tuple[int, int]:
    """Open a regular file to read: its descriptor, and its size in bytes. Raises ModelError if it
    cannot be opened or is something else."""
    try:
        descriptor, status = open_file(path)
    except WrongKindError as error:
        raise ModelError(f"{path} is {_kind(error.mode)}; allowed: a regular file", hint=_folder_hint(path)
                         if stat.S_ISDIR(error.mode) else None) from None
    except OSError as error:
        raise ModelError(f"{path} cannot be opened: {error.strerror or error}") from None
    return descriptor, status.st_size


def _folder_hint(path: Path) -> str | None:
    """Return the hint for a folder in the place of a file."""
    files = optional.find("mistakes", "files")
    return None if files is None else str(files.folder_hint(path))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket",
             stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device"}
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def _blocks_read() -> int:
    """Return the blocks that this thread has had read from disks so far (getrusage(2)), where the
    kernel counts them."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def fitting(buffer: Any, nbytes: int) -> memoryview:
    """Return the first `nbytes` bytes of a writable buffer. Raises FormatError if it is too small
    or read-only.
    """
    view = memoryview(buffer).cast("B")
    if view.readonly or len(view) < nbytes:
        raise FormatError(f"{nbytes} bytes do not fit into a {'read-only ' if view.readonly else ''}"
                          f"buffer of {len(view)}")
    return view[:nbytes]


class ThreadBuffer:
    """A page-aligned buffer of `nbytes` for each thread that asks, made when it first does."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = max(nbytes, 1)
        self._local = threading.local()

    def view(self, nbytes: int) -> memoryview:
        """Return the first `nbytes` bytes of this thread's buffer, which keeps what was in it."""
        found: memoryview | None = getattr(self._local, "view", None)
        if found is None:
            found = self._local.view = memoryview(mmap.mmap(-1, self._nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        return found[:nbytes]
