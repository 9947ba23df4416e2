"""Work on logits that touches the same pages whatever is likely and chosen: see
docs/concepts/memory-access.md.

Each kernel sweeps over a whole row. A row of candidates is as long as the vocabulary, however many
are left. `HOLE`, which has no weight, fills it up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.runtime.table import KernelTable
from appliance.secure.locked import LockedBuffer

MOST = 511
"""The most logits of a short row, which goes on in rows of its own."""
HOLE = np.finfo(np.float32).min
"""A logit without weight."""
_PAGE, _CHUNK, _LINE = 4096, 256, 64

Logits = NDArray[np.float32]
Mask = NDArray[np.bool_]
Whole = NDArray[np.int32]
Wide = NDArray[np.int64]
Reals = NDArray[np.float64]


def _filled(vocabulary: int) -> tuple[int, int]:
    """Entries of a row, and of a sorted one."""
    count = -(-vocabulary // _CHUNK) * _CHUNK
    return count, 1 << (count - 1).bit_length()


def rows_nbytes(vocabulary: int) -> int:
    """Bytes of the rows of such choices."""
    count, power = _filled(vocabulary)
    short = rows_nbytes(MOST) if vocabulary > MOST else 0
    return 2 * _PAGE + 6 * (4 * count + 2 * _PAGE) + 2 * (8 * power + _PAGE) + short


class Rows:
    """Rows of a vocabulary, in pages of their own: logits, tokens and marks of candidates, two
    spare ones, and sums by token. Then come keys and payloads to be sorted."""

    def __init__(self, vocabulary: int) -> None:
        """Errors as of `LockedBuffer`."""
        self.count, power = _filled(vocabulary)
        self.parts = [LockedBuffer(4 * self.count + _PAGE, "activations") for _ in range(6)]
        self.parts += [LockedBuffer(8 * power, "activations") for _ in range(2)]
        self.logits = np.frombuffer(self.parts[0].view, np.float32, self.count)
        self.tokens, self.marks, self.low, self.high, self.sums = (
            np.frombuffer(part.view, np.int32, self.count) for part in self.parts[1:6])
        self.keys, self.payloads = (np.frombuffer(part.view, np.int64, power) for part in self.parts[6:])
        self.places = np.arange(self.count, dtype=np.int32)


class Sweep:
    """The kernels of such choices, and the pages that they write."""

    def __init__(self, kernels: KernelTable, vocabulary: int) -> None:
        """Errors as of `LockedBuffer`."""
        self.kernels, self.vocabulary, self.rows = kernels, vocabulary, Rows(vocabulary)
        self._mark, self._forward = kernels.function("mark_highest"), kernels.function("bring_forward")
        self._sort, self._add_up = kernels.function("sort_pairs"), kernels.function("add_up")
        self._place, self._row = kernels.function("place_of_draw"), kernels.function("token_row")
        self._spare = LockedBuffer(_PAGE, "activations")
        self.short = Sweep(kernels, MOST) if vocabulary > MOST else None  # rows of `MOST`

    def highest(self, logits: NDArray[np.float32], count: int) -> Mask:
        """Mark the `count` highest, as `ordering.highest` chooses them."""
        self._mark_highest(logits, count)
        mask: Mask = self.rows.marks[:logits.size] != 0
        return mask

    def _mark_highest(self, logits: NDArray[np.float32], count: int) -> None:
        marks = self.rows.marks
        marks[logits.size:] = 0
        self._mark(logits.ctypes.data, logits.size, min(count, logits.size), marks.ctypes.data)

    def forward(self, values: NDArray[Any], names: Whole, mask: Mask, hole: int) -> int:
        """Move what is marked in two rows of `Rows` to the front; how many they are."""
        marks = self.rows.marks
        marks[mask.size:] = 0
        np.copyto(marks[:mask.size], mask)
        return self._move(values, names, hole)

    def highest_forward(self, size: int, count: int) -> int:
        """Move the `count` highest of the first `size` logits in `Rows`, and their tokens, to the
        front; how many they are."""
        self._mark_highest(self.rows.logits[:size], count)
        return self._move(self.rows.logits, self.rows.tokens, int(HOLE.view(np.int32)))

    def _move(self, values: NDArray[Any], names: Whole, hole: int) -> int:
        marks = self.rows.marks
        return int(self._forward(values.ctypes.data, names.ctypes.data, marks.ctypes.data, marks.size, hole))

    def packed(self, values: Reals, mask: Mask, out: Reals) -> int:
        """Write the marked numbers (n,), then zeros, to `out`; how many they are."""
        low, high, halves = self.rows.low, self.rows.high, values.view(np.int32)
        for row, half in ((low, halves[0::2]), (high, halves[1::2])):
            row[half.size:] = 0
            np.copyto(row[:half.size], half)
        count = self.forward(low, high, mask, 0)
        halves = out.view(np.int32)
        np.copyto(halves[0::2], low[:out.size])
        np.copyto(halves[1::2], high[:out.size])
        return count

    def sort(self, keys: Wide, logits: Logits) -> Whole:
        """Sort places by ascending keys (n,), of equal ones the lowest first. Returns the bits of
        their logits in that order; keys and places stay in `Rows`."""
        rows, size = self.rows, keys.size
        rows.keys[size:] = np.iinfo(np.int64).max
        np.copyto(rows.keys[:size], keys)
        rows.payloads[size:] = np.iinfo(np.int64).max
        halves = rows.payloads.view(np.int32)
        np.copyto(halves[0:2 * size:2], logits.view(np.int32))
        np.copyto(halves[1:2 * size:2], rows.places[:size])
        self._sort(rows.keys.ctypes.data, rows.payloads.ctypes.data, rows.keys.size)
        np.copyto(rows.low[:size], halves[0:2 * size:2])
        return rows.low[:size]

    def first(self, keys: Wide, count: int) -> Mask:
        """Mark the places of the `count` first of keys (n,) that were sorted last."""
        rows = self.rows
        border = self.number(rows.keys, count - 1)
        last = self.number(rows.payloads, count - 1) >> 32
        mask: Mask = (keys < border) | ((keys == border) & (rows.places[:keys.size] <= last))
        return mask

    def number(self, row: NDArray[Any], place: int) -> Any:
        """One number of a row in pages."""
        each = _LINE // row.itemsize
        pages = -(-row.nbytes // _PAGE)
        self._row(row.ctypes.data, pages, _LINE, place // each, self._spare.address)
        return np.frombuffer(self._spare.view, row.dtype, each)[place % each].item()

    def best(self, logits: Logits, token: int, count: int) -> tuple[float, list[tuple[int, float]]]:
        """The logit of a token, and the `count` best tokens (at most `MOST`) with theirs."""
        rows, size, count = self.rows, logits.size, min(count, logits.size)
        rows.logits[size:] = HOLE
        np.copyto(rows.logits[:size], logits)
        own = float(self.number(rows.logits, token))
        if not count:
            return own, []
        np.copyto(rows.tokens, rows.places)
        self.highest_forward(size, count)
        some = rows.logits[:count]
        order = np.argsort(np.negative(some, out=rows.low.view(np.float32)[:count]), kind="stable")
        return own, [(int(rows.tokens[place]), float(some[place])) for place in order]

    def sums(self, tokens: Sequence[int], values: NDArray[np.int32] | None = None, *, highest: bool = False,
             before: Whole | None = None) -> Whole:
        """A row (vocabulary,) with the sum of values of each token, or with the highest of them.
        Without values each counts one. `before`: a row that they are added to."""
        row, places = self.rows.sums, np.array(tokens, np.int64)
        row.fill(0)
        if before is not None:
            np.copyto(row[:before.size], before)
        values = np.ones(places.size, np.int32) if values is None else values
        self._add_up(row.ctypes.data, -(-row.nbytes // _PAGE), places.ctypes.data, values.ctypes.data, places.size,
                     int(highest))
        return row[:self.vocabulary]

    def place(self, weights: Reals, sums: Reals, uniform: float) -> int:
        """Return the place of a draw, as `sampler.invert` finds it, by `exact.running_sums`."""
        return int(self._place(weights.ctypes.data, weights.size, sums.ctypes.data, uniform, self._spare.address))

    def wipe(self) -> None:
        """Overwrite everything with zeros."""
        for part in (*self.rows.parts, self._spare):
            part.wipe()
        if self.short is not None:
            self.short.wipe()


def chosen(mask: Mask, yes: Logits, no: Logits | np.float32, out: Logits) -> Logits:
    """`yes` where the mask is set, else `no`, in `out`, which may be `yes`. numpy's own `where`
    reads only one of them."""
    bits, mixed = np.negative(mask.view(np.int8), dtype=np.int32), out.view(np.int32)
    np.bitwise_xor(yes.view(np.int32), no.view(np.int32), out=mixed)
    np.bitwise_and(mixed, bits, out=mixed)
    np.bitwise_xor(mixed, no.view(np.int32), out=mixed)
    return out
