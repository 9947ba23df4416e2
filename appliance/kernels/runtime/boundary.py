"""The checks between Python and compiled code: kernels take raw addresses and look at nothing.

Every weight, vector and batch passes here before an address reaches a kernel. A refusal is an
EngineError that says what was found and what is allowed; nothing here depends on numba.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import EngineError
from appliance.kernels.layouts.shapes import SHAPES, column_multiple, group_nbytes, padded_rows
from appliance.kernels.runtime.memory import ALIGNMENT

Int64s = NDArray[np.int64]


def check_weight(name: str, format_name: str, rows: int, columns: int, address: int, nbytes: int,
                 tile_groups: int = 0, *, shape: tuple[int, int, int], runs: int = 1) -> None:
    """Check a packed matrix, or a run of them, against the `shape` (matrices, rows, columns) that
    buffers are made for: known format, whole blocks, padded to whole groups of 16 rows, aligned,
    not null. Without an address it comes in tiles of `tile_groups` groups."""
    if (runs, rows, columns) != shape:
        raise EngineError(f"{name} is {_sizes(runs, rows, columns)}; the model's numbers say {_sizes(*shape)}")
    if format_name not in SHAPES:
        raise EngineError(f"{name}: no kernel multiplies {format_name}; allowed: {', '.join(SHAPES)}")
    if rows < 1 or columns < 1 or columns % column_multiple(format_name):
        raise EngineError(f"{name} is {rows} × {columns}; {format_name} needs whole rows of "
                          f"{column_multiple(format_name)} columns")
    if tile_groups < 0 or (address <= 0 if tile_groups == 0 else address != 0) or address % ALIGNMENT:
        raise EngineError(f"{name} does not begin at a multiple of {ALIGNMENT} bytes")
    expected = padded_rows(rows) // 16 * group_nbytes(format_name, columns)
    if nbytes != expected:
        raise EngineError(f"{name} has {nbytes} bytes in memory; {rows} × {columns} {format_name} takes {expected}")


def _sizes(runs: int, rows: int, columns: int) -> str:
    return f"{rows} × {columns}" if runs == 1 else f"{runs} × {rows} × {columns}"


def check_tiles(name: str, sizes: Sequence[int], groups: int, tile_groups: int, group_nbytes: int, most: int) -> None:
    """The tiles of a matrix of `groups` groups of 16 rows: each is of `tile_groups` groups, but for
    the last one, which has the rest. None has more than the `most` bytes that a thread has room
    for."""
    whole, rest = divmod(groups, tile_groups)
    expected = [tile_groups * group_nbytes] * whole + ([rest * group_nbytes] if rest else [])
    if list(sizes) != expected or max(expected, default=most + 1) > most:
        raise EngineError(f"{name} has {len(sizes)} tiles of up to {max(sizes, default=0)} bytes; expected are "
                          f"{len(expected)} of {tile_groups * group_nbytes}, and there is room for {most}")


def check_vector(name: str, vector: NDArray[np.float32], size: int) -> None:
    """A float32 vector of exactly `size` elements, all finite."""
    if vector.dtype != np.float32 or vector.shape != (size,):
        raise EngineError(f"{name} is {vector.dtype}{list(vector.shape)}; expected float32[{size}]")
    if not np.isfinite(vector).all():
        raise EngineError(f"{name} has values that are not finite numbers")


def check_row(name: str, row: NDArray[Any], kind: type[np.generic], most: int) -> int:
    """The address of a row of numbers that a kernel reads: one piece of memory, no more than `most`
    of them."""
    if row.dtype != kind or row.ndim != 1 or not row.flags.c_contiguous or not 1 <= row.size <= most:
        raise EngineError(f"{name} are {row.dtype}{list(row.shape)}; expected {kind.__name__}[1..{most}], without gaps")
    return int(row.ctypes.data)


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Check the content of a batch."""

    rows: int  # of a batch
    wanted: int  # rows whose logits are asked for
    vocabulary: int
    context: int  # positions of a slot
    slots: int
    stateful: bool = False  # whether slots have a state, which cannot go back to an earlier position


@dataclass(frozen=True, slots=True)
class Run:
    """Rows first .. first + count - 1: tokens of one slot at consecutive positions."""

    first: int
    count: int
    slot: int
    position: int  # of the first row


@dataclass(frozen=True, slots=True)
class Batch:
    """Checked rows of one pass."""

    tokens: Int64s
    positions: Int64s
    slots: Int64s
    wanted: Int64s  # row numbers
    runs: tuple[Run, ...]


class Boundary:
    """Checks batches, and remembers how many positions of each slot hold keys and values."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._filled = [0] * limits.slots

    def filled(self, slot: int) -> int:
        """Positions of a slot that hold keys and values."""
        return self._filled[slot]

    def forget(self, slot: int, keep: int = 0) -> None:
        """Let go of all positions of a slot from `keep` on; EngineError for a slot or position that
        is not there."""
        if not 0 <= slot < self.limits.slots or not 0 <= keep <= self._filled[slot]:
            raise EngineError(f"cannot keep {keep} positions of slot {slot}")
        self._check_state(slot, keep)
        self._filled[slot] = keep

    def go_back(self, slot: int, positions: int) -> None:
        """Guesses of a slot were wrong. Its state, with its log, is that of so many positions of
        those that it holds; EngineError for more."""
        if not 0 <= slot < self.limits.slots or not 0 <= positions <= self._filled[slot]:
            raise EngineError(f"slot {slot} cannot go back to {positions} positions")
        self._filled[slot] = positions

    def inherit(self, slot: int, positions: int) -> None:
        """An empty slot got the keys and values of so many positions; EngineError for one that is
        not empty, or not there."""
        if not 0 <= slot < self.limits.slots or self._filled[slot] or not 0 <= positions <= self.limits.context:
            raise EngineError(f"slot {slot} cannot begin with {positions} positions")
        self._filled[slot] = positions

    def check(self, tokens: Sequence[int] | Int64s, positions: Sequence[int] | Int64s,
              slots: Sequence[int] | Int64s, wanted: Sequence[int] | Int64s) -> Batch:
        """The batch as int64 arrays. Each slot's rows are neighbours, at consecutive positions that
        continue it."""
        limits = self.limits
        a, b, c = (_integers(name, values) for name, values in (
            ("tokens", tokens), ("positions", positions), ("slots", slots)))
        d = _integers("wanted rows", wanted)
        if not 1 <= a.size <= limits.rows or b.size != a.size or c.size != a.size:
            raise EngineError(f"a batch of {a.size} tokens, {b.size} positions, {c.size} slots; "
                              f"allowed: 1..{limits.rows} of each")
        if d.size > limits.wanted:
            raise EngineError(f"logits of {d.size} rows; allowed: up to {limits.wanted}")
        _within("token", a, limits.vocabulary)
        _within("position", b, limits.context)
        _within("slot", c, limits.slots)
        _within("wanted row", d, a.size)
        runs = _runs(b, c)
        self._check_runs(runs)
        return Batch(a, b, c, d, runs)

    def _check_runs(self, runs: tuple[Run, ...]) -> None:
        if len({run.slot for run in runs}) != len(runs):
            raise EngineError("the rows of a slot are not neighbours at consecutive positions")
        for run in runs:
            if run.position > self._filled[run.slot]:
                raise EngineError(f"slot {run.slot} continues at position {run.position}, "
                                  f"but holds {self._filled[run.slot]}")
            self._check_state(run.slot, run.position)

    def _check_state(self, slot: int, position: int) -> None:
        """EngineError for a position that a state cannot go back to."""
        if self.limits.stateful and position not in (0, self._filled[slot]):
            raise EngineError(f"slot {slot} has the state of {self._filled[slot]} positions, not that of {position}")

    def done(self, batch: Batch) -> None:
        """Record that the keys and values of a batch are in the cache."""
        for run in batch.runs:
            self._filled[run.slot] = run.position + run.count


def _integers(name: str, values: Sequence[int] | Int64s) -> Int64s:
    try:
        array = np.asarray(values if len(values) else np.empty(0, np.int64))
    except (TypeError, ValueError, OverflowError):
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in "iu" or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        raise EngineError(f"{name} are not a row of integers")
    return np.ascontiguousarray(array, np.int64)


def _within(name: str, values: Int64s, end: int) -> None:
    if values.size and (int(values.min()) < 0 or int(values.max()) >= end):
        raise EngineError(f"a {name} is outside 0..{end - 1}")


def _runs(positions: Int64s, slots: Int64s) -> tuple[Run, ...]:
    if positions.size == 1:
        return (Run(0, 1, int(slots[0]), int(positions[0])),)
    border = np.flatnonzero((np.diff(slots) != 0) | (np.diff(positions) != 1)) + 1
    starts = [0, *border.tolist()]
    ends = [*starts[1:], positions.size]
    return tuple(Run(first, end - first, int(slots[first]), int(positions[first]))
                 for first, end in zip(starts, ends, strict=True))
