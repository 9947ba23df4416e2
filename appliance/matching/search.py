"""A compiled pattern run on text by the `find_spans` kernel, which holds no lock of the
interpreter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.errors import EngineError
from appliance.kernels.layouts.search import Instruction, Operation, Search
from appliance.kernels.layouts.tables import Table
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import tree
from appliance.matching.characters import alphabet
from appliance.matching.program import Program, compile_node
from appliance.policy.schema.patterns import bounds

SLICE = 1 << 18  # characters of one call of the kernel
CAPACITY = 1 << 15  # spans of one call of the kernel
_UNIT = 64  # positions of a word
_VECTOR = 8  # words that the kernel takes at once
_MOST_WORDS = 512  # of a stretch of a narrow pattern
_CACHE = 1 << 19  # bytes that all streams of a stretch should take at most

Points = NDArray[np.int32]
Spans = NDArray[np.int64]
_POSITION = Search.offsets["POSITION"] // 8
_CALL = np.array([Search.offsets[name] // 8 for name in (  # what changes from call to call
    "TEXT", "END", "POSITION", "STOP", "OPEN", "STREAMS", "STRIDE", "WORDS", "SPANS", "BUFFER", "COUNTERS")])
_NONE = np.empty((0, 2), np.int64)  # no spans


def points(text: str) -> Points:
    """Return the code points of a text."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.int32)


def _nothing() -> None:
    """Let a search go on."""


class _Scratch(threading.local):
    """A thread's memory for calls of the kernel. Nothing in it outlives one."""

    def __init__(self) -> None:
        self._blocks = {name: self._block(0) for name in ("streams", "buffer")}
        self._spans, self._table = Memory(16 * CAPACITY), Memory(Search.nbytes)
        self.spans, self.spans_address = self._spans.view(np.int64).reshape(-1, 2), self._spans.address
        self.table, self.table_address = self._table.view(np.int64), self._table.address

    @staticmethod
    def _block(nbytes: int) -> tuple[Memory, NDArray[np.uint8]]:
        memory = Memory(nbytes)
        return memory, memory.view(np.uint8)

    def sized(self, name: str, nbytes: int) -> tuple[Memory, NDArray[np.uint8]]:
        """Return `streams` or `buffer` with at least so many bytes, and these."""
        if self._blocks[name][0].nbytes < nbytes:
            self._blocks[name] = self._block(nbytes)
        return self._blocks[name]


_scratch = _Scratch()


class Automaton:
    """One pattern. Safe to use from several threads at once."""

    def __init__(self, pattern: str, table: KernelTable) -> None:
        """Compile a pattern; `Mismatch` (policy.kinds) for one outside of the subset."""
        program = compile_node(tree.parsed(pattern))
        self._alphabet = alphabet(program.classes)
        pages = self._alphabet.pages
        self._pages = pages.ctypes.data + self._alphabet.page_of * pages[0].nbytes
        self._follow(program, bounds(pattern).high, table, PAGES=self._pages.ctypes.data,
                     ROWS=self._alphabet.rows.ctypes.data, GROUPS=self._alphabet.rows.shape[1])

    def _follow(self, program: Program, width: int, table: KernelTable, **more: int) -> None:
        """Get ready to run a program whose longest match has `width` characters; `more` fields of
        Search."""
        self.width, self.work = width, program.work
        self._kernel, self._streams, self._loops = table.function("find_spans"), program.streams, program.loops
        self._operations, self._walk = _table(Operation, program.operations), _table(Instruction, program.walk)
        self._table = _table(Search, [{
            "CLASSES": len(program.classes), "OPERATIONS": self._operations.ctypes.data,
            "OPERATION_COUNT": len(program.operations), "WALK": self._walk.ctypes.data, "WIDTH": width,
            "ROOT": program.root, "CAPACITY": CAPACITY, **more}])[0]

    def spans(self, text: Points, start: int = 0, between: Callable[[], None] = _nothing) -> Iterator[Spans]:
        """Yield start and end of the matches from `start` on, in order, some at a time; no two
        overlap.

        `between` is called every `SLICE` characters, and may raise to end the search.
        """
        while start < len(text):
            found, start = self._go(text, start, start + SLICE)
            if len(found):
                yield found
            between()

    def undecided(self, text: Points, start: int) -> NDArray[np.int64]:
        """Return the positions from `start` on, in order, from which text to come may make a match
        or unmake one."""
        start = max(start, len(text) - self.width - 1)  # no path is longer
        return self._go(text, start, len(text), is_open=True)[0][:, 0] if start < len(text) else np.empty(0, np.int64)

    def _go(self, text: Points, start: int, stop: int, *, is_open: bool = False) -> tuple[Spans, int]:
        """Call the kernel: spans, and where to go on. EngineError for a walk that leaves its
        stretch, a defect."""
        words, scratch = self._words(len(text) - start), _scratch
        stride = 8 * (words + _VECTOR)  # an odd number of cache lines: streams would else displace each other
        size, buffer_size = stride * self._streams, 8 * (2 * _UNIT + self._loops)
        streams, stream_bytes = scratch.sized("streams", size + self.width // 8 + 8 * (_VECTOR + 2))
        buffer, buffer_bytes = scratch.sized("buffer", buffer_size)
        table, spans = scratch.table, scratch.spans
        table[:] = self._table
        table[_CALL] = (text.ctypes.data, len(text), start, stop, is_open, streams.address, stride, words,
                        scratch.spans_address, buffer.address, buffer.address + 16 * _UNIT)
        count = self._kernel(scratch.table_address)
        stream_bytes[:size] = 0
        buffer_bytes[:buffer_size] = 0
        if count:
            found = spans[:max(count, 0)].copy()
            spans[:len(found)] = 0
        else:
            found = _NONE
        if count < 0:
            raise EngineError("a redaction pattern's program is faulty", code="search-fault")
        return found, int(table[_POSITION])

    def _words(self, length: int) -> int:
        """Return the words of a stretch: few enough for the cache, several times as many as a match
        can span."""
        reach = -(-self.width // _UNIT) + 2
        most = max(4 * reach, min(_MOST_WORDS, _CACHE // (8 * self._streams)))
        needed = -(-length // _UNIT) + reach + 1
        return -(-min(most, needed) // (2 * _VECTOR)) * 2 * _VECTOR


class Places(Automaton):
    """Some patterns as one, over a text in which each place is a character of its own. All streams
    are written and all loops take all turns, whatever the classes of these characters. `^` and `$`
    hold everywhere."""

    def __init__(self, patterns: Sequence[str], table: KernelTable) -> None:
        """As of `Automaton`; `take` comes next."""
        program = compile_node(tree.choice([tree.placeless(tree.parsed(each)) for each in patterns]))
        self.width = max(bounds(each).high for each in patterns)
        self.classes = program.classes
        self._known = program, self.width, table

    def take(self, pages: int, rows: int, groups: int) -> None:
        """Read classes from the tables at these addresses: see `layouts.search.Search`."""
        self._follow(*self._known, PAGES=pages, ROWS=rows, GROUPS=groups, EVEN=1)


def _table(table: type[Table], rows: Sequence[dict[str, int]]) -> NDArray[np.int64]:
    """Return tables of words, one after the other."""
    return np.array([[row.get(name, 0) for name in table.fields] for row in rows], np.int64).reshape(
        -1, len(table.fields))
