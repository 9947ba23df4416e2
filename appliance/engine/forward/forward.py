"""The forward pass: a batch of (token, position, slot) rows in, logits of the rows asked for out.

Three things are kept apart: the architecture (numbers), the weights (a tile source), and the state
(buffers and cache). This module fills the tables that the compiled `step` reads (`layouts.step`);
it knows nothing of text, sampling or requests. Not safe to use from two threads at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.lookup import Lookup, TokenRows
from appliance.engine.forward.program_tables import Parts, ProgramTables, order_of
from appliance.engine.forward.tile_tables import Streaming
from appliance.families import names
from appliance.families.architecture import Architecture, Delta, Mamba
from appliance.families.program import output_norm, program
from appliance.families.table import FAMILIES
from appliance.families.tensors import TensorPlan, matrices
from appliance.kernels.layouts.attention import SCRATCH_NBYTES, SPAN, bundle_tokens, state_nbytes
from appliance.kernels.layouts.shapes import ACTIVATIONS, SHAPES, padded_rows, token_nbytes
from appliance.kernels.layouts.step import (
    COUNTER_NBYTES,
    Bundle,
    Choice,
    ExpertRows,
    SlotRows,
    Step,
    Unit,
    Weight,
    delta_nbytes,
    mamba_nbytes,
)
from appliance.kernels.runtime import boundary
from appliance.kernels.runtime.boundary import Batch, BatchLimits, Boundary
from appliance.kernels.runtime.memory import Memory, Words
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.sources.source import TileSource
from appliance.secure import locked

Logits = NDArray[np.float32]

ROWS = 512  # most rows of a batch
WANTED = 64  # most rows of a batch whose logits are computed
_LINE = 64
UNITS_A_THREAD = 4  # bundles times key-value heads; with fewer, bundles are split into spans
_STATE_ROW = 2.4  # computing a row of states, in times of reading as many bytes of weights: measured
PARTS_NBYTES = 16 << 20  # most, of attention states while spans are spread over threads


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
    states = bundles * -(-context // SPAN) * bundle_tokens(a.group) * a.heads
    return max(min(states * state_nbytes(a.head_size), PARTS_NBYTES), _LINE)


def row_widths(a: Architecture) -> dict[str, int]:
    """Floats of a row of each buffer that all threads share, by the word of `layouts.step` that has
    its address."""
    apart = FAMILIES[a.family].topology in ("sandwich", "post") or a.scales.residual != 1.0
    mixture = a.mixture
    states = [each.recurrence for each in a.every if each.recurrence is not None]
    gates = 2 if FAMILIES[a.family].output_gate else 1
    projected = [gates * each.query_width + 2 * each.kv_width for each in a.every]
    convolved = max((each.convolved for each in states), default=0)
    return {"RESIDUAL": a.embedding, "PROJECTED": max([*projected, *(each.projected for each in states)]),
            "ATTENDED": max([a.query_width, *(each.result for each in states)]), "HIDDEN": 2 * a.hidden,
            **({"CONVOLVED": convolved} if convolved else {}), **({"JOINED": 2 * a.embedding} if a.joined else {}),
            **({"PRODUCT": a.embedding} if apart or mixture is not None else {}),
            **({} if mixture is None else {
                "ROUTED": padded_rows(mixture.count), "EXPANDED": 2 * mixture.width, "MIXED": a.embedding})}


def rows_each(a: Architecture, word: str) -> int:
    """Rows of a buffer for each row of a pass: in buffers of pairs, one for each of its experts."""
    return a.mixture.used if a.mixture is not None and word in ("EXPANDED", "MIXED") else 1


def choices_nbytes(a: Architecture, rows: int) -> dict[str, int]:
    """Bytes of the tables of experts that rows chose, by the word of `layouts.step`."""
    mixture = a.mixture
    return {} if mixture is None else {
        "CHOICES": Choice.nbytes * mixture.used * rows, "LOADS": ExpertRows.nbytes * mixture.count,
        "ACTIVE": 8 * (mixture.count + 1)}


def row_nbytes(kind: str, columns: int) -> int:
    """Bytes of a row of so many activations, filled up to whole blocks."""
    block = ACTIVATIONS[kind].elements
    return token_nbytes(kind, -(-columns // block) * block)


def shared_nbytes(a: Architecture, kind: str, columns: tuple[int, int]) -> int:
    """Bytes of a row of activations for all threads: of the widest matrix, or one for each of its
    experts. `columns`: most of any matrix, and of those of experts."""
    each, of_runs = columns
    experts = 0 if a.mixture is None or not of_runs else a.mixture.used * row_nbytes(kind, of_runs)
    return max(row_nbytes(kind, each), experts)


def private_sizes(a: Architecture, kinds: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Bytes of what each thread has of its own: by the word that has its offset, and by the kind of
    activations for a row of each. `kinds`: most columns of each kind, as for `shared_nbytes`."""
    group = a.group
    rows = group * bundle_tokens(group)
    deltas = [each.recurrence.size for each in a.every if isinstance(each.recurrence, Delta)]
    mambas = [each.recurrence.size for each in a.every if isinstance(each.recurrence, Mamba)]
    return {"PRIVATE_ROW": 4 * max(a.embedding, a.query_width, a.hidden),
            "PRIVATE_QUERY": 4 * a.head_size * rows, "PRIVATE_TOTAL": state_nbytes(a.head_size) * rows,
            "PRIVATE_PART": state_nbytes(a.head_size) * rows, "PRIVATE_HEAD": 8 * a.head_size,
            **({} if a.mixture is None else {"PRIVATE_SCORES": 16 * padded_rows(a.mixture.count),
                                             "PRIVATE_CHOICES": Choice.nbytes * a.mixture.used}),
            **({"PRIVATE_DELTA": delta_nbytes(max(deltas))} if deltas else {}),
            "PRIVATE_SCRATCH": SCRATCH_NBYTES,
            **({"PRIVATE_MAMBA": mamba_nbytes(max(mambas))} if mambas else {}),
            **{kind: row_nbytes(kind, columns) for kind, (columns, _) in kinds.items()}}


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
        self.boundary = Boundary(BatchLimits(rows, wanted, architecture.vocabulary, cache.context, cache.slots,
                                             architecture.stateful))
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
        pool.keep(self._step.memory)
        self._ops = program(architecture, plan)
        self._order = order_of(self._ops)
        self._parts_nbytes = parts_nbytes(architecture, pool.threads, cache.context)
        self._largest: dict[str, tuple[int, int]] = {}  # activation kind -> most columns, and of experts
        self._offsets: dict[str, tuple[int, int]] = {}  # activation kind -> shared address, private offset
        source.prepare(pool.threads)
        self._streaming = Streaming.of(source, table, pool)  # None: compiled code fetches no tiles by itself
        self._describe(plan)
        self._buffers(rows, wanted)
        self._program(plan)
        self._call_tables(rows)
        self._embedding: Lookup | TokenRows | None = None
        if architecture.joined:
            self._embedding = TokenRows(source, table, self._rows["JOINED"])
        elif source.streams(names.EMBEDDING):
            self._embedding = Lookup(source, table, self._rows["RESIDUAL"], self._private_row)
        self._kernel = table.address("step")

    # --- once: weights ----------------------------------------------------------------------------
    def _describe(self, plan: TensorPlan) -> None:
        """Find the widest rows of each kind of activations before buffers are made, and how much of
        the weights that a row reads are experts."""
        shapes, mixture = matrices(self._architecture, self._source.tensors), self._architecture.mixture
        common, chosen, every = 0, 0, False
        for name in (names.EMBEDDING, plan.output, *itertools.chain(*self._order)):
            weight = self._source.weight(name)
            boundary.check_weight(name, weight.format.name, weight.rows, weight.columns, weight.address, weight.nbytes,
                                  weight.tile_groups, shape=shapes[name], runs=weight.runs)
            kind = SHAPES[weight.format.name].activation
            most, of_runs = self._largest.get(kind, (0, 0))
            self._largest[kind] = max(most, weight.columns), max(of_runs, weight.columns if weight.runs > 1 else 0)
            common += weight.nbytes if weight.runs == 1 and name != names.EMBEDDING else 0
            chosen += weight.nbytes * mixture.used if mixture is not None and weight.runs > 1 else 0
            every |= weight.every and weight.runs > 1
        self.expert_reads = ((0.0, 1, 1) if mixture is None or every else
                             (chosen / max(common + chosen, 1), mixture.count, mixture.used))
        """The share of experts in the bytes that a row reads, how many there are, and how many it chooses."""
        self.state_cost = _STATE_ROW * self._cache.states.stride / max(common + chosen, 1)
        """The cost of a further row of a text in layers with a state, in passes of one row."""
        self.row_nbytes = common + chosen
        """Bytes of weights that a row reads, those of its logits included."""

    def _program(self, plan: TensorPlan) -> None:
        """The tables of weights and operations."""
        a, step = self._architecture, self._step
        tables = ProgramTables(Parts(self._source, self._table, self._streaming, self._offsets), a, plan,
                               self._cache, self._ops)
        self._kept, self._program_tables = tables.kept, tables
        tables.weight(step, Step.offsets["EMBEDDING_WEIGHT"], names.EMBEDDING)
        if a.joined:  # its rows are there before the kernel runs
            step.put(Weight, {"GATHER": 0}, Step.offsets["EMBEDDING_WEIGHT"])
        tables.operations(self._rows)
        tables.weight(step, Step.offsets["OUTPUT_WEIGHT"], plan.output,
                      bias=names.OUTPUT_BIAS if names.OUTPUT_BIAS in plan.others else None)
        tables.norm(step, Step.offsets["OUTPUT_NORM"], output_norm(plan, FAMILIES[a.family]), a.embedding)
        places = tables.places() if FAMILIES[a.family].places else 0
        for words in (tables.ops, tables.weights, tables.attention, tables.experts, tables.convolutions,
                      tables.deltas, tables.mambas):
            self._pool.keep(words.memory)
        step.put(Step, {"PROGRAM": tables.ops.address, "OP_COUNT": len(self._ops), "EPSILON": a.epsilon,
                        "EMBEDDING_SCALE": a.scales.embedding, "PLACES": places, "PLACES_STRIDE": 4 * a.embedding,
                        "LOGIT_SCALE": a.scales.logits, "LOGIT_CAP": a.scales.cap})
        if self._streaming is not None:
            self._streaming.plan()
        order = [*self._order, (plan.output,)]
        self._source.expect(order)
        self.streamed = any(map(self._source.streams, (names.EMBEDDING, *itertools.chain(*order))))
        """Whether each pass reads weights anew, so that it costs much however few rows it has."""

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
        self._rows: dict[str, tuple[int, int]] = {}  # buffer -> address, stride
        for word, width in row_widths(a).items():
            self._rows[word] = self._allocate(stride(width) * rows * rows_each(a, word)), stride(width)
            if word in Step.fields:
                self._step.put(Step, {word: self._rows[word][0], word + "_STRIDE": stride(width)})
        self._step.put(Step, {"PAIRS": rows * rows_each(a, "MIXED")})
        self._logits_stride = stride(padded_rows(a.vocabulary))
        self._logits = self._secret(self._logits_stride * wanted)
        self._step.put(Step, {"LOGITS": self._logits.address, "LOGITS_STRIDE": self._logits_stride})
        shared = {kind: self._allocate(shared_nbytes(a, kind, columns) * rows)
                  for kind, columns in self._largest.items()}
        self._step.put(Step, {word: self._allocate(nbytes) for word, nbytes in choices_nbytes(a, rows).items()})
        private = self._private_buffers()
        self._private_row = Step(self._step.address).PRIVATE + private["PRIVATE_ROW"]
        self._offsets = {kind: (shared[kind], private[kind]) for kind in shared}
        self._constants()

    def _private_buffers(self) -> dict[str, int]:
        """One area for each thread; returns the offset of each kind of activations in it, among
        others."""
        offset, offsets = 0, {}
        for what, size in private_sizes(self._architecture, self._largest).items():
            offsets[what] = offset
            offset += _round(size) + _LINE
        self._step.put(Step, {
            "PRIVATE": self._allocate(offset * self._pool.threads), "PRIVATE_STRIDE": offset,
            **{what: at for what, at in offsets.items() if what in Step.fields}})
        return offsets

    def _constants(self) -> None:
        cache = self._cache
        self._pool.keep(cache.rows)
        self._step.put(Step, {
                "TEAM": self._pool.team, "KEYS": cache.keys, "VALUES": cache.values, "PAGES": cache.rows.address,
                "PAGES_STRIDE": cache.row_stride, "STATES": cache.states.address,
                "STATES_STRIDE": cache.states.stride, "PARTS": self._allocate(self._parts_nbytes),
                "COUNTERS": self._allocate(COUNTER_NBYTES * UNITS_A_THREAD * self._pool.threads),
                **{word: self._table.address(name) for word, name in attention_names(cache.kind).items()}})

    def _launch(self) -> None:
        """Run the kernel on the tables as they are: a debug build judges them before."""
        self._pool.run(self._kernel, self._step.address)

    # --- each call --------------------------------------------------------------------------------
    def _call_tables(self, rows: int) -> None:
        spans = -(-self._cache.context // SPAN)
        self._most_units = max(UNITS_A_THREAD * self._pool.threads * spans, 1)
        sizes = {"TOKENS": rows, "POSITIONS": rows, "SLOTS": rows, "LOGIT_ROWS": rows,
                 "BUNDLES": rows * len(Bundle.fields), "UNITS": self._most_units * len(Unit.fields)}
        if self._architecture.stateful:
            sizes["RUNS"] = min(rows, self._cache.slots) * len(SlotRows.fields)
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
        if self._architecture.stateful:
            words = self._cache.states.logs.rows(batch.runs)
            self._tables["RUNS"][:len(words)] = words
            self._step.put(Step, {"RUN_COUNT": len(batch.runs)})
        try:
            self._pass(batch)
        finally:
            self.boundary.done(batch)  # of a pass that failed, too: what it wrote is to be wiped
            self._tables["TOKENS"][:batch.tokens.size] = 0
            self._cache.states.logs.done(run.slot for run in batch.runs)
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
        most = bundle_tokens(a.group)
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

    def row(self, word: str, number: int) -> int:
        """The address of a row of a buffer, as the last pass left it."""
        address, stride = self._rows[word]
        return address + number * stride

    def narrow(self, groups: int) -> int:
        """Compute no more than so many groups of 16 logits from now on; bytes of weights that this
        spares."""
        weight, base = Step(self._step.address).OUTPUT_WEIGHT, Step.offsets["OUTPUT_WEIGHT"]
        spared = max(weight.GROUPS - groups, 0)
        self._step.put(Weight, {"GROUPS": weight.GROUPS - spared}, base)
        return spared * int(weight.GROUP_NBYTES)

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers, touched or not; `footprint.activations_nbytes` reckons them
        beforehand."""
        return sum(memory.nbytes for memory in (*self._memories, *self._kept))

    def release(self) -> None:
        """Overwrite every buffer that held content or copies of vectors with zeros."""
        for memory in (*self._memories, *self._kept):
            memory.wipe()

