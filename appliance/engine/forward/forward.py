"""The forward pass: a batch of (token, position, slot) rows in, logits of the rows asked for out.

Three things are kept apart: the architecture (numbers), the weights (a tile source), and the state
(buffers and cache). This module fills the tables that the compiled `step` reads (`layouts.step`);
it knows nothing of text, sampling or requests. Not safe to use from two threads at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.engine.families import names
from appliance.engine.families.architecture import LEAST_FACTOR, Architecture
from appliance.engine.families.tensors import TensorPlan
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.rotations import turns
from appliance.engine.forward.tile_tables import Streaming
from appliance.engine.kernels.layouts.attention import SCRATCH_NBYTES, SPAN, bundle_tokens, state_nbytes
from appliance.engine.kernels.layouts.shapes import ACTIVATIONS, SHAPES, group_nbytes, padded_rows, token_nbytes
from appliance.engine.kernels.layouts.step import COUNTER_NBYTES, LAYER_PARTS, Bundle, Layer, Step, Unit, Weight
from appliance.engine.kernels.runtime import boundary
from appliance.engine.kernels.runtime.boundary import Batch, Boundary, Limits
from appliance.engine.kernels.runtime.memory import Memory, Words
from appliance.engine.kernels.runtime.table import KernelTable
from appliance.engine.kernels.runtime.threads import Pool
from appliance.errors import EngineError
from appliance.models.sources.source import TileSource
from appliance.secure import locked

Logits = NDArray[np.float32]

ROWS = 512  # most rows of a batch
WANTED = 64  # most rows of a batch whose logits are computed
_LINE = 64
UNITS_A_THREAD = 4  # bundles times key-value heads; with fewer, bundles are split into spans
PARTS_NBYTES = 16 << 20  # most, of attention states while spans are spread over threads
_MATRICES = dict(zip(LAYER_PARTS, names.MATRICES, strict=True))
_SHARING = (("QUERY", "KEY", "VALUE"), ("OUTPUT",), ("GATE", "UP"), ("DOWN",))  # with the same activations


def _round(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


def most_slots(rows: int) -> int:
    """Answers that all have a row with logits in every pass of up to `rows` rows. More would leave
    the newest without any until older ones end, whichever tenant's turn it is."""
    return min(WANTED, rows)


def stride(floats: int) -> int:
    """Bytes between rows: whole cache lines, and one more so that rows do not fall on the same
    cache sets."""
    return _round(4 * floats) + _LINE


def parts_nbytes(a: Architecture, threads: int, context: int) -> int:
    """Bytes for the states of attention while so few bundles are there that their spans are spread
    over the threads."""
    bundles = (UNITS_A_THREAD * threads - 1) // a.kv_heads
    states = bundles * -(-context // SPAN) * bundle_tokens(a.heads // a.kv_heads) * a.heads
    return max(min(states * state_nbytes(a.head_size), PARTS_NBYTES), _LINE)


def row_widths(a: Architecture) -> dict[str, int]:
    """Floats of a row of each buffer that all threads share, by the word of `layouts.step` that has
    its address."""
    return {"RESIDUAL": a.embedding, "PROJECTED": a.query_width + 2 * a.kv_width, "ATTENDED": a.query_width,
            "HIDDEN": 2 * a.feed_forward}


def row_nbytes(kind: str, columns: int) -> int:
    """Bytes of a row of so many activations, filled up to whole blocks."""
    block = ACTIVATIONS[kind].elements
    return token_nbytes(kind, -(-columns // block) * block)


def private_sizes(a: Architecture, kinds: Mapping[str, int]) -> dict[str, int]:
    """Bytes of what each thread has of its own: by the word that has its offset, and by the kind of
    activations for a row of each. `kinds`: most columns of each kind."""
    group = a.heads // a.kv_heads
    rows = group * bundle_tokens(group)
    return {"PRIVATE_ROW": 4 * max(a.embedding, a.query_width, a.feed_forward),
            "PRIVATE_QUERY": 4 * a.head_size * rows, "PRIVATE_TOTAL": state_nbytes(a.head_size) * rows,
            "PRIVATE_PART": state_nbytes(a.head_size) * rows, "PRIVATE_SCRATCH": SCRATCH_NBYTES,
            **{kind: row_nbytes(kind, columns) for kind, columns in kinds.items()}}


def attention_names(cache_format: str) -> dict[str, str]:
    """The kernels of a cache format, by the word of `layouts.step` that has their address."""
    names = {"REMEMBER": f"remember_{cache_format}", "ATTEND": f"attend_{cache_format}"}
    return names if cache_format == "f16" else names | {"QUERY_KERNEL": "query_q8"}


class Forward:
    """One model in one set of buffers."""

    def __init__(self, source: TileSource, architecture: Architecture, plan: TensorPlan, cache: KVCache,
                 table: KernelTable, pool: Pool, *, rows: int = ROWS, wanted: int = WANTED) -> None:
        self._source, self._architecture, self._cache = source, architecture, cache
        self._table, self._pool = table, pool
        self.boundary = Boundary(Limits(rows, wanted, architecture.vocabulary, cache.context, cache.slots))
        self._memories: list[Memory] = []  # buffers that hold content: wiped by `release`
        self._kept: list[Memory] = []
        try:
            self._make(plan, rows, wanted)
        except BaseException:
            self.release()
            raise

    def _make(self, plan: TensorPlan, rows: int, wanted: int) -> None:
        """All buffers and tables."""
        source, architecture, cache = self._source, self._architecture, self._cache
        table, pool = self._table, self._pool
        self._step = Words(Step.nbytes)
        self._layers = Words(Layer.nbytes * architecture.layers)
        pool.keep(self._step.memory)
        pool.keep(self._layers.memory)
        self._parts_nbytes = parts_nbytes(architecture, pool.threads, cache.context)
        self._largest: dict[str, int] = {}  # activation kind -> most columns
        self._offsets: dict[str, tuple[int, int]] = {}  # activation kind -> shared address, private offset
        source.prepare(pool.threads)
        self._streaming = Streaming.of(source, table, pool)  # None: compiled code fetches no tiles by itself
        self._describe(plan)
        self._buffers(rows, wanted)
        self._weights(plan)
        self._call_tables(rows)
        self._embedding = self._streamed_embedding()
        self._kernel = table.address("step")

    # --- once: weights ----------------------------------------------------------------------------
    def _describe(self, plan: TensorPlan) -> None:
        """Find the widest rows of each kind of activations before buffers are made."""
        for name in (names.EMBEDDING, plan.output, *itertools.chain(*self._order())):
            weight = self._source.weight(name)
            boundary.check_weight(name, weight.format.name, weight.rows, weight.columns, weight.address, weight.nbytes,
                                  weight.tile_groups)
            kind = SHAPES[weight.format.name].activation
            self._largest[kind] = max(self._largest.get(kind, 0), weight.columns)

    def _order(self) -> list[tuple[str, ...]]:
        """Matrices of the layers as the kernel uses them: of those that are named together, tiles
        in turn."""
        parts = (*((part,) for group in _SHARING[:2] for part in group), *_SHARING[2:])
        return [tuple(names.in_layer(index, _MATRICES[part]) for part in group)
                for index in range(self._architecture.layers) for group in parts]

    def _vector(self, name: str, size: int) -> int:
        """The address of a copy of a vector, padded to whole lines."""
        vector = self._source.vector(name)
        boundary.check_vector(name, vector, size)
        memory = Memory(_round(4 * size) + _LINE, apart=True)
        locked.protect(memory.address, memory.nbytes, "vectors", own=memory.own)
        memory.view(np.float32, count=size)[:] = vector
        self._kept.append(memory)
        return memory.address

    def _weights(self, plan: TensorPlan) -> None:
        self._weight(self._step, Step.offsets["EMBEDDING_WEIGHT"], names.EMBEDDING, None, None)
        self._step.put(Step, {"OUTPUT_NORM": self._vector(names.OUTPUT_NORM, self._architecture.embedding)})
        for index in range(self._architecture.layers):
            base = Layer.nbytes * index
            for part, word in zip(names.NORMS, ("ATTENTION_NORM", "FEED_FORWARD_NORM"), strict=True):
                address = self._vector(names.in_layer(index, part), self._architecture.embedding)
                self._layers.put(Layer, {word: address}, base)
            for group in _SHARING:
                kinds: set[str] = set()
                for part in group:
                    bias = names.in_layer(index, _MATRICES[part], "bias")
                    self._weight(self._layers, base + Layer.offsets[part], names.in_layer(index, _MATRICES[part]),
                                 bias if bias in plan.biases else None, kinds)
        self._weight(self._step, Step.offsets["OUTPUT_WEIGHT"], plan.output, None, None)
        if self._streaming is not None:
            self._streaming.plan()
        order = [*self._order(), (plan.output,)]
        self._source.expect(order)
        self.streamed = any(map(self._source.streams, (names.EMBEDDING, *itertools.chain(*order))))
        """Whether each pass reads weights anew, so that it costs much however few rows it has."""

    def _weight(self, words: Words, base: int, name: str, bias: str | None, kinds: set[str] | None) -> None:
        """Fill a WEIGHT table. `kinds`: activations that matrices before this one already asked
        for."""
        weight = self._source.weight(name)
        fetch, context = weight.fetch, weight.context
        looked_up = words is self._step and base == Step.offsets["EMBEDDING_WEIGHT"]  # before the kernel runs
        if fetch and self._streaming is not None and not looked_up:
            fetch, context = self._streaming.kernel, self._streaming.matrix(name)
        shape = SHAPES[weight.format.name]
        shared, private = self._offsets[shape.activation]
        first = kinds is None or shape.activation not in kinds
        if kinds is not None:
            kinds.add(shape.activation)
        words.put(Weight, {
            "PRODUCT": self._table.address(f"product_{shape.suffix}"), "ADDRESS": weight.address,
            "GROUPS": padded_rows(weight.rows) // 16, "COLUMNS": weight.columns,
            "QUANTISE": self._table.address(f"quantise_{shape.activation}") if first else 0,
            "ACTIVATIONS": shared, "PRIVATE_ACTIVATIONS": private,
            "BIAS": 0 if bias is None else self._vector(bias, weight.rows),
            "FETCH": fetch, "FETCH_CONTEXT": context,
            "TILE_GROUPS": weight.tile_groups or padded_rows(weight.rows) // 16,
            "IN_ORDER": int(weight.in_order),
            "GROUP_NBYTES": group_nbytes(shape.name, weight.columns),
            "TOKEN_NBYTES": token_nbytes(shape.activation, weight.columns),
            "GATHER": (self._table.address(f"gather_{shape.suffix}")
                       if name == names.EMBEDDING and weight.address else 0),
        }, base)

    def _streamed_embedding(self) -> Callable[[NDArray[np.int64]], None] | None:
        """The writer of the rows of tokens before the kernel runs, where the embedding is not
        resident."""
        source, weight, to = self._source, self._source.weight(names.EMBEDDING), self._residual
        if not source.streams(names.EMBEDDING):
            return None
        gather = self._table.function(f"gather_{SHAPES[weight.format.name].suffix}")
        nbytes = stride(self._architecture.embedding)

        def look_up(tokens: NDArray[np.int64]) -> None:
            for index, packed, row in source.rows(names.EMBEDDING, tokens.tolist()):
                gather(packed, weight.columns, row, to + index * nbytes)

        return look_up

    # --- once: buffers ----------------------------------------------------------------------------
    def _allocate(self, nbytes: int) -> int:
        return self._secret(nbytes).address

    def _secret(self, nbytes: int) -> Memory:
        """Memory for content: protected, and wiped by `release`."""
        memory = Memory(nbytes, huge=True)
        locked.protect(memory.address, memory.nbytes, "activations", own=memory.own)
        self._memories.append(memory)
        return memory

    def _buffers(self, rows: int, wanted: int) -> None:
        a = self._architecture
        for word, width in row_widths(a).items():
            address = self._allocate(stride(width) * rows)
            self._step.put(Step, {word: address, word + "_STRIDE": stride(width)})
            if word == "RESIDUAL":
                self._residual = address
        self._logits_stride = stride(padded_rows(a.vocabulary))
        self._logits = self._secret(self._logits_stride * wanted)
        self._step.put(Step, {"LOGITS": self._logits.address, "LOGITS_STRIDE": self._logits_stride,
                              "UP_OFFSET": 4 * a.feed_forward})
        shared = {kind: self._allocate(row_nbytes(kind, columns) * rows) for kind, columns in self._largest.items()}
        private = self._private_buffers()
        self._offsets = {kind: (shared[kind], private[kind]) for kind in shared}
        self._constants()

    def _private_buffers(self) -> dict[str, int]:
        """One area for each thread; returns the offset of each kind of activations in it, among
        others."""
        offset, found = 0, {}
        for what, size in private_sizes(self._architecture, self._largest).items():
            found[what] = offset
            offset += _round(size) + _LINE
        self._step.put(Step, {
            "PRIVATE": self._allocate(offset * self._pool.threads), "PRIVATE_STRIDE": offset,
            **{what: at for what, at in found.items() if what in Step.fields}})
        return found

    def _constants(self) -> None:
        a, cache = self._architecture, self._cache
        self._pool.keep(cache.rows)
        factors = self._source.vector(names.ROPE_FACTORS) if names.ROPE_FACTORS in self._source.tensors else None
        if factors is not None:
            boundary.check_vector(names.ROPE_FACTORS, factors, a.head_size // 2)
            if not (factors >= LEAST_FACTOR).all():
                raise EngineError(f"{names.ROPE_FACTORS} has values below {LEAST_FACTOR}")
        table = turns(a, cache.context, factors)
        rotations = Memory(table.nbytes, huge=True)
        rotations.view(np.float32)[:] = table.reshape(-1)
        self._kept.append(rotations)
        self._step.put(Step, {
                "TEAM": self._pool.team, "LAYER_COUNT": a.layers, "HEADS": a.heads, "KV_HEADS": a.kv_heads,
                "HEAD_SIZE": a.head_size, "TURNS": rotations.address, "LAYERS": self._layers.address,
                "KEYS": cache.keys, "VALUES": cache.values, "PAGES": cache.rows.address,
                "PAGES_STRIDE": cache.row_stride, "LAYER_STRIDE": cache.layer_stride,
                "HEAD_STRIDE": cache.head_stride, "PARTS": self._allocate(self._parts_nbytes),
                "COUNTERS": self._allocate(COUNTER_NBYTES * UNITS_A_THREAD * self._pool.threads),
                **{word: self._table.address(name) for word, name in attention_names(cache.kind).items()},
                # Scores come out in units of log2, so that the softmax needs powers of two only.
                "EPSILON": a.epsilon, "SCALE": math.log2(math.e) / math.sqrt(a.head_size)})

    def _launch(self) -> None:
        """Run the kernel on the tables as they are."""
        self._pool.run(self._kernel, self._step.address)

    # --- each call --------------------------------------------------------------------------------
    def _call_tables(self, rows: int) -> None:
        spans = -(-self._cache.context // SPAN)
        self._most_units = max(UNITS_A_THREAD * self._pool.threads * spans, 1)
        sizes = {"TOKENS": rows, "POSITIONS": rows, "SLOTS": rows, "LOGIT_ROWS": rows,
                 "BUNDLES": rows * len(Bundle.fields), "UNITS": self._most_units * len(Unit.fields)}
        self._tables = {}
        for word, count in sizes.items():
            memory = self._secret(8 * count)
            self._step.put(Step, {word: memory.address})
            self._tables[word] = memory.view(np.int64)

    def run(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int],
            wanted: Sequence[int]) -> Logits:
        """One pass; (len(wanted), vocabulary) logits, a view that the next call overwrites.

        EngineError, with nothing done, for rows that `kernels.boundary` does not allow, and
        CapacityError where there is no page for them.
        """
        batch = self.boundary.check(tokens, positions, slots, wanted)
        for run in batch.runs:
            self._cache.cover(run.slot, run.position, run.count)
        for word, values in (("TOKENS", batch.tokens), ("POSITIONS", batch.positions), ("SLOTS", batch.slots),
                             ("LOGIT_ROWS", batch.wanted)):
            self._tables[word][:values.size] = values
        self._step.put(Step, {"ROWS": batch.tokens.size, "LOGIT_COUNT": batch.wanted.size})
        self._plan_attention(batch)
        try:
            self._pass(batch)
        finally:
            self.boundary.done(batch)  # of a pass that failed, too: what it wrote is to be wiped
        whole = self._logits.view(np.float32).reshape(-1, self._logits_stride // 4)
        return whole[:batch.wanted.size, :self._architecture.vocabulary]

    def _pass(self, batch: Batch) -> None:
        """Run the kernel. ModelError for a streamed model of which a tile could not be read."""
        with self._source.passing():
            if self._embedding is not None:
                self._embedding(batch.tokens)
            if self._streaming is not None:
                self._streaming.begin()
            self._launch()
            if self._streaming is not None:
                self._streaming.end()

    def _plan_attention(self, batch: Batch) -> None:
        """Cut runs into bundles, and bundles into spans where there are too few bundles for the
        threads."""
        a = self._architecture
        most = bundle_tokens(a.heads // a.kv_heads)
        bundles = [(run.first + at, min(most, run.count - at), run.slot, run.position + at)
                 for run in batch.runs for at in range(0, run.count, most)]
        units: list[tuple[int, int]] = []
        states, rows = 0, []
        threads = self._pool.threads
        spread = threads > 1 and len(bundles) * a.kv_heads < UNITS_A_THREAD * threads
        for index, (first, count, slot, position) in enumerate(bundles):
            rows.append((first, count, slot, position, states))
            if spread:
                spans = -(-(position + count) // SPAN)
                units += [(index, span) for span in range(spans)]
                states += spans * count * a.heads
        spread = (spread and len(units) > len(bundles) and len(units) <= self._most_units
                  and states * state_nbytes(a.head_size) <= self._parts_nbytes)
        self._tables["BUNDLES"][:5 * len(rows)] = [word for row in rows for word in row]
        if spread:
            self._tables["UNITS"][:2 * len(units)] = [word for unit in units for word in unit]
        apart = len({slot for _, _, slot, _ in bundles}) == len(bundles)
        self._step.put(Step, {"BUNDLE_COUNT": len(bundles), "UNIT_COUNT": len(units), "SPREAD": int(spread),
                                          "APART": int(apart)})

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, touched or not; `footprint.activations_nbytes` reckons them
        beforehand."""
        return sum(memory.nbytes for memory in (*self._memories, *self._kept))

    def release(self) -> None:
        """Overwrite every buffer that held content or copies of vectors with zeros."""
        for memory in (*self._memories, *self._kept):
            memory.wipe()

