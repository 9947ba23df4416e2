"""What a debug build of the kernels may touch (`kernels.guard`), and whether the tables of a pass may be followed.

Every word is looked at: shapes against each other, every address against the ranges that may be touched, every token,
position, slot, row, tile and span against its limits. No word is read where a range does not hold it.
"""

from __future__ import annotations

import ctypes

import numpy as np

from appliance.engine.forward.forward import Forward
from appliance.engine.kernels.layouts import step as step_layout
from appliance.engine.kernels.layouts.attention import BLOCK, SPAN, state_nbytes, tile_tokens
from appliance.engine.kernels.layouts.step import (
    CALL,
    COUNTER_NBYTES,
    LAYER_NBYTES,
    READ,
    STEP,
    TILE_NBYTES,
    UNIT_NBYTES,
    WRITE,
    L,
    S,
    T,
    U,
    W,
)
from appliance.engine.kernels.runtime import team
from appliance.engine.kernels.runtime.memory import Memory

FAULTS = {"batch", "buffer", "weight", "code", "vector", "cache", "tile"}


class Refused(Exception):  # noqa: N818
    """A table that must not be followed; its text is one of FAULTS."""


class Guard:
    """The ranges of one pass' memory and code, in the words that its kernels look at."""

    def __init__(self, forward: Forward, *more: tuple[int, int, int]) -> None:
        """`more` ranges: address, bytes, access. Resident models only."""
        cache, source, both = forward._cache, forward._source, READ | WRITE
        matrices = [source.weight(name) for name, info in source.tensors.items() if len(info.shape) == 2]
        self.ranges = [
            *((memory.address, memory.nbytes, both) for memory in forward._memories),
            *((memory.address, memory.nbytes, READ) for memory in (*forward._kept, forward._layers.memory)),
            *((weight.address, weight.nbytes, READ) for weight in matrices),
            *((address, 1, CALL) for address in forward._table._addresses.values()),
            (cache.keys, cache.nbytes, both), (forward._pool.team, team.nbytes(forward._pool.threads), both), *more]
        table, self._status = Memory(24 * len(self.ranges)), Memory(8)
        table.view(np.int64)[:] = np.array(self.ranges, np.int64).reshape(-1)
        for memory in (table, self._status):
            forward._pool.keep(memory)
        forward._step.put(STEP, {"STATUS": self._status.address, "RANGES": table.address,
                                 "RANGE_COUNT": len(self.ranges)})

    def expect_none(self) -> None:
        """Refused, "by a kernel", where one met a place that it may not touch since this was asked last."""
        status = self._status.view(np.int64)
        if status[0]:
            fault, status[0] = step_layout.FAULTS[int(status[0])], 0
            raise Refused(f"{fault}, by a kernel")


def check(forward: Forward, guard: Guard) -> None:
    """Refused unless the pass that the tables describe may run."""
    judge = _Judge(forward, guard)
    judge.batch()
    judge.buffers()
    judge.cache()
    judge.tiles()
    judge.layers()


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _require(fault: str, condition: bool) -> None:
    if not condition:
        raise Refused(fault)


class _Judge:
    def __init__(self, forward: Forward, guard: Guard) -> None:
        self.limits, self.shape = forward.boundary.limits, forward._architecture
        self.ranges, self.threads = guard.ranges, forward._pool.threads
        self.step = forward._step.address

    def word(self, offset: int) -> int:
        """A word of the table STEP."""
        return _word(self.step + offset)

    def found(self, fault: str, address: int, nbytes: int, access: int) -> None:
        """One range that may be accessed so holds `nbytes` at `address`."""
        _require(fault, any(start <= address and 0 <= nbytes <= start + size - address and allowed & access == access
                            for start, size, allowed in self.ranges))

    def numbers(self, table: int, count: int, end: int) -> None:
        """`count` int64 at `table`, each within 0..end-1."""
        self.found("buffer", table, 8 * count, READ)
        _require("batch", all(0 <= _word(table + 8 * index) < end for index in range(count)))

    def batch(self) -> None:
        """Counts of rows, and every token, position, slot and wanted row."""
        rows, wanted, limits = self.word(S.ROWS), self.word(S.WANTED), self.limits
        _require("batch", 1 <= rows <= limits.rows and 0 <= wanted <= limits.wanted)
        self.numbers(self.word(S.TOKENS), rows, limits.vocabulary)
        self.numbers(self.word(S.POSITIONS), rows, limits.context)
        self.numbers(self.word(S.SLOTS), rows, limits.slots)
        self.numbers(self.word(S.WANTED_ROWS), wanted, rows)

    def rows(self, place: int, width: int) -> None:
        """The buffer of rows at the word `place`, whose stride is the next: `width` bytes of every row of the batch."""
        stride = self.word(place + 8)
        _require("buffer", 0 < width <= stride)
        self.found("buffer", self.word(place), (self.word(S.ROWS) - 1) * stride + width, READ | WRITE)

    def buffers(self) -> None:
        """Buffers that a pass writes."""
        shape, size, stride = self.shape, self.word(S.HEAD_SIZE), self.word(S.LOGITS_STRIDE)
        heads, kv_heads, wide = self.word(S.HEADS), self.word(S.KV_HEADS), 4 * shape.feed_forward
        _require("buffer", (heads, kv_heads, size) == (shape.heads, shape.kv_heads, shape.head_size))
        self.found("buffer", self.word(S.TEAM), team.nbytes(self.threads), READ | WRITE)
        self.rows(S.RESIDUAL, 4 * shape.embedding)
        self.rows(S.PROJECTED, 4 * size * (heads + 2 * kv_heads))
        self.rows(S.ATTENDED, 4 * size * heads)
        _require("buffer", self.word(S.UP_OFFSET) == wide)
        self.rows(S.HIDDEN, 2 * wide)
        _require("buffer", 64 * self.word(S.OUTPUT_WEIGHT + W.GROUPS) <= stride)
        self.found("buffer", self.word(S.LOGITS), stride * self.word(S.WANTED), READ | WRITE)
        self.found("buffer", self.word(S.PRIVATE), self.threads * self.word(S.PRIVATE_STRIDE), READ | WRITE)
        rows = heads // kv_heads * tile_tokens(heads // kv_heads)
        states, end = state_nbytes(size) * rows, 0
        for place, nbytes in ((S.PRIVATE_ROW, 4 * max(shape.embedding, shape.feed_forward, heads * size)),
                              (S.PRIVATE_QUERY, 4 * size * rows), (S.PRIVATE_TOTAL, states), (S.PRIVATE_PART, states),
                              (S.PRIVATE_SCRATCH, 1)):
            _require("buffer", end <= self.word(place))
            end = self.word(place) + nbytes
        _require("buffer", end <= self.word(S.PRIVATE_STRIDE))

    def cache(self) -> None:
        """Strides of the cache within each other, and its kernels."""
        limits, stride = self.limits, self.word(S.HEAD_STRIDE)
        _require("cache", stride > 0)
        for count, place in ((self.shape.kv_heads, S.LAYER_STRIDE), (self.word(S.BLOCKS), S.BLOCK_STRIDE),
                             (-(-limits.context // BLOCK), S.SLOT_STRIDE)):
            _require("cache", stride * count <= self.word(place))
            stride = self.word(place)
        for place in (S.KEYS, S.VALUES):
            self.found("cache", self.word(place), limits.slots * stride, READ | WRITE)
        for place in (S.REMEMBER, S.ATTEND, S.QUERY_KERNEL):
            if place != S.QUERY_KERNEL or self.word(place):
                self.found("code", self.word(place), 1, CALL)
        self.found("vector", self.word(S.TURNS), 4 * self.shape.head_size * limits.context, READ)

    def tiles(self) -> None:
        """Tiles within the batch and the cache; spans within their tile, and their states within PARTS."""
        table, tiles, shape, limits = self.word(S.TILE_TABLE), self.word(S.TILES), self.shape, self.limits
        slots: list[int] = []
        self.found("tile", table, TILE_NBYTES * tiles, READ)
        for tile in range(table, table + TILE_NBYTES * tiles, TILE_NBYTES):
            first, count, slot = _word(tile + T.FIRST_ROW), _word(tile + T.COUNT), _word(tile + T.SLOT)
            end = _word(tile + T.POSITION) + count
            _require("tile", first >= 0 and 1 <= count <= tile_tokens(shape.heads // shape.kv_heads)
                     and first + count <= self.word(S.ROWS) and 0 <= slot < limits.slots
                     and count <= end <= limits.context and not (self.word(S.APART) and slot in slots))
            slots.append(slot)
            if self.word(S.SPREAD):
                each = state_nbytes(shape.head_size)
                self.found("tile", self.word(S.PARTS) + each * _word(tile + T.FIRST_PART),
                           each * count * shape.heads * -(-end // SPAN), READ | WRITE)
        if self.word(S.SPREAD):
            self.found("tile", self.word(S.COUNTERS), COUNTER_NBYTES * tiles * shape.kv_heads, READ | WRITE)
            self.spans(table, tiles)

    def spans(self, table: int, tiles: int) -> None:
        """Spans of tiles."""
        units, count = self.word(S.UNIT_TABLE), self.word(S.UNITS)
        self.found("tile", units, UNIT_NBYTES * count, READ)
        for unit in range(units, units + UNIT_NBYTES * count, UNIT_NBYTES):
            number, span = _word(unit + U.UNIT_TILE), _word(unit + U.UNIT_SPAN)
            _require("tile", 0 <= number < tiles and span >= 0)
            tile = table + TILE_NBYTES * number
            _require("tile", span * SPAN < _word(tile + T.POSITION) + _word(tile + T.COUNT))

    def weight(self, w: int, rows: int, columns: int) -> None:
        """One matrix of that shape: its packed rows, its kernels, its activations, its bias."""
        groups, each, fetch = -(-rows // 16), _word(w + W.TOKEN_NBYTES), _word(w + W.FETCH)
        _require("weight", (_word(w + W.GROUPS), _word(w + W.COLUMNS)) == (groups, columns)
                 and min(each, _word(w + W.GROUP_NBYTES), _word(w + W.TILE_GROUPS)) > 0)
        if fetch:
            self.found("code", fetch, 1, CALL)
        else:
            self.found("weight", _word(w + W.ADDRESS), groups * _word(w + W.GROUP_NBYTES), READ)
        self.found("code", _word(w + W.PRODUCT), 1, CALL)
        if _word(w + W.QUANTISE):
            self.found("code", _word(w + W.QUANTISE), 1, CALL)
        self.found("buffer", _word(w + W.ACTIVATIONS), each * self.word(S.ROWS), READ | WRITE)
        own = _word(w + W.PRIVATE_ACTIVATIONS)
        _require("buffer", self.word(S.PRIVATE_SCRATCH) <= own and own + each <= self.word(S.PRIVATE_STRIDE))
        if _word(w + W.BIAS):
            self.found("vector", _word(w + W.BIAS), 64 * groups, READ)

    def layers(self) -> None:
        """The matrices and norms of every block of the model, the embedding and the output."""
        shape, blocks, table = self.shape, self.word(S.BLOCKS), self.word(S.LAYERS)
        width, wide, queries, keys = shape.embedding, shape.feed_forward, shape.query_width, shape.kv_width
        self.found("vector", table, LAYER_NBYTES * blocks, READ)
        self.found("vector", self.word(S.OUTPUT_NORM), 4 * width, READ)
        if self.word(S.EMBEDDING_WEIGHT + W.FETCH) == 0:  # rows of a streamed one are there before the kernel runs
            self.found("code", self.word(S.EMBEDDING_WEIGHT + W.GATHER), 1, CALL)
        for place in (S.EMBEDDING_WEIGHT, S.OUTPUT_WEIGHT):
            self.weight(self.step + place, shape.vocabulary, width)
        for layer in range(table, table + LAYER_NBYTES * blocks, LAYER_NBYTES):
            for place in (L.ATTENTION_NORM, L.FEED_FORWARD_NORM):
                self.found("vector", _word(layer + place), 4 * width, READ)
            for place, rows, columns in ((L.QUERY, queries, width), (L.KEY, keys, width), (L.VALUE, keys, width),
                                         (L.OUTPUT, width, queries), (L.GATE, wide, width), (L.UP, wide, width),
                                         (L.DOWN, width, wide)):
                self.weight(layer + place, rows, columns)
