"""Where the lines of an audit log go: standard output, or a file that is appended to."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, runtime_checkable

from appliance.audit.chain import Chain
from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import AuditError

GROW = ("make the disk larger while the appliance is off, and start it again: the log goes on, and nothing is lost "
        "(docs/concepts/state.md, \"Growing\")")
AUDIT_FULL = "audit-full"  # the code of an error: a record found no room; the log goes on as soon as there is some
_REGULAR = "name a regular file, or leave --log out and pipe standard output to what collects it"


class Sink(Protocol):
    """Where lines go: any binary file that is not buffered will do."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        ...

    def write(self, data: bytes, /) -> int | None:
        """Write one line; how much of it was taken, None: nothing. OSError when it fails."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


@runtime_checkable
class LimitedSink(Protocol):
    """A sink that keeps a part of its room for the log's own records."""

    def room(self, *, own: bool) -> int:
        """How many bytes a record may take: one of the log's own, or another."""
        ...


class Outlet:
    """A sink as a log writes to it. After a failure it takes no further line: its last may be
    cut."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._broken = ""  # why, once a record could not be written

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._sink.closed

    @property
    def limited(self) -> bool:
        """Whether it keeps a part of its room for the log's own records."""
        return isinstance(self._sink, LimitedSink)

    @property
    def lasting(self) -> bool:
        """Whether lines are on the disk only after `flush`."""
        return isinstance(self._sink, Lasting)

    def fail(self, why: str) -> AuditError:
        """End it; the error to raise."""
        self._broken = self._broken or why
        return AuditError(f"audit log: {self._broken}", hint="see that the disk has room and that whoever reads the "
                          "log goes on, then start the appliance again")

    def require_open(self) -> None:
        """AuditError where nothing can be written any more."""
        if self._sink.closed:
            raise AuditError("audit log: it is closed", hint="the appliance must be restarted")
        if self._broken:
            raise self.fail(self._broken)

    def require_room(self, nbytes: int, *, own: bool) -> None:
        """Raise AuditError if a record of so many bytes finds no room. One of the log's own ends
        it."""
        if self._broken or not isinstance(self._sink, LimitedSink) or nbytes <= self._sink.room(own=own):
            return
        if own:
            self._broken = "its disk is full"
        raise AuditError("audit log: its disk is full", code=None if own else AUDIT_FULL, hint=GROW)

    def write(self, line: bytes) -> None:
        """Append one whole line. AuditError where it cannot be."""
        self.require_open()
        try:
            if self._sink.write(line) != len(line):
                self._broken = "the sink took a part of a record"
        except OSError as error:
            self._broken = error.strerror or "it cannot be written"
        if self._broken:
            raise self.fail(self._broken)

    def flush(self) -> None:
        """Return once every line so far is on the disk, where it is a file. AuditError."""
        try:
            if isinstance(self._sink, Lasting) and not self._sink.closed:
                self._sink.sync()
        except OSError as error:
            self._broken = error.strerror or "it cannot be flushed"
            raise AuditError(f"audit log: {self._broken}", hint="see that its disk works, then start the appliance "
                             "again") from None

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()


def open_sink(path: Path | None) -> BinaryIO:
    """A sink that appends: a file of mode 0600 (a link or another's file is refused), or standard
    output for None.

    Raises AuditError when the file cannot be opened.
    """
    if path is None:
        return _Standard(os.dup(sys.stdout.fileno()), "ab")
    descriptor, size = _opened(path)
    sink = os.fdopen(descriptor, "ab", buffering=0)
    with _closing_on_error(path, sink):
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            sink.write(b"\n")  # a record that was cut, as where the disk was full: the next begins on a line of its own
    return sink


def open_chained(path: Path | None, chain: Chain) -> tuple[Sink, int]:
    """A sink as `open_sink` has it, for a chained log; and how many bytes of a torn record were cut
    off.

    `chain` follows the records that are there. Raises AuditError when the file cannot be opened, or
    its records do not follow each other.
    """
    if path is None:
        return open_sink(None), 0
    descriptor, _ = _opened(path)
    sink = Lasting(descriptor, "ab")
    with _closing_on_error(path, sink):
        return sink, _repaired(descriptor, chain)


@contextlib.contextmanager
def _closing_on_error(path: Path, sink: Sink) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        sink.close()
        raise AuditError(f"audit log {path}: {error.strerror}", hint="see that the disk has room") from None
    except AuditError:
        sink.close()
        raise


def _opened(path: Path) -> tuple[int, int]:
    """The descriptor and the size of a file that is ours alone."""
    try:
        descriptor, found = open_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    except WrongKindError:
        raise AuditError(f"audit log {path}: not a regular file", hint=_REGULAR) from None
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO that nobody reads, where opening would wait; or a socket
            raise AuditError(f"audit log {path}: a FIFO or a socket", hint=_REGULAR) from None
        raise AuditError(f"audit log {path}: {error.strerror}", hint="the folder must exist and be writable") from None
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(descriptor)
        raise AuditError(
            f"audit log {path}: mode {stat.S_IMODE(found.st_mode):04o}, owner {found.st_uid}",
            hint="it must be a regular file of the appliance's own user with mode 0600")
    return descriptor, found.st_size


class _Standard(io.FileIO):
    """Standard output, which waits for a reader also where whoever started the process has made it
    not to block: it would take nothing then, without an error, and the record would be lost."""

    def write(self, data: Any, /) -> int:
        """Write one line; waits until it is taken."""
        while (taken := super().write(data)) is None:
            select.select([], [self], [])
        return taken


class Lasting(io.FileIO):
    """A file whose lines can be brought onto the disk."""

    def sync(self) -> None:
        """Return once all lines so far are on the disk. OSError when it fails."""
        os.fdatasync(self.fileno())


def _repaired(descriptor: int, chain: Chain) -> int:
    """Have the chain follow the file's records. A last one that is torn, as by a full disk or a
    power cut, is cut off: how many bytes that were. AuditError where the rest does not follow."""
    end = torn = 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        for line in file:
            whole = line.endswith(b"}\n") and line.startswith(b"{")
            if whole and torn:
                raise AuditError(f"audit log: {torn} bytes at byte {end} are no record, and records follow",
                                 code="audit-altered", hint="keep a copy of it for an audit, and name another file")
            if whole:
                chain.follow(line[:-1])
                end += len(line)
            else:
                torn += len(line)
    if torn:
        os.ftruncate(descriptor, end)
        os.fsync(descriptor)
    return torn
