"""Reading a file ahead of its users, for files that no page cache can hold.

Threads of this module bring stretches of the file, in the order in which passes use them and past
the page cache where the file system allows it, into a few buffers that go round. The user of a
record takes it from its buffer and gives it back; a buffer whose records were all given back is for
the next stretch, of the next pass after the last one. Nothing depends on the order but speed: a
record that is not there in time is read by whoever wants it.

Bytes in the buffers are as unauthenticated as those of the file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.errors import ModelError
from appliance.models.file.disk import BLOCK, RandomFile
from appliance.secure.locked import address, anonymous, discard

SPAN_NBYTES = 1 << 20
"""Of a stretch: large enough that a disk gives all it has."""

BUFFERS = 8
CLOSE_SECONDS = 5.0
"""For reads that are under way at the end: long for a disk that works."""
READERS = 4
"""So that the disk has the next requests when one is done. Asked for twice as many bytes, some give less."""

_ROOM = SPAN_NBYTES + BLOCK  # for a record of that size that begins within a block, or a tile of it with its tag
NBYTES = BUFFERS * _ROOM + (2 << 20)
"""Memory of the buffers, with their alignment to a huge page."""

_GAP = 64 << 10  # bytes between two records that are read with them rather than left out


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A stretch of the file with so many records; begins and ends at a multiple of BLOCK."""

    offset: int
    nbytes: int
    records: int


@dataclass(slots=True, eq=False)
class _Buffer:
    """Room for one span. `wanted`: records that are still to be given back; `used`: by how many it
    is used now."""

    view: memoryview
    span: int = -1
    ready: bool = False
    wanted: int = 0
    used: int = 0


def spans(records: Sequence[tuple[int, int]]) -> tuple[list[FileSpan], dict[int, int]]:
    """Stretches that hold `records` (offset and bytes each), in their order, and the number of each
    record's stretch by its offset. A record for which a buffer has no room is in none."""
    found: list[FileSpan] = []
    places: dict[int, int] = {}
    start = end = count = 0
    for offset, nbytes in records:
        low, high = offset // BLOCK * BLOCK, -(-(offset + nbytes) // BLOCK) * BLOCK
        if high - low > _ROOM:
            continue
        if count and start <= low <= end + _GAP and max(high, end) - start <= SPAN_NBYTES:
            end, count = max(high, end), count + 1
            found[-1] = FileSpan(start, end - start, count)
        else:
            start, end, count = low, high, 1
            found.append(FileSpan(low, high - low, 1))
        places[offset] = len(found) - 1
    return found, places


def in_turn(matrices: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """Records (offset and bytes) of matrices whose tiles are used in turn, in an order that leaves
    stretches long."""
    order = []
    for records in matrices:
        each = max(SPAN_NBYTES // max(records[0][1], 1), 1) if records else 1
        order += [(start / len(records), records[start:start + each]) for start in range(0, len(records), each)]
    return [record for _, part in sorted(order, key=lambda found: found[0]) for record in part]


class ReadAhead:
    """Buffers and readers for the records of one file, which nobody else reads by the same
    descriptor."""

    def __init__(self, file: RandomFile, records: Sequence[tuple[int, int]]) -> None:
        """Takes `file` over. `records`: offset and bytes of each, in the order of their use. Raises
        ModelError if there is no memory."""
        self._file = file
        with contextlib.suppress(ModelError):
            file.bypass_cache()
        self._spans, self._places = spans(records)
        try:
            self._pages = anonymous(NBYTES, "tiles that are read ahead")
        except BaseException:
            self._file.close()
            raise
        start = -address(self._pages) % (2 << 20)
        whole = memoryview(self._pages)
        self._buffers = [_Buffer(whole[start + index * _ROOM:start + (index + 1) * _ROOM]) for index in range(BUFFERS)]
        whole.release()
        self._next = 0  # span that is read next
        self._without = 0  # threads that wait for a span that is in no buffer
        self._failed: set[int] = set()  # spans that could not be read
        self._changed = threading.Condition()
        self._asked = self._closed = False
        self._readers: list[threading.Thread] = []
        self._start()

    @property
    def direct(self) -> bool:
        """Whether it reads past the page cache."""
        return self._file.direct

    # --- who uses records -------------------------------------------------------------------------
    def take(self, offset: int, nbytes: int) -> memoryview | None:
        """Return the record at `offset`, until it is given back; waits for it. None when the caller
        is to read it."""
        number = self._places.get(offset)
        if number is None:
            return None
        with self._changed:
            if not self._asked:
                self._asked = True
                self._changed.notify_all()
            while self._readers and not self._closed and number not in self._failed:
                buffer = self._of(number)
                if buffer is not None and buffer.ready:
                    buffer.used += 1
                    start = offset - self._spans[number].offset
                    return buffer.view[start:start + nbytes]
                if buffer is None and not self._comes(number):
                    return None
                self._without += buffer is None
                self._changed.wait()
                self._without -= buffer is None
        return None

    def give_back(self, offset: int) -> None:
        """Of a record that was taken."""
        number = self._places[offset]
        with self._changed:
            buffer = self._of(number)
            if buffer is not None:
                buffer.used -= 1
                buffer.wanted -= 1
                if buffer.wanted <= 0 and buffer.used == 0:
                    self._free(buffer)
                elif buffer.used == 0 and self._without:  # who found no buffer that nobody used has this one now
                    self._changed.notify_all()

    def _of(self, number: int) -> _Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.span == number), None)

    def _comes(self, number: int) -> bool:
        """Have a span that is in no buffer read soon; False for one that was passed by just now."""
        behind = (self._next - number) % len(self._spans)
        if 0 < behind <= 2 * BUFFERS < len(self._spans) // 2:
            return False
        if (number - self._next) % len(self._spans) >= BUFFERS:
            self._next = number
            self._changed.notify_all()  # readers that found nothing left to read from where they were
        if all(buffer.ready for buffer in self._buffers):  # perhaps nobody will ask for what they hold
            unused = [buffer for buffer in self._buffers if buffer.used == 0]
            if unused:
                self._free(max(unused, key=lambda buffer: (self._next - buffer.span) % len(self._spans)))
        return True

    def _free(self, buffer: _Buffer) -> None:
        buffer.span, buffer.ready, buffer.wanted = -1, False, 0
        self._changed.notify_all()

    # --- who reads --------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start the readers, before the process is held to its memory: they wait until somebody
        asks for a record. Those for whose stacks there is none are done without."""
        with contextlib.suppress(RuntimeError, MemoryError):
            for _ in range(READERS):
                reader = threading.Thread(target=self._read, name="read-ahead", daemon=True)
                reader.start()
                self._readers.append(reader)

    def _read(self) -> None:
        while (buffer := self._claim()) is not None:
            span = self._spans[buffer.span]
            descriptor, at, left = self._file.place(span.offset)
            try:
                whole = os.preadv(descriptor, [buffer.view[:span.nbytes]], at) >= min(span.nbytes, left)
                if not self._file.direct:
                    os.posix_fadvise(descriptor, at, span.nbytes, os.POSIX_FADV_DONTNEED)
            except (OSError, MemoryError):
                whole = False
            with self._changed:
                if whole:
                    buffer.ready, buffer.wanted = True, span.records
                    self._changed.notify_all()
                else:  # the next reader of a record of it will meet the error and report it
                    self._failed.add(buffer.span)
                    self._free(buffer)

    def _claim(self) -> _Buffer | None:
        """Return an empty buffer for the next span; None when all is over."""
        with self._changed:
            while not self._closed:
                free = next((buffer for buffer in self._buffers if buffer.span < 0 and self._asked), None)
                numbers = ((self._next + index) % len(self._spans) for index in range(min(BUFFERS, len(self._spans))))
                number = next((number for number in numbers
                               if self._of(number) is None and number not in self._failed), None)
                if free is not None and number is not None:
                    free.span, self._next = number, (number + 1) % len(self._spans)
                    return free
                self._changed.wait()
        return None

    def close(self) -> None:
        """End the readers and give the memory back, but for that of a read which does not return.
        Nobody may use a record any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        end = time.monotonic() + CLOSE_SECONDS
        for reader in self._readers:
            reader.join(max(end - time.monotonic(), 0))
            if reader.is_alive():  # it may still write there
                return
        for buffer in self._buffers:
            buffer.view.release()
        discard(self._pages)
        self._file.close()
