"""What a debug build of the kernels may touch (`kernels.guard`), and whether the tables of a pass may be followed.

Every word is looked at: shapes against each other, every address against the ranges that may be touched, every token,
position, slot, row, bundle and span against its limits. No word is read where a range does not hold it.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.forward.forward import Forward
from appliance.engine.kernels.layouts import step
from appliance.engine.kernels.layouts.attention import PAGE, SPAN, bundle_tokens, state_nbytes
from appliance.engine.kernels.layouts.step import (
    CALL,
    COUNTER_NBYTES,
    READ,
    WRITE,
    Bundle,
    Layer,
    Step,
    Unit,
    Weight,
)
from appliance.engine.kernels.layouts.tables import Numbers
from appliance.engine.kernels.runtime import team
from appliance.engine.kernels.runtime.memory import Memory

FAULTS = {"batch", "buffer", "weight", "code", "vector", "cache", "bundle"}


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
            *((memory.address, memory.nbytes, READ) for memory in (*forward._kept, forward._layers.memory, cache.rows)),
            *((weight.address, weight.nbytes, READ) for weight in matrices),
            *((address, 1, CALL) for address in forward._table._addresses.values()),
            (cache.keys, cache.nbytes, both), (forward._pool.team, team.nbytes(forward._pool.threads), both), *more]
        table, self._status = Memory(24 * len(self.ranges)), Memory(8)
        table.view(np.int64)[:] = np.array(self.ranges, np.int64).reshape(-1)
        for memory in (table, self._status):
            forward._pool.keep(memory)
        forward._step.put(Step, {"STATUS": self._status.address, "RANGES": table.address,
                                 "RANGE_COUNT": len(self.ranges)})

    def expect_none(self) -> None:
        """Refused, "by a kernel", where one met a place that it may not touch since this was asked last."""
        status = self._status.view(np.int64)
        if status[0]:
            fault, status[0] = step.FAULTS[int(status[0])], 0
            raise Refused(f"{fault}, by a kernel")


def check(forward: Forward, guard: Guard) -> None:
    """Refused unless the pass that the tables describe may run."""
    judge = _Judge(forward, guard)
    judge.batch()
    judge.buffers()
    judge.cache()
    judge.bundles()
    judge.layers()


def _require(fault: str, condition: bool) -> None:
    if not condition:
        raise Refused(fault)


class _Judge:
    def __init__(self, forward: Forward, guard: Guard) -> None:
        self.limits, self.shape = forward.boundary.limits, forward._architecture
        self.ranges, self.threads, self.pages = guard.ranges, forward._pool.threads, forward._cache
        self.step = Step(forward._step.address)

    def found(self, fault: str, address: int, nbytes: int, access: int) -> None:
        """One range that may be accessed so holds `nbytes` at `address`."""
        _require(fault, any(start <= address and 0 <= nbytes <= start + size - address and allowed & access == access
                            for start, size, allowed in self.ranges))

    def numbers(self, table: Numbers | int, count: int, end: int) -> None:
        """`count` int64 at `table`, each within 0..end-1."""
        self.found("buffer", table, 8 * count, READ)
        _require("batch", all(0 <= Numbers(table)[index] < end for index in range(count)))

    def batch(self) -> None:
        """Counts of rows, and every token, position, slot and wanted row."""
        rows, wanted, limits = self.step.ROWS, self.step.LOGIT_COUNT, self.limits
        _require("batch", 1 <= rows <= limits.rows and 0 <= wanted <= limits.wanted)
        self.numbers(self.step.TOKENS, rows, limits.vocabulary)
        self.numbers(self.step.POSITIONS, rows, limits.context)
        self.numbers(self.step.SLOTS, rows, limits.slots)
        self.numbers(self.step.LOGIT_ROWS, wanted, rows)

    def rows(self, name: str, width: int) -> None:
        """A buffer of rows: `width` bytes of every row of the batch."""
        address, stride = getattr(self.step, name), getattr(self.step, f"{name}_STRIDE")
        _require("buffer", 0 < width <= stride)
        self.found("buffer", address, (self.step.ROWS - 1) * stride + width, READ | WRITE)

    def buffers(self) -> None:
        """Buffers that a pass writes."""
        shape, size, stride = self.shape, self.step.HEAD_SIZE, self.step.LOGITS_STRIDE
        heads, kv_heads, wide = self.step.HEADS, self.step.KV_HEADS, 4 * shape.feed_forward
        _require("buffer", (heads, kv_heads, size) == (shape.heads, shape.kv_heads, shape.head_size))
        self.found("buffer", self.step.TEAM, team.nbytes(self.threads), READ | WRITE)
        self.rows("RESIDUAL", 4 * shape.embedding)
        self.rows("PROJECTED", 4 * size * (heads + 2 * kv_heads))
        self.rows("ATTENDED", 4 * size * heads)
        _require("buffer", self.step.UP_OFFSET == wide)
        self.rows("HIDDEN", 2 * wide)
        _require("buffer", 64 * self.step.OUTPUT_WEIGHT.GROUPS <= stride)
        self.found("buffer", self.step.LOGITS, stride * self.step.LOGIT_COUNT, READ | WRITE)
        self.found("buffer", self.step.PRIVATE, self.threads * self.step.PRIVATE_STRIDE, READ | WRITE)
        rows = heads // kv_heads * bundle_tokens(heads // kv_heads)
        states, end = state_nbytes(size) * rows, 0
        for place, nbytes in (
                (self.step.PRIVATE_ROW, 4 * max(shape.embedding, shape.feed_forward, heads * size)),
                (self.step.PRIVATE_QUERY, 4 * size * rows), (self.step.PRIVATE_TOTAL, states),
                (self.step.PRIVATE_PART, states), (self.step.PRIVATE_SCRATCH, 1)):
            _require("buffer", end <= place)
            end = place + nbytes
        _require("buffer", end <= self.step.PRIVATE_STRIDE)

    def cache(self) -> None:
        """Strides of the cache within each other, and its kernels."""
        limits, stride = self.limits, self.step.HEAD_STRIDE
        _require("cache", stride > 0)
        for count, wider in ((self.shape.kv_heads, self.step.LAYER_STRIDE),
                             (self.step.LAYER_COUNT, self.pages.page_stride)):
            _require("cache", stride * count <= wider)
            stride = wider
        for address in (self.step.KEYS, self.step.VALUES):
            self.found("cache", address, self.pages.pages * stride, READ | WRITE)
        _require("cache", -(-limits.context // PAGE) * Numbers.nbytes <= self.step.PAGES_STRIDE)
        self.found("cache", self.step.PAGES, limits.slots * self.step.PAGES_STRIDE, READ)
        for code in (self.step.REMEMBER, self.step.ATTEND):
            self.found("code", code, 1, CALL)
        if self.step.QUERY_KERNEL:
            self.found("code", self.step.QUERY_KERNEL, 1, CALL)
        self.found("vector", self.step.TURNS, 4 * self.shape.head_size * limits.context, READ)

    def bundles(self) -> None:
        """Bundles within the batch and the cache; spans within their bundle, and their states within PARTS."""
        bundles, number, shape, limits = self.step.BUNDLES, self.step.BUNDLE_COUNT, self.shape, self.limits
        slots: list[int] = []
        self.found("bundle", bundles, Bundle.nbytes * number, READ)
        for bundle in (bundles[index] for index in range(number)):
            first, count, slot = bundle.FIRST_ROW, bundle.COUNT, bundle.SLOT
            end = bundle.POSITION + count
            _require("bundle", first >= 0 and 1 <= count <= bundle_tokens(shape.heads // shape.kv_heads)
                     and first + count <= self.step.ROWS and 0 <= slot < limits.slots
                     and count <= end <= limits.context and not (self.step.APART and slot in slots))
            slots.append(slot)
            row = Numbers(self.step.PAGES + slot * self.step.PAGES_STRIDE)
            for page in range(-(-end // PAGE)):
                _require("cache", row[page] % self.pages.page_stride == 0
                         and 0 <= row[page] // self.pages.page_stride < self.pages.pages)
            if self.step.SPREAD:
                each = state_nbytes(shape.head_size)
                self.found("bundle", self.step.PARTS + each * bundle.FIRST_PART,
                           each * count * shape.heads * -(-end // SPAN), READ | WRITE)
        if self.step.SPREAD:
            self.found("bundle", self.step.COUNTERS, COUNTER_NBYTES * number * shape.kv_heads, READ | WRITE)
            self.spans(bundles, number)

    def spans(self, bundles: Bundle, number: int) -> None:
        """Spans of bundles."""
        units, count = self.step.UNITS, self.step.UNIT_COUNT
        self.found("bundle", units, Unit.nbytes * count, READ)
        for unit in (units[index] for index in range(count)):
            which, span = unit.BUNDLE, unit.SPAN
            _require("bundle", 0 <= which < number and span >= 0)
            bundle = bundles[which]
            _require("bundle", span * SPAN < bundle.POSITION + bundle.COUNT)

    def weight(self, w: Weight, rows: int, columns: int) -> None:
        """One matrix of that shape: its packed rows, its kernels, its activations, its bias."""
        groups, each, fetch = -(-rows // 16), w.TOKEN_NBYTES, w.FETCH
        _require("weight", (w.GROUPS, w.COLUMNS) == (groups, columns)
                 and min(each, w.GROUP_NBYTES, w.TILE_GROUPS) > 0)
        if fetch:
            self.found("code", fetch, 1, CALL)
        else:
            self.found("weight", w.ADDRESS, groups * w.GROUP_NBYTES, READ)
        self.found("code", w.PRODUCT, 1, CALL)
        if w.QUANTISE:
            self.found("code", w.QUANTISE, 1, CALL)
        self.found("buffer", w.ACTIVATIONS, each * self.step.ROWS, READ | WRITE)
        own = w.PRIVATE_ACTIVATIONS
        _require("buffer", self.step.PRIVATE_SCRATCH <= own and own + each <= self.step.PRIVATE_STRIDE)
        if w.BIAS:
            self.found("vector", w.BIAS, 64 * groups, READ)

    def layers(self) -> None:
        """The matrices and norms of every layer, the embedding and the output."""
        shape, layers, table = self.shape, self.step.LAYER_COUNT, self.step.LAYERS
        width, wide, queries, keys = shape.embedding, shape.feed_forward, shape.query_width, shape.kv_width
        self.found("vector", table, Layer.nbytes * layers, READ)
        self.found("vector", self.step.OUTPUT_NORM, 4 * width, READ)
        if self.step.EMBEDDING_WEIGHT.FETCH == 0:  # rows of a streamed one are there before the kernel runs
            self.found("code", self.step.EMBEDDING_WEIGHT.GATHER, 1, CALL)
        for weight in (self.step.EMBEDDING_WEIGHT, self.step.OUTPUT_WEIGHT):
            self.weight(weight, shape.vocabulary, width)
        for layer in (table[index] for index in range(layers)):
            for norm in (layer.ATTENTION_NORM, layer.FEED_FORWARD_NORM):
                self.found("vector", norm, 4 * width, READ)
            for weight, rows, columns in ((layer.QUERY, queries, width), (layer.KEY, keys, width),
                                          (layer.VALUE, keys, width), (layer.OUTPUT, width, queries),
                                          (layer.GATE, wide, width), (layer.UP, wide, width),
                                          (layer.DOWN, width, wide)):
                self.weight(weight, rows, columns)
