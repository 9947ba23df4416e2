"""The memory that a debug build of the kernels may touch (`kernels.guard`), and whether the tables
of a pass may be followed.

Every word is looked at: shapes against each other, every address against the ranges that may be touched, every token,
position, slot, row, bundle and span against its limits. No word is read where a range does not hold it.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.forward.forward import Forward, choices_nbytes, row_widths, rows_each
from appliance.families import program
from appliance.families.architecture import Delta, Mamba
from appliance.families.table import FAMILIES
from appliance.families.tensors import is_vector
from appliance.kernels.layouts import step
from appliance.kernels.layouts.attention import PAGE, SPAN, bundle_tokens, state_nbytes
from appliance.kernels.layouts.shapes import padded_rows
from appliance.kernels.layouts.step import (
    CALL,
    COUNTER_NBYTES,
    DELTA_ROWS,
    LOG_ROWS,
    READ,
    WRITE,
    Attention,
    Bundle,
    Choice,
    ConvolutionLayer,
    DeltaLayer,
    ExpertLayer,
    MambaLayer,
    Norm,
    Op,
    SlotRows,
    Step,
    Unit,
    Weight,
    delta_log_nbytes,
    delta_nbytes,
    mamba_log_nbytes,
    mamba_nbytes,
)
from appliance.kernels.layouts.tables import Numbers
from appliance.kernels.runtime import team
from appliance.kernels.runtime.memory import Memory

FAULTS = {"batch", "buffer", "weight", "code", "vector", "cache", "bundle"}


class Refused(Exception):  # noqa: N818
    """A table that must not be followed; its text is one of FAULTS."""


class Guard:
    """The ranges of one pass' memory and code, in the words that its kernels look at."""

    def __init__(self, forward: Forward, *more: tuple[int, int, int]) -> None:
        """`more` ranges: address, bytes, access. Resident models only."""
        cache, source, both = forward._cache, forward._source, READ | WRITE
        matrices = [source.weight(name) for name, info in source.tensors.items() if not is_vector(name, info.shape)]
        self.ranges = [
            *((memory.address, memory.nbytes, both) for memory in forward._memories),
            *((memory.address, memory.nbytes, READ) for memory in (*forward._kept, cache.rows, *(
                getattr(forward._program_tables, name).memory for name in (
                    "ops", "weights", "attention", "experts", "convolutions", "deltas", "mambas")))),
            *((weight.address, weight.nbytes * weight.runs, READ) for weight in matrices),
            *((address, 1, CALL) for address in forward._table._addresses.values()),
            (cache.states.address, cache.states.nbytes, both),
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
    judge.program()


def _require(fault: str, condition: bool) -> None:
    if not condition:
        raise Refused(fault)


class _Judge:
    def __init__(self, forward: Forward, guard: Guard) -> None:
        self.forward, self.limits, self.shape = forward, forward.boundary.limits, forward._architecture
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
        self.found("buffer", address, (self.step.ROWS * rows_each(self.shape, name) - 1) * stride + width, READ | WRITE)

    def buffers(self) -> None:
        """Buffers that a pass writes."""
        shape, stride = self.shape, self.step.LOGITS_STRIDE
        self.found("buffer", self.step.TEAM, team.nbytes(self.threads), READ | WRITE)
        for name, width in row_widths(shape).items():
            self.rows(name, 4 * width)
        for name, nbytes in choices_nbytes(shape, self.step.ROWS).items():
            self.found("buffer", getattr(self.step, name), nbytes, READ | WRITE)
        _require("buffer", 64 * self.step.OUTPUT_WEIGHT.GROUPS <= stride)
        self.found("buffer", self.step.LOGITS, stride * self.step.LOGIT_COUNT, READ | WRITE)
        self.found("buffer", self.step.PRIVATE, self.threads * self.step.PRIVATE_STRIDE, READ | WRITE)
        rows, size = shape.group * bundle_tokens(shape.group), shape.head_size
        states, end = state_nbytes(size) * rows, 0
        for place, nbytes in (
                (self.step.PRIVATE_ROW, 4 * max(shape.embedding, shape.hidden, shape.query_width)),
                (self.step.PRIVATE_QUERY, 4 * size * rows), (self.step.PRIVATE_TOTAL, states),
                (self.step.PRIVATE_PART, states), (self.step.PRIVATE_HEAD, 8 * size),
                *(() if shape.mixture is None else (
                    (self.step.PRIVATE_SCORES, 16 * padded_rows(shape.mixture.count)),
                    (self.step.PRIVATE_CHOICES, Choice.nbytes * shape.mixture.used))),
                *((self.step.PRIVATE_DELTA, delta_nbytes(each.recurrence.size)) for each in shape.every[:1]
                  if isinstance(each.recurrence, Delta)),
                (self.step.PRIVATE_SCRATCH, 1),
                *((self.step.PRIVATE_MAMBA, mamba_nbytes(each.recurrence.size)) for each in shape.every[:1]
                  if isinstance(each.recurrence, Mamba))):
            _require("buffer", end <= place)
            end = place + nbytes
        _require("buffer", end <= self.step.PRIVATE_STRIDE)

    def cache(self) -> None:
        """Strides of the cache within each other, and its kernels."""
        limits = self.limits
        _require("cache", self.step.VALUES == self.step.KEYS + self.pages.halves[0])
        self.found("cache", self.step.KEYS, self.pages.pages * self.pages.page_stride, READ | WRITE)
        _require("cache", -(-limits.context // PAGE) * Numbers.nbytes <= self.step.PAGES_STRIDE)
        self.found("cache", self.step.PAGES, limits.slots * self.step.PAGES_STRIDE, READ)
        for code in (self.step.REMEMBER, self.step.ATTEND):
            self.found("code", code, 1, CALL)
        if self.step.QUERY_KERNEL:
            self.found("code", self.step.QUERY_KERNEL, 1, CALL)
        self.found("cache", self.step.STATES, limits.slots * self.step.STATES_STRIDE, READ | WRITE)
        if self.shape.stateful:
            self.runs()

    def runs(self) -> None:
        """All rows of each slot, where layers have states."""
        runs, number, limits = self.step.RUNS, self.step.RUN_COUNT, self.limits
        self.found("bundle", runs, SlotRows.nbytes * number, READ)
        slots, end = set(), 0
        for run in (runs[index] for index in range(number)):
            _require("bundle", run.FIRST_ROW == end and run.COUNT >= 1 and 0 <= run.SLOT < limits.slots
                     and run.SLOT not in slots and 0 <= run.POSITION <= limits.context - run.COUNT)
            _require("bundle", 0 <= run.LOGGED <= LOG_ROWS * bool(run.LOG) and (not run.LOGGED or run.POSITION > 0)
                     and 0 <= run.GUESSES <= LOG_ROWS * bool(run.LOG) and run.GUESSES < run.COUNT
                     and (not run.GUESSES or run.LOGGED + run.COUNT <= DELTA_ROWS))
            if run.LOG:
                self.found("cache", run.LOG, self.log_nbytes, READ | WRITE)
            slots.add(run.SLOT)
            end += run.COUNT
        _require("bundle", end == self.step.ROWS)

    @property
    def log_nbytes(self) -> int:
        """Bytes of a slot's log: of each layer the rows of its convolution, and those of its heads behind them."""
        found = 0
        for each in (layer.recurrence for layer in self.shape.every if layer.recurrence is not None):
            nbytes = 4 * each.columns
            nbytes += each.heads * delta_log_nbytes(each.size) if isinstance(each, Delta) else 0
            nbytes += each.heads * mamba_log_nbytes(each.inner // each.heads, each.size) if isinstance(
                each, Mamba) else 0
            found += -(-LOG_ROWS * nbytes // 64) * 64
        return found

    def bundles(self) -> None:
        """Bundles within the batch and the cache; spans within their bundle, and their states within PARTS."""
        bundles, number, shape, limits = self.step.BUNDLES, self.step.BUNDLE_COUNT, self.shape, self.limits
        slots: list[int] = []
        self.found("bundle", bundles, Bundle.nbytes * number, READ)
        for bundle in (bundles[index] for index in range(number)):
            first, count, slot = bundle.FIRST_ROW, bundle.COUNT, bundle.SLOT
            end = bundle.POSITION + count
            _require("bundle", first >= 0 and 1 <= count <= bundle_tokens(shape.group)
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

    def weight(self, w: Weight, rows: int, columns: int, runs: int = 1) -> None:
        """One matrix of that shape, or a run of them: packed rows, kernels, activations, biases."""
        groups, each, fetch = -(-rows // 16), w.TOKEN_NBYTES, w.FETCH
        _require("weight", (w.GROUPS, w.COLUMNS) == (groups, columns)
                 and min(each, w.GROUP_NBYTES, w.TILE_GROUPS) > 0)
        if fetch:
            self.found("code", fetch, 1, CALL)
        else:
            _require("weight", w.RUN_NBYTES == groups * w.GROUP_NBYTES)
            self.found("weight", w.ADDRESS, runs * w.RUN_NBYTES, READ)
        self.found("code", w.PRODUCT, 1, CALL)
        if w.QUANTISE:
            self.found("code", w.QUANTISE, 1, CALL)
        count = self.step.ROWS * (rows_each(self.shape, "MIXED") if runs > 1 else 1)
        self.found("buffer", w.ACTIVATIONS, each * count, READ | WRITE)
        own = w.PRIVATE_ACTIVATIONS
        _require("buffer", self.step.PRIVATE_SCRATCH <= own and own + each <= self.step.PRIVATE_STRIDE)
        if w.BIAS:
            self.found("vector", w.BIAS, 64 * groups * runs, READ)

    def norm(self, norm: Norm, width: int) -> None:
        """One normalisation of rows of so many floats."""
        _require("vector", 0 <= norm.KIND <= step.LAYER_NORM)
        if norm.KIND:
            for address in (norm.WEIGHT, norm.BIAS):
                _require("vector", address != 0 or norm.KIND != step.LAYER_NORM or address == norm.BIAS)
                if address:
                    self.found("vector", address, 4 * width, READ)

    def attention(self, table: Attention, index: int, sinks: bool) -> None:
        """The attention of a layer."""
        layer, limits = self.shape.layer(index), self.limits
        size = layer.head_size
        _require("buffer", (table.HEADS, table.KV_HEADS, table.HEAD_SIZE) == (layer.heads, layer.kv_heads, size))
        _require("buffer", table.GATED == int(FAMILIES[self.shape.family].output_gate))
        _require("buffer", table.KEY == 4 * (1 + table.GATED) * layer.query_width
                 and table.VALUE in (0, 4 * layer.kv_width))
        for place, stride, nbytes in ((table.PLACE, table.HEAD_STRIDE, self.pages.halves[0]),
                                      (table.VALUE_PLACE, table.VALUE_STRIDE, self.pages.halves[1])):
            _require("cache", stride > 0 and place >= 0 and place + table.KV_HEADS * stride <= nbytes)
        if table.TURNS:
            _require("vector", 0 < table.TURNED <= size and 4 * table.TURNED <= table.TURNS_STRIDE)
            self.found("vector", table.TURNS, table.TURNS_STRIDE * limits.context, READ)
        _require("vector", bool(table.SINKS) == sinks)
        if table.SINKS:
            self.found("vector", table.SINKS, 4 * layer.heads, READ)
        if table.SCALES:
            self.found("vector", table.SCALES, 4 * limits.context, READ)
        for norm in (table.QUERY_NORM, table.KEY_NORM, table.VALUE_NORM):
            self.norm(norm, size)

    def program(self) -> None:
        """Every operation: its rows, its matrices and its norm; the embedding and the output."""
        shape, ops, forward = self.shape, self.step.PROGRAM, self.forward
        width = shape.embedding
        self.found("vector", ops, Op.nbytes * self.step.OP_COUNT, READ)
        _require("vector", self.step.OP_COUNT == len(forward._ops))
        self.norm(self.step.OUTPUT_NORM, width)
        if self.step.EMBEDDING_WEIGHT.FETCH == 0:  # rows of a streamed one are there before the kernel runs
            self.found("code", self.step.EMBEDDING_WEIGHT.GATHER, 1, CALL)
        for weight in (self.step.EMBEDDING_WEIGHT, self.step.OUTPUT_WEIGHT):
            self.weight(weight, shape.vocabulary, width)
        if self.step.PLACES:
            self.found("vector", self.step.PLACES, self.step.PLACES_STRIDE * self.limits.context, READ)
        for index, expected in enumerate(forward._ops):
            self.operation(ops[index], expected)

    def operation(self, op: Op, expected: program.RowOperation) -> None:
        """One operation against the one of the model's program."""
        rows, width = self.step.ROWS, self.shape.embedding
        _require("buffer", op.KIND == step.KINDS.index(expected.kind) and op.COUNT == len(expected.weights))
        for name, address, stride, start in ((expected.source, op.X, op.X_STRIDE, 4 * expected.start),
                                             (expected.target, op.Y, op.Y_STRIDE, 0)):
            _require("buffer", (address, stride) == (getattr(self.step, name) + start,
                                                     getattr(self.step, f"{name}_STRIDE")))
            self.found("buffer", address, (rows - 1) * stride + 4, READ | WRITE)
        _require("buffer", (op.COLUMNS, op.PARTS) == (expected.columns, expected.parts))
        _require("buffer", 0 <= op.ACTIVATION <= step.RELU2)
        if expected.kind in ("expand", "activate"):
            _require("buffer", 4 * op.COLUMNS == op.UP or (op.UP == 0 and op.ACTIVATION != step.SWIGLU_OAI))
        self.found("weight", op.WEIGHTS, 0, READ)
        for number, name in enumerate(expected.weights):
            info = self.forward._source.tensors[name]
            self.weight(op.WEIGHTS[number], *info.shape[-2:], info.shape[0] if len(info.shape) > 2 else 1)
        columns = op.WEIGHTS.COLUMNS if op.COUNT else op.COLUMNS or width
        self.norm(op.NORM, columns * op.PARTS)
        if expected.attention is not None:
            self.found("vector", op.ATTENTION, Attention.nbytes, READ)
            self.attention(op.ATTENTION, expected.layer, expected.attention.sinks is not None)
        if expected.convolution is not None:
            self.found("vector", op.CONVOLUTION, ConvolutionLayer.nbytes, READ)
            self.convolution(op, expected)
        if expected.delta is not None:
            self.found("vector", op.DELTA, DeltaLayer.nbytes, READ)
            self.delta(op, expected.layer)
        if expected.mamba is not None:
            self.found("vector", op.MAMBA, MambaLayer.nbytes, READ)
            self.mamba(op, expected.layer)
        if expected.experts is not None:
            self.found("vector", op.EXPERTS, ExpertLayer.nbytes, READ)
            self.experts(op.EXPERTS, expected.experts)

    def convolution(self, op: Op, expected: program.RowOperation) -> None:
        """The short convolution of a layer: its weights, and its rows of the state."""
        table, parts, numbers = op.CONVOLUTION, expected.convolution, self.shape.layer(expected.layer).recurrence
        _require("buffer", numbers is not None and parts is not None
                 and (table.COLUMNS, table.WIDTH) == (numbers.columns, numbers.width)
                 and (table.GATED, table.ACTIVATED) == (parts.gated, parts.activated))
        width = 4 * table.COLUMNS
        _require("buffer", (3 if table.GATED else 1) * width <= op.X_STRIDE and width <= op.Y_STRIDE)
        self.found("vector", table.WEIGHTS, width * table.WIDTH, READ)
        if table.BIAS:
            self.found("vector", table.BIAS, width, READ)
        _require("cache", table.PLACE >= 0 and table.PLACE + width * (table.WIDTH - 1) <= self.step.STATES_STRIDE)
        _require("cache", 0 <= table.LOG <= self.log_nbytes - width * LOG_ROWS)

    def delta(self, op: Op, index: int) -> None:
        """The delta rule of a layer: rows that it reads, its vectors, and its matrices in the state."""
        table, numbers = op.DELTA, self.shape.layer(index).recurrence
        _require("buffer", isinstance(numbers, Delta)
                 and (table.HEADS, table.KEY_HEADS, table.SIZE) == (numbers.heads, numbers.key_heads, numbers.size)
                 and table.TOGETHER == (numbers.heads // numbers.key_heads if numbers.together else numbers.heads))
        result, stride = 4 * numbers.result, self.step.PROJECTED_STRIDE
        last = table.RATE + 4 * (2 * numbers.heads - table.TOGETHER) + table.PACE
        _require("buffer", 4 * numbers.columns <= op.X_STRIDE and result <= op.Y_STRIDE
                 and 0 <= table.GATE <= stride - result and 0 <= table.RATE <= last <= stride and table.PACE >= 0)
        for vector in (table.START, table.DECAY):
            self.found("vector", vector, 4 * numbers.heads, READ)
        _require("buffer", self.step.PRIVATE_DELTA + delta_nbytes(numbers.size) <= self.step.PRIVATE_STRIDE)
        _require("cache", 0 <= table.PLACE <= self.step.STATES_STRIDE - 4 * numbers.heads * numbers.size**2)
        _require("cache", 0 <= table.LOG <= self.log_nbytes - numbers.heads * LOG_ROWS * delta_log_nbytes(numbers.size))

    def mamba(self, op: Op, index: int) -> None:
        """Mamba-2 of a layer: rows that it reads, its vectors, and its matrices in the state."""
        table, numbers = op.MAMBA, self.shape.layer(index).recurrence
        _require("buffer", isinstance(numbers, Mamba) and (table.HEADS, table.SIZE) == (numbers.heads, numbers.size)
                 and table.HEAD_SIZE == numbers.inner // numbers.heads
                 and table.SHARED == numbers.heads // numbers.groups)
        _require("buffer", table.KEY == 4 * numbers.inner and table.QUERY == 4 * numbers.groups * numbers.size
                 and table.KEY + 2 * table.QUERY <= min(op.X_STRIDE, op.Y_STRIDE)
                 and 0 <= table.PACE <= self.step.PROJECTED_STRIDE - 4 * numbers.heads)
        for vector in (table.START, table.DECAY, table.SKIP):
            self.found("vector", vector, 4 * numbers.heads, READ)
        _require("buffer", self.step.PRIVATE_MAMBA + mamba_nbytes(numbers.size) <= self.step.PRIVATE_STRIDE)
        _require("cache", 0 <= table.PLACE <= self.step.STATES_STRIDE - 4 * numbers.inner * numbers.size)
        logged = numbers.heads * LOG_ROWS * mamba_log_nbytes(numbers.inner // numbers.heads, numbers.size)
        _require("cache", 0 <= table.LOG <= self.log_nbytes - logged)

    def experts(self, table: ExpertLayer, parts: program.ExpertParts) -> None:
        """The experts of a layer: as many as the buffers are made for, and the vectors of their choice."""
        mixture = self.shape.mixture
        _require("buffer", mixture is not None and (table.COUNT, table.USED) == (mixture.count, mixture.used)
                 and 1 <= table.USED <= table.COUNT and 0 <= table.SCORE < len(step.SCORES))
        _require("buffer", 1 <= table.GROUPS_USED <= table.GROUPS <= table.COUNT and table.COUNT % table.GROUPS == 0
                 and (table.GROUPS == table.GROUPS_USED or table.COUNT // table.GROUPS >= 2))
        _require("buffer", (table.SHARED, bool(table.BIAS), bool(table.SHARED_SCALE), bool(table.WEIGHTS)) == (
            parts.shared, parts.bias is not None, parts.scale is not None, parts.weights is not None))
        if table.WEIGHTS:
            self.found("vector", table.WEIGHTS, 4 * table.COUNT, READ)
        if table.BIAS:
            self.found("vector", table.BIAS, 4 * padded_rows(table.COUNT), READ)
        if table.SHARED_SCALE:
            self.found("vector", table.SHARED_SCALE, 4 * self.shape.embedding, READ)
