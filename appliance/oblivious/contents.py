"""The texts of a request, from the JSON of its body to the bytes of a prompt, without an object of
Python that has one of them.

The kernel `quote_places` finds the strings of a body. By the names of members, messages, prompts
and instructions are texts. The kernel `read_string` makes their bytes. In the body, a stand-in
takes the place of each (`text.jinja.standins`). White space at a text's ends stays where it is.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.layouts.blind import ReadPass
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.encoder import class_of
from appliance.oblivious.stops import LENGTH as PART
from appliance.oblivious.stops import StopTable
from appliance.secure.locked import LockedBuffer
from appliance.text.jinja.standins import FIRST, MOST, StandIns, TextNeeded

TOPS = frozenset({"messages", "prompt", "suffix", "negative_prompt", "system", "input", "instructions"})
PARTS = frozenset({"content", "text", "output", "thinking", "reasoning", "reasoning_content", "summary"})
"""Members of a body, and of what is in them, whose strings are texts."""
_KEPT = 1 << 16  # bytes of the longest bodies whose memory is kept
_WORDS = 4096  # characters of all words that are looked for: callers may have written some
_SPARE = 4  # places before a work array that are written
_BRACKET = re.compile(rb"[][{}]")
_OWN = re.compile(rb"\xee|\xef[\x80-\xa3]|\\u(?:[eE]|[fF][0-8])")  # in UTF-8, or escaped: maybe a stand-in's character


class Contents(StandIns):
    """The texts of one request. Close it when the prompt is made."""

    def __init__(self, kernels: KernelTable, nbytes: int) -> None:
        """Errors as of `LockedBuffer`."""
        super().__init__()
        self._find, self._memory = kernels.function("find_stops"), LockedBuffer(nbytes, "prompts")
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all texts."""
        return self._ends[-1]

    def add(self, codes: NDArray[np.int32]) -> None:
        """One more text: its bytes, an int32 each."""
        end = self._ends[-1] + len(codes)
        np.copyto(np.frombuffer(self._memory.view, np.uint8)[self._ends[-1]:end], codes, casting="unsafe")
        self._ends.append(end)

    def bytes_of(self, number: int) -> memoryview:
        """The text of a number. TextNeeded where there is no such text."""
        if number >= len(self):
            raise TextNeeded
        return self._memory.view[self._ends[number]:self._ends[number + 1]]

    def settle(self) -> None:
        """Raise TextNeeded where a word that was looked for is in a text."""
        words, self.sought = sorted(self.sought, key=len, reverse=True), set()
        if not words:
            return
        if sum(map(len, words)) > _WORDS:
            raise TextNeeded
        table = StopTable([word.encode("utf-8", "surrogatepass") for word in words])
        hits = 0
        for number in range(len(self)):
            data = self.bytes_of(number)
            for at in range(0, len(data), PART):
                table.write(data[at:at + PART])
                self._find(table.address)
                hits |= table.result()[0]
            table.wipe()
        if hits:
            raise TextNeeded

    def close(self) -> None:
        """Wipe all texts. Their memory is freed with its last view."""
        self._ends = [0]
        self._memory.wipe()


def joined(parts: Sequence[bytes | memoryview]) -> LockedBuffer:
    """Parts of a text, one after the other, in memory of their own. Errors as of `LockedBuffer`."""
    memory, end = LockedBuffer(max(sum(map(len, parts)), 1), "prompts"), 0
    for part in parts:
        memory.view[end:end + len(part)] = part
        end += len(part)
    return memory


class _Room:
    """The memory that bodies of so many bytes are read in, one at a time."""

    def __init__(self, size: int) -> None:
        self.turn, self._stride = threading.Lock(), 4 * (size + _SPARE)
        self.text, self.work = LockedBuffer(size, "prompts"), LockedBuffer(3 * self._stride, "prompts")
        self.call = LockedBuffer(ReadPass.nbytes, "prompts")
        self.codes = np.frombuffer(self.work.view, np.int32)[_SPARE:size + _SPARE]

    def set(self, **values: int) -> None:
        """Write into the call's table."""
        own = {name: self.work.address + 4 * _SPARE + self._stride * place
               for place, name in enumerate(("CODES", "ALIVE", "AWAY"))}
        call = np.frombuffer(self.call.view, np.int64)
        for name, value in (own | values).items():
            call[ReadPass.offsets[name] // 8] = value

    def wipe(self) -> None:
        """Overwrite what came of a body."""
        for each in (self.text, self.work, self.call):
            each.wipe()


class BodyReader:
    """Reads bodies. Threads may share it: those with bodies of about one length take turns."""

    def __init__(self, kernels: KernelTable) -> None:
        self._kernels, self._rooms = kernels, dict[int, _Room]()
        self._mark, self._read = kernels.function("quote_places"), kernels.function("read_string")

    def read(self, body: bytes) -> tuple[bytes, Contents] | None:
        """A body with stand-ins in the place of its texts, and the texts. None without texts, where
        one has a fault, and where the body has characters that are stand-ins."""
        length = class_of(len(body))
        size = 1 << (length + PART - 1).bit_length()
        room = self._rooms.get(size)
        if room is None:
            room = _Room(size)
            if size <= _KEPT:
                room = self._rooms.setdefault(size, room)
        with room.turn:
            try:
                return self._parts(body, length, room)
            finally:
                room.wipe()

    def _parts(self, body: bytes, length: int, room: _Room) -> tuple[bytes, Contents] | None:
        room.text.view[:len(body)] = body
        room.set(TEXT=room.text.address, COUNT=len(body), LENGTH=length)
        self._mark(room.call.address)
        places = list(texts_of(body, np.flatnonzero(room.codes[:len(body)]).tolist()))
        if not 0 < len(places) <= MOST:
            return None
        contents, parts, at = Contents(self._kernels, sum(end - start for start, end in places)), list[bytes](), 0
        with contextlib.ExitStack() as unused, contextlib.suppress(_FaultyError):
            unused.callback(contents.close)
            for start, end in places:
                parts += [body[at:start], self._one(contents, room, start, end)]
                at = end
            parts.append(body[at:])
            if len(contents) and not any(map(_OWN.search, parts[::2])):
                unused.pop_all()
                return b"".join(parts), contents
        return None

    def _one(self, contents: Contents, room: _Room, start: int, end: int) -> bytes:
        """The stand-in of a string, with white space around it."""
        room.set(TEXT=room.text.address + start, COUNT=end - start, LENGTH=class_of(end - start))
        self._read(room.call.address)
        done = ReadPass(room.call.address)
        nbytes, leading, trailing = done.NBYTES, done.LEADING, done.TRAILING
        if done.FAULTY or done.SPACED:
            raise _FaultyError
        if leading == nbytes:
            return _blanks(room.codes[:nbytes])
        first, last = _blanks(room.codes[:leading]), _blanks(room.codes[nbytes - trailing:nbytes])
        contents.add(room.codes[leading:nbytes - trailing])
        return first + chr(FIRST + len(contents) - 1).encode() + last


class _FaultyError(Exception):
    """A string has a fault, or white space at an end that stays in no body."""


def _blanks(codes: NDArray[np.int32]) -> bytes:
    """White space as a part of a string of JSON."""
    return json.dumps(bytes(codes.tolist()).decode())[1:-1].encode()


@dataclass(slots=True)
class _Open:
    """An object or a list of a body that has not ended."""

    named: bool  # an object
    within: bool  # it is in the place of texts
    texts: bool  # strings that follow are texts
    top: bool


def texts_of(body: bytes, quotes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where the texts of a body begin and end, by the places of its quotes. A body with faults may
    have some."""
    open_ones, root, at = list[_Open](), True, 0
    for start, end in zip(quotes[::2], quotes[1::2], strict=False):
        between, at = body[at:start], end + 1
        for mark in _BRACKET.findall(between):
            if mark in b"[{":
                within = bool(open_ones) and open_ones[-1].texts
                open_ones.append(_Open(mark == b"{", within, within and mark == b"[", top=root))
                root = False
            elif open_ones:
                open_ones.pop()
        if not open_ones:
            continue
        here = open_ones[-1]
        if here.named and not between.rstrip(b" \t\r\n").endswith(b":"):
            name = _name(body[start:end + 1])
            here.texts = name in TOPS if here.top else here.within and name in PARTS
        elif here.texts and end > start + 1:
            yield start + 1, end


def _name(text: bytes) -> str | None:
    """The name of a member."""
    try:
        return str(json.loads(text))
    except ValueError:
        return None
