"""Whether redaction may change a text: no object of Python has the text, and the same pages are
touched for all texts of a class of length.

A look finds whether any rule's expression matches anywhere. Where none does, redaction leaves the
text as it is. Bytes become characters (RFC 3629), which move to the front by steps of 1, 2, 4 and
so on. Tables have the classes of characters, and each of their pages is read for each character.
The kernel `find_spans` gets a text in which each place is a character of its own. So it reads its
tables by places, and it takes all turns of loops.

Detectors see folded texts (`detectors.folding`): their classes are unfolded here. A character that
folds to none or to several counts as a match. So do `^` and `$` at any place, since the end of a
text would tell the number of its characters.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.detectors.folding import changed_by_folding
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import GROUP, PAGE, POINTS, Places, Ranges, alphabet
from appliance.oblivious import class_of
from appliance.policy.schema.patterns import bounds
from appliance.secure.locked import LockedBuffer

WINDOW = 1 << 14
"""Bytes that are looked at in one go, at least."""
_NARROW = 1024  # characters: each place takes more work where an expression is wider
_WIDEST = 4  # bytes of a character
_LEADS = ((0xC0, 0x1F, 1), (0xE0, 0x0F, 2), (0xF0, 0x07, 3))  # first byte, its own bits, bytes behind it
_WORD = (1 << 32) - 1

Ints = NDArray[np.int64]


def _nothing() -> None:
    """Let a look go on."""


class _LookRoom:
    """The memory of looks at up to `size` bytes: some words for each place."""

    def __init__(self, size: int, groups: int) -> None:
        words = size + GROUP
        self._memory = LockedBuffer(8 * words * (5 + groups), "prompts")
        whole = np.frombuffer(self._memory.view, np.int64)
        self.bytes, self.codes, self.one, self.two, self.three = (
            whole[at * words:(at + 1) * words] for at in range(5))
        self.rows = whole[5 * words:(5 + groups) * words].reshape(-1, groups)

    def wipe(self, size: int) -> None:
        """Overwrite what came of a text of so many places."""
        for each in (self.bytes, self.codes, self.one, self.two, self.three, self.rows):
            each[:size] = 0


class _Swept:
    """A table of which each page is read for each of some numbers."""

    def __init__(self, array: NDArray[Any]) -> None:
        own = np.ascontiguousarray(array).reshape(-1)
        memory = mmap.mmap(-1, -(-own.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        memory[:own.nbytes] = own.tobytes()
        self._pages = np.frombuffer(memory, own.dtype).reshape(-1, mmap.PAGESIZE // own.itemsize)

    def read(self, numbers: Ints, to: Ints, own: Ints, spare: Ints) -> None:
        """The entries of these numbers; `own`, `spare`: memory for as many words."""
        size, to[:] = self._pages.shape[1], 0
        found = spare.view(self._pages.dtype)[:len(numbers)]
        for number, page in enumerate(self._pages):
            np.bitwise_and(numbers, size - 1, out=own)
            np.take(page, own, out=found, mode="clip")
            np.right_shift(numbers, size.bit_length() - 1, out=own)
            np.equal(own, number, out=own)
            np.multiply(own, found, out=own)
            to |= own


class _Spelling:
    """The expressions that see one spelling of a text: as it is, or folded."""

    def __init__(self, patterns: Sequence[str], changed: Mapping[int, str], kernels: KernelTable) -> None:
        """`changed`: what characters fold to that do not fold to themselves."""
        narrow = [each for each in patterns if bounds(each).high < _NARROW]
        wide = [each for each in patterns if each not in narrow]
        self.places = [Places(group, kernels) for group in (narrow, wide) if group]
        classes, self.firsts = list[Ranges](), list[int]()  # of each, its first word of a row
        for each in self.places:
            self.firsts.append(len(classes) // GROUP)
            classes += [_unfolded(ranges, changed) for ranges in each.classes]
            classes += [()] * (-len(classes) % GROUP)
        self._rare = len(classes) // GROUP if changed else None
        if changed:
            classes.append(tuple((point, point + 1) for point, folded in changed.items() if len(folded) != 1))
        known = alphabet(classes)
        absent = np.full((1, PAGE), len(known.rows))  # beyond a text's end: a character of no class
        self.groups = known.rows.shape[1]
        self._page_of = _Swept(np.append(known.page_of, len(known.pages)).astype(np.int16))
        self._row_of = _Swept(np.concatenate([known.pages, absent]).astype(np.int16))
        rows = np.concatenate([known.rows, np.zeros((1, self.groups), np.uint64)]).view(np.int64)
        self._rows = [_Swept(rows[:, group]) for group in range(self.groups)]

    def classify(self, room: _LookRoom, size: int) -> bool:
        """Write the classes of so many places; whether one folds to no character, or to several."""
        codes, numbers, rows, own, spare = (
            each[:size] for each in (room.codes, room.one, room.two, room.three, room.bytes))
        np.right_shift(codes, 8, out=numbers)
        self._page_of.read(numbers, rows, own, spare)
        np.left_shift(rows, 8, out=numbers)
        np.bitwise_and(codes, PAGE - 1, out=rows)
        numbers |= rows
        self._row_of.read(numbers, rows, own, spare)
        np.copyto(numbers, rows)
        for group, each in enumerate(self._rows):
            each.read(numbers, rows, own, spare)
            room.rows[:size, group] = rows
        return self._rare is not None and bool(np.bitwise_or.reduce(room.rows[:size, self._rare]))


class Looks:
    """Looks at texts, one at a time."""

    def __init__(self, detected: Sequence[str], patterns: Sequence[str], kernels: KernelTable) -> None:
        """Expressions of detectors, and patterns of a policy; some of them. Errors as of
        `LockedBuffer`."""
        spellings = [(detected, changed_by_folding() if detected else {}), (patterns, {})]
        self._spellings = [_Spelling(list(dict.fromkeys(group)), changed, kernels)
                           for group, changed in spellings if group]
        width = max(each.width for spelling in self._spellings for each in spelling.places)
        self._overlap = class_of(_WIDEST * (width + 2))
        self._size = max(WINDOW, 2 * self._overlap)
        self._turn = threading.Lock()
        groups = max(spelling.groups for spelling in self._spellings)
        self._room = _LookRoom(self._size, groups)
        self._text = np.arange(PAGE, PAGE + self._size, dtype=np.int32)
        self._numbers = np.arange(self._size, dtype=np.int32).reshape(-1, PAGE)
        self._pages = np.array([0, *(page.ctypes.data for page in self._numbers)])
        for spelling in self._spellings:
            for first, each in zip(spelling.firsts, spelling.places, strict=True):
                each.take(self._pages.ctypes.data, self._room.rows.ctypes.data + 8 * first, groups)

    def work(self, length: int) -> int:
        """How many words of streams `settled` takes for so many characters, roughly."""
        return 2 * sum(each.work * (length + 2 * each.width + 1024) // 64
                       for spelling in self._spellings for each in spelling.places)

    def finds(self, text: memoryview, between: Callable[[], None] = _nothing) -> bool:
        """Whether a rule may change a text in UTF-8. `between` is called after each part, and may
        raise to end the look."""
        found, at = False, 0
        while at == 0 or at + self._overlap < len(text):
            with self._turn:  # others look in between
                found |= self._finds(text[at:at + self._size])
            between()
            at += self._size - self._overlap
        return found

    def _finds(self, text: memoryview) -> bool:
        size, found = class_of(len(text)), False
        try:
            self._read(text, size)
            for spelling in self._spellings:
                found |= spelling.classify(self._room, size)
                for each in spelling.places:
                    found |= sum(len(spans) for spans in each.spans(self._text[:size])) > 0
        finally:
            self._room.wipe(size)
        return found

    def settled(self, text: memoryview, start: int, *, final: bool) -> int | None:
        """Up to which character, from the one numbered `start` on, it is certain that no rule
        changes a text that goes on, or ends here (`final`). None where one may, and where the text
        is too long."""
        if len(text) > self._size:
            return None
        size = -(-max(len(text), 1) // GROUP) * GROUP
        with self._turn:
            try:
                count = self._read(text, size)
                certain = [self._settled(spelling, size, count, start, final=final) for spelling in self._spellings]
            finally:
                self._room.wipe(size)
        return None if None in certain else min(each for each in certain if each is not None)

    def _settled(self, spelling: _Spelling, size: int, count: int, start: int, *, final: bool) -> int | None:
        if spelling.classify(self._room, size):
            return None
        text, bound = self._text[:count], count
        for each in spelling.places:
            undecided = () if final else each.undecided(text, start)
            bound = min([bound, *undecided[:1]])
            if any((spans[:, 0] < bound).any() for spans in each.spans(text, start)):
                return None
        return int(bound)

    def _read(self, text: memoryview, size: int) -> int:
        """Write the characters of a text to the front of `codes`; how many they are. Behind them
        are places without one."""
        room = self._room
        data, codes, one, two, begins = (
            each[:size] for each in (room.bytes, room.codes, room.one, room.two, room.three))
        np.copyto(data[:len(text)], np.frombuffer(text, np.uint8))
        np.bitwise_and(data, 0x7F, out=codes)
        for lead, bits, more in _LEADS:
            np.bitwise_and(data, bits, out=one)
            for behind in range(1, more + 1):
                one <<= 6
                np.bitwise_and(room.bytes[behind:behind + size], 0x3F, out=two)
                one |= two
            np.greater_equal(data, lead, out=two)
            np.negative(two, out=two)
            one ^= codes
            one &= two
            codes ^= one
        np.bitwise_and(data, 0xC0, out=begins)
        np.not_equal(begins, 0x80, out=begins)
        begins[len(text):] = 0
        count = int(begins.sum())
        np.subtract(1, begins, out=one)
        np.cumsum(one, out=two)
        two <<= 32  # by how many places each moves
        codes ^= POINTS  # no character is 0 now
        codes |= two
        np.negative(begins, out=begins)
        codes &= begins
        for step in range((size - 1).bit_length()):
            _move(codes, one, two, step)
        codes &= _WORD
        codes ^= POINTS
        return count


def _move(codes: Ints, one: Ints, two: Ints, step: int) -> None:
    """Move characters to the front by 2**step places, where their distance has this bit. Places
    without a character are 0."""
    np.right_shift(codes, 32 + step, out=one)
    one &= 1
    np.negative(one, out=one)
    np.bitwise_and(codes, one, out=two)
    codes ^= two
    codes[:-1 << step] |= two[1 << step:]


def _unfolded(ranges: Ranges, changed: Mapping[int, str]) -> Ranges:
    """The characters that fold to one of these."""
    if not changed:
        return ranges
    single = {point: ord(folded) for point, folded in changed.items() if len(folded) == 1}
    inside = np.zeros(POINTS + 1, bool)
    for first, end in ranges:
        inside[first:end] = True
    folded = inside[list(single.values())]
    inside[list(changed)] = False
    inside[list(single)] = folded
    edges = np.flatnonzero(np.diff(inside, prepend=False)).tolist()
    return tuple(zip(edges[::2], edges[1::2], strict=True))
