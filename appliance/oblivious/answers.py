"""An answer's text, from its tokens to the JSON of an event, without an object of Python that has
it.

Each token's bytes go from the row of a table through the kernels `complete_text`, `find_stops` and
`write_string`. Their results stay in locked memory. In events and bodies, one character stands for
the text that came with a token (a stand-in). The text takes its place when they are written.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Sequence

import numpy as np

from appliance.errors import CapacityError, ModelError
from appliance.kernels.layouts.blind import REPLACED, SLOTS, WritePass
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.rows import PieceRows
from appliance.oblivious.stops import LENGTH as PART
from appliance.oblivious.stops import LONGEST, SweptStops
from appliance.secure.locked import LockedBuffer

FIRST = 0xF0000
MOST = 0x20000
"""The characters of planes 15 and 16, for private use (the Unicode Standard, section 23.5)."""

_STAND_IN = re.compile(rb"\xf3[\xb0-\xbf][\x80-\xbf][\x80-\xbf]|\xf4[\x80-\x8f][\x80-\xbf][\x80-\xbf]")
_OWN = re.compile(rb"\xf3[\xb0-\xbf]|\xf4|\\u[dD][bB][89a-fA-F]")  # in UTF-8, or escaped: maybe such a character
_WIDTH = 4  # bytes of a stand-in
_CLASS = 64  # bytes: texts are written in multiples of these
_BEGUN = 4  # bytes of the place in which a character waits for its rest
_LEAST, _MOST_BYTES = 1 << 12, 1 << 16  # of the parts of an answer's memory


def may_stand(body: bytes) -> bool:
    """Whether a body has no character that is a stand-in: the answer to it may repeat its words."""
    return _OWN.search(body) is None


class Writer:
    """The memory in which a model's tokens become text. Its `turn` is taken before it is used."""

    def __init__(self, rows: PieceRows, kernels: KernelTable) -> None:
        """Errors as of `LockedBuffer`."""
        self.kernels, self.turn, self._rows = kernels, threading.Lock(), rows
        self._complete, self._write = kernels.function("complete_text"), kernels.function("write_string")
        numbers = max(REPLACED * rows.size, SLOTS * PART)
        self._text, self._work, self._new, self._call = parts = [LockedBuffer(size, "answers") for size in (
            max(rows.size, PART), 12 * numbers, LONGEST + REPLACED * rows.size, WritePass.nbytes)]
        self.nbytes = sum(part.nbytes for part in parts)
        self._codes = np.frombuffer(self._work.view, np.int32, numbers)
        self._table = np.frombuffer(self._call.view, np.int64, WritePass.nbytes // 8)
        self._set(TEXT=self._text.address, CODES=self._work.address, ALIVE=self._work.address + 4 * numbers,
                  AWAY=self._work.address + 8 * numbers)

    def _set(self, **values: int) -> None:
        for name, value in values.items():
            self._table[WritePass.offsets[name] // 8] = value

    def complete(self, begun: memoryview, count: int, token: int, visible: Collection[int]) -> tuple[int, int]:
        """Make characters of `count` bytes that have begun one, and a token's. How many bytes they
        have, in `new`, and how many bytes wait in `begun` now."""
        self._text.view[:count] = begun[:count]
        with self._rows.row_of(token) as (piece, special):
            if special and token not in visible:
                return 0, count
            self._text.view[count:count + len(piece)] = piece
            count += len(piece)
        self._set(COUNT=count, LENGTH=self._rows.size)
        self._complete(self._call.address)
        done = WritePass(self._call.address)
        nbytes, held = done.NBYTES, done.HELD
        self._copy(nbytes, self._new.view[LONGEST:])
        begun[:held] = self._text.view[count - held:count]
        return nbytes, held

    def after(self, waiting: memoryview) -> memoryview:
        """Text that waited, in front of the bytes that `complete` made."""
        start = LONGEST - len(waiting)
        self._new.view[start:LONGEST] = waiting
        return self._new.view[start:]

    def write(self, text: memoryview, to: memoryview) -> int:
        """Write a part of a text, at most PART bytes, as it stands in JSON; how many bytes it has
        there."""
        self._text.view[:len(text)] = text
        self._set(COUNT=len(text), LENGTH=-(-len(text) // _CLASS) * _CLASS)
        self._write(self._call.address)
        nbytes = WritePass(self._call.address).NBYTES
        self._copy(nbytes, to)
        return nbytes

    def _copy(self, nbytes: int, to: memoryview) -> None:
        if nbytes:
            np.copyto(np.frombuffer(to, np.uint8, nbytes), self._codes[:nbytes], casting="unsafe")

    def wipe(self) -> None:
        """Overwrite what came of tokens."""
        for part in (self._text, self._work, self._new):
            part.wipe()


class AnswerTexts:
    """The texts of all answers to one request. Close it when the last event has left."""

    MOST = MOST

    def __init__(self, writer: Writer) -> None:
        self.writer, self._turn, self._closed = writer, threading.Lock(), False
        self._parts, self._end = list[LockedBuffer](), 0
        self._places = list[tuple[int, int, int]]()  # a part, from where to where

    def begin(self, stops: Sequence[str], visible: Collection[int]) -> SweptText:
        """One more answer: its stop strings, and the control tokens that have text."""
        return SweptText(self, stops, visible)

    def add(self, text: memoryview) -> str:
        """The stand-in of a text; none of an empty one. The writer's turn is the caller's.
        CapacityError where there is no memory."""
        with self._turn:
            if self._closed or not len(text):
                return ""
            self._require_room(SLOTS * len(text))
            part, start = self._parts[-1], self._end
            for at in range(0, len(text), PART):
                self._end += self.writer.write(text[at:at + PART], part.view[self._end:])
            self._places.append((len(self._parts) - 1, start, self._end))
            return chr(FIRST + len(self._places) - 1)

    def _require_room(self, nbytes: int) -> None:
        """Have so many bytes at the end of the last part."""
        if len(self._places) == MOST:
            raise CapacityError(f"the answers have more than {MOST} pieces", hint="ask for shorter ones", code="memory")
        if not self._parts or self._end + nbytes > self._parts[-1].nbytes:
            size = max(min(_LEAST << len(self._parts), _MOST_BYTES), nbytes)
            self._parts.append(locked(size))
            self._end = 0

    def fill(self, data: bytes) -> bytes:
        """JSON with the texts in the place of their stand-ins."""
        filled, at = bytearray(), 0
        with self._turn:
            for found in () if self._closed else _STAND_IN.finditer(data):
                part, start, end = self._places[ord(found[0].decode()) - FIRST]
                filled += data[at:found.start()]
                filled += self._parts[part].view[start:end]
                at = found.end()
        return bytes(filled + data[at:]) if at else data

    def missing(self, text: str) -> int:
        """How many bytes longer JSON becomes when a text's stand-ins are filled."""
        places = (self._places[ord(character) - FIRST] for character in text if ord(character) >= FIRST)
        return sum(end - start - _WIDTH for _, start, end in places)

    def close(self) -> None:
        """Wipe all texts, and give their memory back."""
        with self._turn:
            self._closed = True
            for part in self._parts:
                part.close()


def locked(nbytes: int) -> LockedBuffer:
    """Memory for parts of answers. CapacityError where there is none."""
    try:
        return LockedBuffer(nbytes, "answers")
    except ModelError as error:
        raise CapacityError(error.summary, hint=error.hint, code="memory") from None


class SweptText:
    """The text of one answer as its tokens come: that of a `TextStream` and a `StopFilter`, as
    stand-ins."""

    def __init__(self, texts: AnswerTexts, stops: Sequence[str], visible: Collection[int]) -> None:
        self._texts, self._writer, self._visible = texts, texts.writer, visible
        self._stops = SweptStops(stops, texts.writer.kernels)
        self._memory: LockedBuffer | None = None  # made with the first token
        self._begun = 0  # bytes at its front that begin a character; text that waits follows at `_BEGUN`

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended it."""
        return self._stops.stopped

    @property
    def found(self) -> int | None:
        """The place of the stop string that was found."""
        return self._stops.found

    def push(self, token: int, *, searched: bool = True) -> str:
        """The text that can be passed on with a token. Where it is not `searched`, no stop string
        has begun yet."""
        if self._memory is None:
            self._memory = locked(_BEGUN + LONGEST)
        own, writer, stops = self._memory.view, self._writer, self._stops
        with writer.turn:
            try:
                nbytes, self._begun = writer.complete(own[:_BEGUN], self._begun, token, self._visible)
                waiting = stops.waiting
                data = writer.after(own[_BEGUN:_BEGUN + waiting])[:waiting + nbytes]
                passed = stops.passing(data[waiting:]) if searched else nbytes
                own[_BEGUN:_BEGUN + stops.waiting] = data[passed:passed + stops.waiting]
                return self._texts.add(data[:passed])
            finally:
                writer.wipe()

    def flush(self) -> str:
        """Release what is held back, when no more text will come. A character that is incomplete is
        left out."""
        if self._memory is None:
            return ""
        with self._writer.turn:
            text = self._texts.add(self._memory.view[_BEGUN:_BEGUN + self._stops.waiting])
        self._stops.release()
        self._memory.wipe()
        self._begun = 0
        return text
