"""Rows to kernel order and back in plain numpy, by the table of `models.layout`: for sealing, and
for the self-test.

Models that are served go through `engine.packing`.

`deinterleave_into` gives back what `interleave_into` took, for every input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError
from appliance.models.file import layout
from appliance.models.file.layout import ByteRun, Bytes
from appliance.models.file.quants import BlockFormat

_SLAB = 1 << 20  # bytes worked on at a time, so that the runs of a slab find it in the cache
_UNITS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def _rearrange(units: NDArray[Any], target: NDArray[Any], bits: tuple[int, ...], inverse: bool) -> None:
    """Move the bits of a run, (groups, blocks, count, 16) words, by `ByteRun.bits` or back, into
    `target`."""
    order = np.argsort(bits) if inverse else np.array(bits)
    words = np.array(units.swapaxes(2, 3), order="C")  # the words of a row side by side
    single = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    moved = np.take(single, order, axis=-1)
    packed = np.packbits(moved, axis=-1, bitorder="little")
    target[...] = packed.view("<u4").swapaxes(2, 3)
    for copy in (words, single, moved, packed):  # no weights are left in memory that is given back
        copy.fill(0)


def _put(units: NDArray[Any], target: NDArray[Any], run: ByteRun, inverse: bool) -> None:
    """`target` = the units, changed as the run says."""
    if run.bits:
        _rearrange(units, target, run.bits, inverse)
        return
    target[...] = units
    if run.flip:
        target ^= np.uint32(0x80808080)


def _block_units(rows: Bytes, run: ByteRun) -> list[NDArray[Any]]:
    """Return a run in GGUF order, (groups, 16, blocks, block bytes), as units (groups, blocks,
    count, 16); one array, or one for each byte of the unit where its bytes are apart."""
    if run.step == 1:
        units = rows[..., run.offset:run.offset + run.nbytes].view(_UNITS[run.unit])
        return [units.transpose(0, 2, 3, 1)]
    last = run.offset + run.step * run.nbytes
    return [rows[..., first:last:run.step * run.unit].transpose(0, 2, 3, 1)
            for first in range(run.offset, run.offset + run.step * run.unit, run.step)]


def _record_units(records: Bytes, run: ByteRun, start: int) -> list[NDArray[Any]]:
    """Return the same run in a record, (groups, blocks, record bytes), from its byte `start` on."""
    piece = records[..., start:start + layout.GROUP_ROWS * run.nbytes]
    shape = (*records.shape[:2], run.count, layout.GROUP_ROWS)
    if run.step == 1:
        return [piece.view(_UNITS[run.unit]).reshape(shape)]
    return [piece.reshape(*shape, run.unit)[..., byte] for byte in range(run.unit)]


def _move(block_format: BlockFormat, rows: Bytes, records: Bytes, inverse: bool) -> None:
    """Copy whole groups: `rows` (groups, 16, blocks, block bytes) to `records` (groups, blocks,
    record bytes)."""
    start = 0
    for run in layout.LAYOUTS[block_format.name]:
        for block, record in zip(_block_units(rows, run), _record_units(records, run, start), strict=True):
            units, target = (record, block) if inverse else (block, record)
            _put(units, target, run, inverse)
        start += layout.GROUP_ROWS * run.nbytes


def _convert(block_format: BlockFormat, rows: Bytes, records: Bytes, columns: int, inverse: bool) -> None:
    """`_move` over all groups, slab by slab; a last group of fewer rows goes through a padded copy.
    """
    blocks, size = columns // block_format.elements, block_format.nbytes
    count, whole = layout.groups(len(rows)), len(rows) // layout.GROUP_ROWS
    records = records.reshape(count, blocks, layout.GROUP_ROWS * size)
    full = rows[:whole * layout.GROUP_ROWS].reshape(whole, layout.GROUP_ROWS, blocks, size)
    step = max(1, _SLAB // (layout.GROUP_ROWS * blocks * size))
    for first in range(0, whole, step):
        last = min(first + step, whole)
        _move(block_format, full[first:last], records[first:last], inverse)
    if whole < count:
        rest = rows[whole * layout.GROUP_ROWS:]
        padded = np.zeros((layout.GROUP_ROWS, rows.shape[1]), np.uint8)
        if not inverse:
            padded[:len(rest)] = rest
        _move(block_format, padded.reshape(1, layout.GROUP_ROWS, blocks, size), records[whole:], inverse)
        if inverse:
            rest[...] = padded[:len(rest)]
        padded.fill(0)


def _checked(data: Any, nbytes: int, what: str) -> Bytes:
    view = np.frombuffer(data, np.uint8)
    if view.size != nbytes:
        raise FormatError(f"{what}: {view.size} bytes; needed: {nbytes}")
    return view


def interleave_into(block_format: BlockFormat, data: Any, rows: int, columns: int, out: Any) -> None:
    """Write GGUF rows (`data`, any buffer) to `out` (writable buffer of `interleaved_nbytes`) in
    kernel order. Raises FormatError if a size does not match."""
    size = block_format.row_nbytes(columns)
    source = _checked(data, rows * size, f"{rows} x {columns} {block_format.name} weights")
    target = _checked(out, layout.interleaved_nbytes(block_format, rows, columns), "kernel-order buffer")
    _convert(block_format, source.reshape(rows, size), target, columns, inverse=False)


def deinterleave_into(block_format: BlockFormat, data: Any, rows: int, columns: int, out: Any) -> None:
    """The inverse of `interleave_into`: `data` in kernel order to GGUF rows in `out`, padding
    dropped."""
    size = block_format.row_nbytes(columns)
    source = _checked(data, layout.interleaved_nbytes(block_format, rows, columns), "kernel-order weights")
    target = _checked(out, rows * size, f"buffer for {rows} x {columns} {block_format.name} weights")
    _convert(block_format, target.reshape(rows, size), source, columns, inverse=True)


def interleave(block_format: BlockFormat, data: Any, rows: int, columns: int) -> bytes:
    """`interleave_into` new memory."""
    out = np.empty(layout.interleaved_nbytes(block_format, rows, columns), np.uint8)
    interleave_into(block_format, data, rows, columns, out)
    return out.tobytes()
