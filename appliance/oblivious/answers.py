"""An answer's text, from its tokens to the JSON of an event, without an object of Python that has
it.

Each token's bytes go from the row of a table through the kernels `complete_text`, `find_stops` and
`write_string`. Their results stay in locked memory. In events and bodies, one character stands for
the text that came with a token (a stand-in). The text takes its place when they are written.
"""

from __future__ import annotations

import contextlib
import re
import threading
from array import array
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np

from appliance.errors import CapacityError, ModelError
from appliance.kernels.layouts.blind import REPLACED, SLOTS, WritePass
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.contents import joined
from appliance.oblivious.rows import PieceRows
from appliance.oblivious.stops import LENGTH as PART
from appliance.oblivious.stops import LONGEST, SweptStops
from appliance.secure.locked import LockedBuffer

FIRST = 0xF0000
MOST = 0x20000
"""The characters of planes 15 and 16, for private use (the Unicode Standard, section 23.5)."""

_STAND_IN = re.compile(rb"\xf3[\xb0-\xbf][\x80-\xbf][\x80-\xbf]|\xf4[\x80-\x8f][\x80-\xbf][\x80-\xbf]")
_OWN = re.compile(rb"\xf3[\xb0-\xbf]|\xf4|\\u[dD][bB][89a-fA-F]")  # in UTF-8, or escaped: maybe such a character
_WIDTH, _FIELD = 4, 24  # bytes of a stand-in; bits of a place in a part
_CLASS = 64  # bytes: texts are written in multiples of these
BASE = 2 * LONGEST
_WIDE = frozenset(chr(code).encode() for code in range(0x80, 0x10000) if chr(code).isspace())
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
            max(rows.size, PART), 12 * numbers, BASE + REPLACED * rows.size, WritePass.nbytes)]
        self.new = self._new.view
        """Text that waited up to BASE, and behind it the bytes that `complete` made."""
        self._spare = np.frombuffer(self._work.view, np.uint8, PART)
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
        self._copy(nbytes, self.new[BASE:])
        begun[:held] = self._text.view[count - held:count]
        return nbytes, held

    def put_before(self, place: int, waiting: memoryview) -> int:
        """Write text that waited into `new`, in front of a place; where it begins."""
        start = place - len(waiting)
        self.new[start:place] = waiting
        return start

    def blanks(self, text: memoryview) -> tuple[int, int] | None:
        """How many bytes of ASCII's white space there are at both ends of a text. None for a text
        of nothing else, one of more than PART bytes, and where other white space is at an end."""
        count = len(text)
        if not 0 < count <= PART:
            return None if count else (0, 0)
        data, spare = np.frombuffer(text, np.uint8), self._spare[:count]
        blank = np.subtract(data, 9, out=spare) < 5
        blank |= np.subtract(data, 28, out=spare) < 5
        if blank.all():
            return None
        leading, trailing = int(blank.argmin()), int(blank[::-1].argmin())
        first, last = text[leading:leading + 3], text[:count - trailing][-3:]
        wide = any(bytes(each) in _WIDE for each in (first, first[:2], last, last[-2:]))
        return None if wide else (leading, trailing)

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

    def __init__(self, writer: Writer, marks: Sequence[str] = (), calls: Sequence[str] = (), *,
                 kept: bool = False) -> None:
        """`marks`: words that a reader of the answers looks for; `calls`: others, behind which all
        text is the reader's. `kept`: redaction will look at the texts."""
        self._marks, self._calls = (*marks, *calls), frozenset(calls)
        self.writer, self._turn, self._closed = writer, threading.Lock(), False
        self._parts, self._end = list[LockedBuffer](), 0
        self._places = array("Q")  # a part, where its JSON begins there, and how many bytes that has
        self._kept, self._lengths = kept, array("Q")  # of each text itself, which stands before its JSON

    def begin(self, stops: Sequence[str], visible: Collection[int]) -> SweptText:
        """One more answer: its stop strings, and the control tokens that have text."""
        return SweptText(self, stops, visible, self._marks, self._calls)

    def add(self, text: memoryview) -> str:
        """The stand-in of a text; none of an empty one. The writer's turn is the caller's.
        CapacityError where there is no memory."""
        with self._turn:
            if self._closed or not len(text):
                return ""
            self._require_room((SLOTS + self._kept) * len(text))
            part = self._parts[-1]
            if self._kept:
                part.view[self._end:self._end + len(text)] = text
                self._lengths.append(len(text))
                self._end += len(text)
            start = self._end
            for at in range(0, len(text), PART):
                self._end += self.writer.write(text[at:at + PART], part.view[self._end:])
            self._places.append(len(self._parts) - 1 << 2 * _FIELD | start << _FIELD | self._end - start)
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
                if (number := ord(found[0].decode()) - FIRST) < len(self._places):
                    part, start, count = self._place(number)
                    filled += data[at:found.start()]
                    filled += self._parts[part].view[start:start + count]
                    at = found.end()
        return bytes(filled + data[at:]) if at else data

    def copy(self, text: str) -> tuple[LockedBuffer, list[int]]:
        """A text in UTF-8, with others in the place of their stand-ins, in memory of its own; and
        how many bytes each of its characters has there. CapacityError where there is no memory."""
        with self._turn:
            parts = [each.encode() if (own := self._own(each)) is None else own for each in text]
            sizes = list(map(len, parts))
            with _there():
                memory = joined(parts)
            for each in parts:
                if isinstance(each, memoryview):
                    each.release()  # these may be wiped now
        return memory, sizes

    def _own(self, character: str) -> memoryview | None:
        number = ord(character) - FIRST
        if self._closed or not 0 <= number < len(self._lengths):
            return None
        part, start, _ = self._place(number)
        return self._parts[part].view[start - self._lengths[number]:start]

    def length(self, text: str) -> int:
        """How many bytes a text has, at most, with others in the place of their stand-ins."""
        return sum(self._lengths[number] if 0 <= (number := ord(each) - FIRST) < len(self._lengths) else _WIDTH
                   for each in text)

    def guarded(self, text: str) -> str:
        """A text with stand-ins for the characters that would stand for others. The writer's turn
        is the caller's."""
        return text if not text or max(text) < chr(FIRST) else "".join(
            self.add(memoryview(each.encode())) if each >= chr(FIRST) else each for each in text)

    def missing(self, text: str) -> int:
        """How many bytes longer JSON becomes when a text's stand-ins are filled."""
        numbers = (ord(character) - FIRST for character in text)
        return sum(self._place(each)[2] - _WIDTH for each in numbers if 0 <= each < len(self._places))

    def _place(self, number: int) -> tuple[int, int, int]:
        place, mask = self._places[number], (1 << _FIELD) - 1
        return place >> 2 * _FIELD, place >> _FIELD & mask, place & mask

    def close(self) -> None:
        """Wipe all texts, and give their memory back."""
        with self._turn:
            self._closed = True
            for part in self._parts:
                part.close()


def locked(nbytes: int) -> LockedBuffer:
    """Memory for parts of answers. CapacityError where there is none."""
    with _there():
        return LockedBuffer(nbytes, "answers")


@contextlib.contextmanager
def _there() -> Iterator[None]:
    """CapacityError where there is no memory."""
    try:
        yield
    except ModelError as error:
        raise CapacityError(error.summary, hint=error.hint, code="memory") from None


class SweptText:
    """The text of one answer as its tokens come: that of a `TextStream` and a `StopFilter`, as
    stand-ins. Where a reader looks for `marks`, these stand outside of stand-ins, as does the white
    space at a text's ends, and all text from the first of `calls` on."""

    def __init__(self, texts: AnswerTexts, stops: Sequence[str], visible: Collection[int],
                 marks: Sequence[str] = (), calls: Collection[str] = ()) -> None:
        self._texts, self._writer, self._visible = texts, texts.writer, visible
        self._marks, self._calls, self._called = marks, calls, False
        self._stops, self._search = (SweptStops(words, texts.writer.kernels) for words in (stops, marks))
        self._memory: LockedBuffer | None = None  # made with the first token
        self._begun = 0  # bytes that begin a character

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
            self._memory = locked(_BEGUN + 2 * LONGEST)
        begun, waiting, _ = self._parts(self._memory)
        writer, stops = self._writer, self._stops
        with writer.turn:
            try:
                nbytes, self._begun = writer.complete(begun, self._begun, token, self._visible)
                start, end = writer.put_before(BASE, waiting[:stops.waiting]), BASE + nbytes
                passed = stops.passing(writer.new[BASE:end]) if searched else nbytes
                waiting[:stops.waiting] = writer.new[start + passed:start + passed + stops.waiting]
                text = self._told(self._memory, start, start + passed)
                return text + self._rest_of_mark(self._memory) if stops.stopped else text
            finally:
                writer.wipe()

    def flush(self) -> str:
        """Release what is held back, when no more text will come. A character that is incomplete is
        left out."""
        if self._memory is None:
            return ""
        _, waiting, _ = self._parts(self._memory)
        with self._writer.turn:
            try:
                text = self._told(self._memory, self._writer.put_before(BASE, waiting[:self._stops.waiting]), BASE)
                text += self._rest_of_mark(self._memory)
            finally:
                self._writer.wipe()
        self._stops.release()
        self._memory.wipe()
        self._begun = 0
        return text

    def _rest_of_mark(self, memory: LockedBuffer) -> str:
        """The beginning of a mark that is left at the end of all text."""
        rest = str(self._parts(memory)[2][:self._search.waiting], "utf-8")
        self._search.release()
        return rest

    @staticmethod
    def _parts(memory: LockedBuffer) -> tuple[memoryview, memoryview, memoryview]:
        """The beginning of a character, text that may be that of a stop string, and of a mark."""
        ends = (0, _BEGUN, _BEGUN + LONGEST, _BEGUN + 2 * LONGEST)
        begun, stop, mark = (memory.view[start:end] for start, end in pairwise(ends))
        return begun, stop, mark

    def _told(self, memory: LockedBuffer, start: int, end: int) -> str:
        """Text that passes, with its marks."""
        if not self._marks:
            return self._texts.add(self._writer.new[start:end])
        if self._called:
            return self._texts.guarded(str(self._writer.new[start:end], "utf-8"))
        (_, _, waiting), search, told = self._parts(memory), self._search, ""
        while True:
            begin = self._writer.put_before(start, waiting[:search.waiting])
            at = begin + search.passing(self._writer.new[start:end])
            told += self._stand_in(self._writer.new[begin:at])
            if search.found is None:
                waiting[:search.waiting] = self._writer.new[at:at + search.waiting]
                return told
            mark = self._marks[search.found]
            told, start, self._called = told + mark, at + len(mark.encode()), mark in self._calls
            search.begin_again()
            if self._called:
                return told + self._texts.guarded(str(self._writer.new[start:end], "utf-8"))

    def _stand_in(self, text: memoryview) -> str:
        """The stand-in of a text, with the white space at its ends around it."""
        ends = self._writer.blanks(text)
        if ends is None:  # beyond ASCII, or all of it
            whole = str(text, "utf-8")
            core = whole.strip()
            before = whole[:len(whole) - len(whole.lstrip())] if core else whole
            return before + self._texts.add(memoryview(core.encode())) + whole[len(before) + len(core):]
        leading, trailing = ends
        end = len(text) - trailing
        return str(text[:leading], "ascii") + self._texts.add(text[leading:end]) + str(text[end:], "ascii")
