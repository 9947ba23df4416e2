"""Stop strings by the `find_stops` kernel: the same work for each piece of text, whatever it says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from appliance.errors import CapacityError, ModelError
from appliance.kernels.layouts.blind import StopPass
from appliance.kernels.runtime.table import KernelTable
from appliance.secure.locked import LockedBuffer
from appliance.text.stops import MAX_LENGTH, StopFilter

LENGTH = 256
"""Bytes of text that one call goes through."""
MOST_NBYTES = 88 << 10
"""Bytes that the stop strings of one answer take, at most."""
LONGEST = 4 * MAX_LENGTH
"""Bytes of the longest stop string."""
_WORD = 64


class StopTable:
    """Stop strings, one after the other, in the memory of one answer. A call reads whole words of
    64 places of each part: all of them lie in it."""

    def __init__(self, words: Sequence[bytes]) -> None:
        """Longest first. Errors as of `LockedBuffer`."""
        self._count = -(-sum(map(len, words)) // _WORD)
        depths = np.concatenate([np.arange(1, len(word) + 1, dtype=np.int32) for word in words])
        parts = {"TEXT": bytes(LENGTH + _WORD), "STATE": bytes(8 * self._count), "STOPS": b"".join(words),
                 "STARTS": _bits(depths == 1), "ENDS": _bits(np.append(depths[1:] == 1, True)),
                 "DEPTHS": depths.tobytes().ljust(4 * _WORD * self._count, b"\0")}  # all of which a call reads
        sizes = [max(StopPass.nbytes, 2 * _WORD), *(-(-len(part) // _WORD) * _WORD for part in parts.values())]
        places = dict(zip(parts, accumulate(sizes), strict=False))
        self._memory = LockedBuffer(sum(sizes), "answers")
        for name, part in parts.items():
            self._memory.view[places[name]:places[name] + len(part)] = part
        self._call = np.frombuffer(self._memory.view, np.int64, StopPass.nbytes // 8)
        self._set(WORDS=self._count, LENGTH=LENGTH,
                  **{name: self.address + place for name, place in places.items()})
        self._text = self._memory.view[places["TEXT"]:places["TEXT"] + LENGTH]
        self._own = self._memory.view[places["TEXT"]:places["STOPS"]]

    @property
    def address(self) -> int:
        """Where the call's table is."""
        return self._memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of it all, in whole pages."""
        return self._memory.nbytes

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._call[StopPass.offsets[name] // 8] = value

    def write(self, data: bytes | memoryview) -> None:
        """The text of the next call, at most LENGTH bytes."""
        self._text[:len(data)] = data
        self._set(COUNT=len(data))

    def result(self) -> tuple[int, int, int]:
        """FOUND, ENDED and HELD of the last call."""
        found = StopPass(self.address)
        return found.FOUND, found.ENDED, found.HELD

    def wipe(self) -> None:
        """Forget the text."""
        self._own[:] = bytes(len(self._own))


def _bits(mask: NDArray[np.bool_]) -> bytes:
    return np.packbits(mask, bitorder="little").tobytes()


class SweptStops(StopFilter):
    """A filter whose search is compiled. It passes on what `StopFilter` does."""

    def __init__(self, stops: Sequence[str], kernels: KernelTable) -> None:
        super().__init__(stops)
        words = [stop.encode("utf-8", "surrogatepass") for stop in stops]
        order = sorted(range(len(words)), key=lambda place: -len(words[place]))  # of equal ones the first
        ends = accumulate(len(words[place]) for place in order)
        self._ends = {end: (place, len(words[place])) for end, place in zip(ends, order, strict=True)}
        self._words = [words[place] for place in order]
        self._kernels, self._find, self._kept = kernels, kernels.function("find_stops"), b""
        self.waiting = 0
        """Bytes at the end that may begin a stop string."""

    @cached_property
    def table(self) -> StopTable | None:
        """Made with the first text: an answer that waits holds no memory. CapacityError where there
        is none."""
        try:
            return StopTable(self._words) if self._words else None
        except ModelError as error:
            raise CapacityError(error.summary, hint=error.hint, code="memory") from None

    def push(self, text: str) -> str:
        """The text that can be passed on now; nothing after a stop string was found."""
        if self.stopped:
            return ""
        data = self._kept + (new := text.encode())
        count = self.passing(new)
        self._kept = data[count:count + self.waiting]
        return data[:count].decode()

    def passing(self, data: bytes | memoryview) -> int:
        """How many bytes can be passed on, of all that waited and of `data` behind it."""
        if self.table is None:
            return len(data)
        count = 0
        for at in range(0, max(len(data), 1), LENGTH):
            if not self.stopped:
                count += self._take(self.table, data[at:at + LENGTH])
        return count

    def _take(self, table: StopTable, data: bytes | memoryview) -> int:
        """Take a part of a text; how many more bytes pass."""
        table.write(data)
        self._find(table.address)
        found, ended, held = table.result()
        count = self.waiting + len(data) - held
        if found:
            self.stopped, held = True, 0
            self.found, length = self._ends[found]
            count = self.waiting + ended - length
            table.wipe()
        self.waiting = held
        return count

    def flush(self) -> str:
        """Release what is held back, when no more text will come."""
        text, self._kept = self._kept.decode(), b""
        self.release()
        return text

    def begin_again(self) -> None:
        """Go on behind a stop string that was found."""
        self.stopped, self.found = False, None

    def release(self) -> None:
        """Forget what waits."""
        self.waiting = 0
        made = self.__dict__.get("table")
        if made is not None:
            made.wipe()
