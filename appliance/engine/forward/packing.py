"""Rows to kernel order by compiled code, which follows a table made of `layout.LAYOUTS`."""

from __future__ import annotations

from typing import Any

import numpy as np

from appliance.errors import EngineError
from appliance.kernels.layouts.pack import KINDS, Move, Pack, Term
from appliance.kernels.runtime.memory import Memory, Words
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import layout
from appliance.models.file.layout import GROUP_ROWS, ByteRun, Bytes
from appliance.models.file.quants import BlockFormat

_FLIP, _MERGED = 0x80808080, 16  # blocks of one unit are taken 16 at a time: their records follow each other

Table = dict[str, int]


def moves(block_format: BlockFormat, merged: int) -> tuple[int, list[Table], list[Table]]:
    """Bytes of `merged` blocks, the tables Move and the tables Term (named by their numbers) of a
    format."""
    runs = layout.LAYOUTS[block_format.name]
    found: list[Table] = []
    terms: list[Table] = []
    start = 0
    for run in runs:
        if run.bits:  # its words go to the place of the next run first
            raw = start + GROUP_ROWS * run.nbytes
            found += _units(ByteRun(run.offset, run.unit, run.count), raw)
            found += _bits(run, raw, start, terms)
        else:
            found += _units(ByteRun(run.offset, run.unit, run.count * merged, run.step, run.flip), start)
        start += GROUP_ROWS * run.nbytes
    return merged * block_format.nbytes, found, terms


def _merge_count(block_format: BlockFormat) -> int:
    return _MERGED if block_format.elements == 1 else 1


def blocks(block_format: BlockFormat, columns: int) -> int:
    """Blocks of a row, as the table of its format has them. EngineError for columns that no kernel
    takes."""
    count, rest = divmod(columns, block_format.elements * _merge_count(block_format))
    if rest:
        raise EngineError(f"rows of {columns} {block_format.name} weights cannot be packed")
    return count


def _units(run: ByteRun, start: int) -> list[Table]:
    """The moves of a run to byte `start` of the record: wide ones as far as they go."""
    if run.step == 2 and run.nbytes == 4:
        return [_move("evens", run.offset, start, 1)]
    if run.step == run.unit == 1:
        return [_move("byte", run.offset, start, run.count)]
    if run.step != 1 or run.unit not in (2, 4):
        raise EngineError(f"no kernel packs {run}")
    wide, narrow = ("quad", "word") if run.unit == 4 else ("octet", "half")
    many, rest = divmod(run.count, KINDS[wide] // run.unit)
    done, flip = many * KINDS[wide], _FLIP if run.flip else 0
    found = [_move(wide, run.offset, start, many, flip)] if many else []
    return found + ([_move(narrow, run.offset + done, start + GROUP_ROWS * done, rest, flip)] if rest else [])


def _bits(run: ByteRun, raw: int, start: int, terms: list[Table]) -> list[Table]:
    """A move for each word of a run whose bits change places; its terms are added to `terms`."""
    found = []
    for word in range(run.count):
        masks: dict[tuple[int, int], int] = {}
        for place in range(32):
            bit = run.bits[32 * word + place]
            key = bit // 32, (place - bit) % 32
            masks[key] = masks.get(key, 0) | 1 << bit % 32
        found.append(_move("terms", 0, start + 64 * word, len(masks)) | {"TERMS": len(terms)})
        terms += [{"SOURCE": raw + 64 * source, "MASK": mask, "TURN": turn}
                  for (source, turn), mask in masks.items()]
    return found


def _move(kind: str, first: int, to: int, count: int, flip: int = 0) -> Table:
    return {"KIND": list(KINDS).index(kind), "FROM": first, "TO": to, "COUNT": count, "NBYTES": KINDS[kind],
            "FLIP": flip}


class Packing:
    """A `layout.Interleave`. Safe to use from several threads, beside the interpreter."""

    def __init__(self, table: KernelTable) -> None:
        self._kernel = table.function("pack_rows")
        self._tables: dict[tuple[str, int], Memory] = {}

    def table(self, block_format: BlockFormat, merged: int | None = None) -> int:
        """The address of the table Pack of a format: of `merged` blocks, or as many as `blocks`
        counts."""
        key = block_format.name, merged or _merge_count(block_format)
        found = self._tables.get(key)
        if found is None:  # the first to put one in wins: another thread may follow that table already
            found = self._tables.setdefault(key, _table(*moves(block_format, key[1])))
        return found.address

    def __call__(self, block_format: BlockFormat, data: Any, rows: int, columns: int, out: Any) -> None:
        """Write GGUF rows (`data`, any buffer) to `out` (writable buffer of whole groups of 16
        rows) in kernel order. EngineError when a size does not match."""
        size, groups = block_format.row_nbytes(columns), layout.groups(rows)
        source, target = np.frombuffer(data, np.uint8), np.frombuffer(out, np.uint8)
        if source.size != rows * size or target.size != groups * GROUP_ROWS * size or not target.flags.writeable:
            raise EngineError(f"{rows} x {columns} {block_format.name} weights of {source.size} bytes cannot be packed "
                              f"into {target.size} bytes")
        whole = rows // GROUP_ROWS * GROUP_ROWS * size
        self._pack(block_format, source[:whole], columns, target[:whole])
        if whole < source.size:
            padded = np.zeros(GROUP_ROWS * size, np.uint8)
            padded[:source.size - whole] = source[whole:]
            self._pack(block_format, padded, columns, target[whole:])
            padded.fill(0)

    def _pack(self, block_format: BlockFormat, source: Bytes, columns: int, target: Bytes) -> None:
        """Whole groups."""
        size, merged = block_format.row_nbytes(columns), _merge_count(block_format)
        if columns % (block_format.elements * merged):  # no product takes such rows: the engine will say
            merged = 1
        if self._kernel(self.table(block_format, merged), source.ctypes.data, size,
                        columns // (block_format.elements * merged), source.size // (GROUP_ROWS * size),
                        target.ctypes.data):
            raise EngineError(f"the table of {block_format.name} leads out of its blocks")


def _table(block: int, found: list[Table], terms: list[Table]) -> Memory:
    """All tables of a format in one piece of memory."""
    start = Pack.offsets["MOVE"]
    last = start + Move.nbytes * len(found)
    words = Words(last + Term.nbytes * len(terms))
    words.put(Pack, {"BLOCK": block, "MOVE_COUNT": len(found)})
    for index, move in enumerate(found):
        first = words.address + last + Term.nbytes * move.get("TERMS", 0)
        words.put(Move, move | {"TERMS": first}, start + Move.nbytes * index)
    for index, term in enumerate(terms):
        words.put(Term, term, last + Term.nbytes * index)
    return words.memory
