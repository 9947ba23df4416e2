"""Text to tokens by the `encode_text` kernel."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import CapacityError, UnsupportedError
from appliance.kernels.layouts.blind import ARRAYS, NONE, SHIFTS_OF_PAGE, TextPass
from appliance.kernels.runtime.table import KernelTable
from appliance.oblivious.cuts import Cut, cut_of, ranges
from appliance.oblivious.marked import by_bytes, cut_number
from appliance.oblivious.pages import PAGE, PagedTable
from appliance.oblivious.pairs import pair_table, single_merges, symbols_of
from appliance.oblivious.wholes import whole_words
from appliance.secure.locked import LockedBuffer
from appliance.text.jinja.standins import Fill
from appliance.text.tokenizer.partition import Span, SpecialText
from appliance.text.tokenizer.tokenizer import MergeList

LEAST = 256
"""Bytes of the shortest class, and from each class to the next one."""
ROUNDS = 16
"""Rounds of a block."""
_KEPT = 1 << 16  # bytes of the longest class whose memory is kept


def class_of(nbytes: int) -> int:
    """The bytes that a text of so many is treated as."""
    return max(-(-nbytes // LEAST), 1) * LEAST


def _room_of(length: int) -> int:
    return 1 << (length - 1).bit_length()


class TextRoom:
    """The memory that texts of so many bytes, and shorter ones, are encoded in."""

    def __init__(self, length: int) -> None:
        self.stride = 4 * length + PAGE  # not a power of two, which would crowd the cache
        self.work = LockedBuffer(self.stride * len(ARRAYS), "prompts")
        self.text, self.barred = LockedBuffer(length, "prompts"), LockedBuffer(length, "prompts")
        self.call = LockedBuffer(TextPass.nbytes, "prompts")

    def all(self) -> tuple[LockedBuffer, ...]:
        """Its parts."""
        return self.work, self.text, self.barred, self.call

    def wipe(self) -> None:
        """Overwrite everything that came of a text."""
        for each in self.all():
            each.wipe()

    def close(self) -> None:
        """Wipe it and give it back."""
        for each in self.all():
            each.close()


class MarkTable:
    """Special tokens, as `Mark` has them."""

    def __init__(self, specials: Sequence[SpecialText]) -> None:
        texts = [each.text.encode("utf-8", "surrogateescape") for each in specials]
        self._words = [PagedTable(_words(text)) for text in texts]
        rows = [(each.token, len(text), int(each.guarded), int(each.strips), words.address)
                for each, text, words in zip(specials, texts, self._words, strict=True)]
        self.count, self._table = len(rows), PagedTable(np.array(rows or [(0, 0, 0, 0, 0)], np.int64))
        self.address = self._table.address


def _words(text: bytes) -> NDArray[np.uint64]:
    """Words of 8 bytes, each followed by a mask of the bytes that count."""
    filled = np.zeros((-(-len(text) // 8), 2, 8), np.uint8)
    for place, byte in enumerate(text):
        filled[place // 8, :, place % 8] = byte, 0xFF
    return filled.view(np.uint64).reshape(-1)


class Encoder:
    """The tokenizer of a model, by whole sweeps. Threads take turns."""

    def __init__(self, merges: MergeList, kernels: KernelTable) -> None:
        """UnsupportedError for a tokenizer that is not covered."""
        marked, self._leads = cut_number(merges), merges.leads
        cut = Cut() if merges.marked else cut_of(merges.pre)
        merges, run = by_bytes(merges) if merges.marked else (merges, 0)
        ranks = merges.ranks if merges.marked else single_merges(merges.ranks)
        symbols = symbols_of(ranks, merges.letters)
        paired = {merge: rank for merge, rank in ranks.items() if rank >= run - 1}
        table, found, words = pair_table(paired, symbols), ranges(cut), whole_words(merges)
        self._kernels, self._encode = kernels, kernels.function("encode_text")
        tokens = _tokens(merges, symbols)
        tables = {"RANGES": found, "SHIFTS": table.shifts, "PAIRS": table.pairs, "WHOLES": words.keys,
                  "WHOLE_BYTES": words.rows, "TOKENS": np.concatenate([tokens, words.tokens])}
        self.tables = {name: PagedTable(array) for name, array in tables.items()}
        self._fixed = {name: each.address for name, each in self.tables.items()} | {
            "WHOLE_COUNT": len(words.tokens), "WHOLE_ROW": words.rows.shape[1], "WHOLE_SYMBOL": len(tokens),
            "WHOLE_PAGES": self.tables["WHOLE_BYTES"].count,
            "MARKED": marked, "LEADS": int(merges.leads), "RUN": run,
            "RANGE_COUNT": len(found), "LINES": int(cut.lines), "DIGITS": cut.digits, "EACH_DIGIT": int(cut.each_digit),
            "SHIFT_PAGES": len(table.shifts) // SHIFTS_OF_PAGE, "BUCKETS": table.buckets,
            "PAIR_PAGES": self.tables["PAIRS"].count, "NARROW": int(table.narrow),
            "TOKEN_PAGES": self.tables["TOKENS"].count, "ROUNDS": ROUNDS}
        self._lock, self._rooms, self._marks = threading.Lock(), dict[int, TextRoom](), dict[Any, MarkTable]()
        self.blocks = 0
        """Blocks of rounds that the last text took."""

    def encode(self, text: str, specials: Sequence[SpecialText], untrusted: Sequence[Span], *,
               inside: bool = False, fills: Sequence[Fill] = ()) -> list[int]:
        """Token ids of a text, in which special tokens are found but where a guarded one touches a
        span. `inside`: as of `Tokenizer.encode`. `fills`: bytes to put into the text."""
        first = int(self._leads and not inside)
        data = bytes(first) + text.encode()
        spans = [(start + first, end + first) for start, end in _in_bytes(text, untrusted)]
        length = class_of(len(data))
        with self._lock:
            room = self.room(length)
            try:
                room.text.view[:length] = data.ljust(length, b"\0")
                for start, own in fills:
                    room.text.view[first + start:first + start + len(own)] = own
                return self._run(len(data), spans, room, self._marks_of(tuple(specials)), first)
            finally:
                room.wipe()
                if length > _KEPT:
                    self._rooms.pop(_room_of(length)).close()

    def room(self, length: int) -> TextRoom:
        """The memory of a class of texts. Classes up to each power of two share one."""
        size = _room_of(length)
        if size not in self._rooms:
            self._rooms[size] = TextRoom(size)
        return self._rooms[size]

    def _marks_of(self, specials: tuple[SpecialText, ...]) -> MarkTable:
        if specials not in self._marks:
            if len(self._marks) >= 4:
                self._marks.clear()
            self._marks[specials] = MarkTable(specials)
        return self._marks[specials]

    def _run(self, count: int, spans: Sequence[Span], room: TextRoom, marks: MarkTable, first: int) -> list[int]:
        length = class_of(count)
        barred = bytearray(length)
        for start, end in spans:
            barred[start:end] = b"\1" * (end - start)
        room.barred.view[:length] = barred
        call = np.frombuffer(room.call.view, np.int64)
        for name, value in (self._fixed | {
                "TEXT": room.text.address, "COUNT": count, "LENGTH": length, "BARRED": room.barred.address,
                "MARKS": marks.address, "MARK_COUNT": marks.count, "WORK": room.work.address,
                "STRIDE": room.stride, "FIRST": first}).items():
            call[TextPass.offsets[name] // 8] = value
        made = self._encode(room.call.address)
        self.blocks = int(call[TextPass.offsets["BLOCKS"] // 8])
        if self.blocks < 0:
            raise CapacityError("a word of the text has too many merges, one after the other", code="text-too-long",
                                hint='a long run of one character is one; privacy.memory_access = "open" takes it')
        tokens = room.stride * ARRAYS.index("token")
        return memoryview(room.work.view[tokens:tokens + 4 * length].tobytes()).cast("i")[:made].tolist()


def _in_bytes(text: str, spans: Sequence[Span]) -> list[Span]:
    """Spans of characters as spans of bytes, in one go through the text; those that overlap are one
    after the other."""
    found, at, done = list[Span](), 0, 0
    for begin, end in sorted(spans):
        start = max(begin, at)
        if end > start:
            first = done + len(text[at:start].encode())
            at, done = end, first + len(text[start:end].encode())
            found.append((first, done))
    return found


def _tokens(merges: MergeList, symbols: dict[str, int]) -> NDArray[np.int32]:
    """The token of each symbol, or NONE plus its bytes where it is written by these.
    UnsupportedError where a symbol stands for several."""
    tokens = np.full(max(symbols.values()) + 1, NONE, np.int32)
    for text, symbol in symbols.items():
        ids = merges.ids_of(text)
        if len(ids) > 1:
            raise UnsupportedError("the model's merges make a part without a token, which has no oblivious form yet",
                                   hint='use another model, or privacy.memory_access = "open"')
        apart = len(text) if merges.marked and len(text) > 1 else 0
        tokens[symbol] = ids[0] if ids else NONE + apart
    return tokens
