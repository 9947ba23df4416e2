"""A model's program as the tables that the compiled `step` follows: matrices, norms, attention and
operations, with the addresses of everything they use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.rotations import query_scales, turns
from appliance.engine.forward.tile_tables import Streaming
from appliance.errors import EngineError
from appliance.families import names
from appliance.families.architecture import LEAST_FACTOR, Architecture, Delta, Layer, Mamba, Rope
from appliance.families.program import (
    AttentionParts,
    ConvolutionParts,
    DeltaParts,
    ExpertParts,
    MambaParts,
    RowNorm,
    RowOperation,
)
from appliance.families.table import FAMILIES
from appliance.families.tensors import TensorPlan
from appliance.kernels.layouts import step
from appliance.kernels.layouts.shapes import ACTIVATIONS, SHAPES, group_nbytes, padded_rows, token_nbytes
from appliance.kernels.layouts.step import Attention, Weight
from appliance.kernels.runtime import boundary
from appliance.kernels.runtime.memory import Memory, Words
from appliance.kernels.runtime.table import KernelTable
from appliance.models.sources.source import TileSource
from appliance.secure import locked

_LINE = 64
_NORMS = {"rms": step.RMS_NORM, "layer": step.LAYER_NORM}
_ACTIVATIONS = {"silu": step.SILU, "gelu": step.GELU, "swiglu_oai": step.SWIGLU_OAI, "relu2": step.RELU2}

Rows = Mapping[str, tuple[int, int]]  # buffer -> address, bytes between rows


def order_of(ops: Sequence[RowOperation]) -> list[tuple[str, ...]]:
    """Matrices in the order of a pass; of matrices that are named together, tiles in turn."""
    together = ("expand", "expand_chosen")
    return [group for op in ops if op.weights
            for group in ((op.weights,) if op.kind in together else [(name,) for name in op.weights])]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a forward pass that tables lead to."""

    source: TileSource
    kernels: KernelTable
    streaming: Streaming | None  # None: compiled code fetches no tiles by itself
    activations: Mapping[str, tuple[int, int]]  # kind -> shared address, private offset


class ProgramTables:
    """The tables of one model. `kept`: copies of vectors, and tables of rotations."""

    def __init__(self, parts: Parts, architecture: Architecture, plan: TensorPlan, cache: KVCache,
                 ops: Sequence[RowOperation]) -> None:
        """`cache`: the places of each layer in pages and states, and the positions of a slot."""
        self._parts, self._architecture, self._plan, self._ops = parts, architecture, plan, ops
        self._places, self._context, self._card = cache.layers, cache.context, FAMILIES[architecture.family]
        self._states, self._logs = cache.states.places, cache.states.logs.places
        self.kept: list[Memory] = []
        self.ops = Words(step.Op.nbytes * len(ops))
        self.weights = Words(Weight.nbytes * sum(len(op.weights) for op in ops))
        self.attention = Words(Attention.nbytes * architecture.layers)
        self.experts = Words(step.ExpertLayer.nbytes * architecture.layers)
        self.convolutions = Words(step.ConvolutionLayer.nbytes * architecture.layers)
        self.deltas, self.mambas = (Words(table.nbytes * architecture.layers)
                                    for table in (step.DeltaLayer, step.MambaLayer))
        self._turns: dict[Rope, int] = {}
        self._through_all = {op.layer for op in ops if any(parts.source.weight(name).every for name in op.weights)}

    # --- vectors ----------------------------------------------------------------------------------
    def vector(self, name: str, size: int, factor: float = 1.0) -> int:
        """The address of a copy of a vector, multiplied by a factor and padded to whole lines."""
        vector = self._parts.source.vector(name)
        boundary.check_vector(name, vector, size)
        memory = self._keep(4 * size)
        kept = memory.view(np.float32, count=size)
        kept[:] = vector.reshape(-1)
        kept *= np.float32(factor)  # in place: a product of its own would lie in memory that nobody wipes
        return memory.address

    def _biases(self, name: str, matrices: int, rows: int) -> int:
        """The address of a copy of the biases of matrices, each padded to whole groups of rows."""
        vector = self._parts.source.vector(name)
        boundary.check_vector(name, vector, matrices * rows)
        memory = self._keep(4 * matrices * padded_rows(rows))
        memory.view(np.float32, count=matrices * padded_rows(rows)).reshape(matrices, -1)[:, :rows] = vector.reshape(
            matrices, rows)
        return memory.address

    def _keep(self, nbytes: int) -> Memory:
        memory = Memory(-(-nbytes // _LINE) * _LINE + _LINE, apart=True)
        locked.protect(memory.address, memory.nbytes, "vectors", own=memory.own)
        self.kept.append(memory)
        return memory

    def norm(self, words: Words, base: int, norm: RowNorm | None, size: int) -> None:
        """Fill a table Norm of rows of so many floats."""
        if norm is not None:
            words.put(step.Norm, {
                "KIND": _NORMS[norm.kind],
                "WEIGHT": 0 if norm.weight is None else self.vector(norm.weight, size, norm.factor),
                "BIAS": 0 if norm.bias is None else self.vector(norm.bias, size)}, base)

    def places(self) -> int:
        """The address of the embeddings of all positions, decoded."""
        source, width = self._parts.source, self._architecture.embedding
        weight = source.weight(names.PLACES)
        gather = self._parts.kernels.function(f"gather_{SHAPES[weight.format.name].suffix}")
        boundary.check_weight(names.PLACES, weight.format.name, weight.rows, weight.columns, weight.address,
                              weight.nbytes, weight.tile_groups, shape=(1, self._architecture.context_length, width))
        if self._context > weight.rows:
            raise EngineError(f"{names.PLACES} has {weight.rows} positions; {self._context} are to be served")
        memory = self._keep(4 * width * self._context)
        numbers = range(self._context)
        with source.passing():
            rows = (source.rows(names.PLACES, numbers) if source.streams(names.PLACES) else
                    ((number, weight.address, number) for number in numbers))
            for index, packed, row in rows:
                gather(packed, weight.columns, row, memory.address + 4 * width * index)
        return memory.address

    # --- matrices ---------------------------------------------------------------------------------
    def weight(self, words: Words, base: int, name: str, kinds: set[str] | None = None,
               bias: str | None = None) -> None:
        """Fill a table Weight. `kinds`: activations that matrices before this one already asked
        for."""
        weight = self._parts.source.weight(name)
        fetch, context = weight.fetch, weight.context
        # Rows of a streamed embedding are looked up before the kernel runs.
        looked_up = name == names.EMBEDDING and base == step.Step.offsets["EMBEDDING_WEIGHT"]
        if fetch and self._parts.streaming is not None and not looked_up:
            fetch, context = self._parts.streaming.kernel, self._parts.streaming.matrix(name)
        shape, table = SHAPES[weight.format.name], self._parts.kernels
        shared, private = self._parts.activations[shape.activation]
        first = kinds is None or shape.activation not in kinds
        if kinds is not None:
            kinds.add(shape.activation)
        words.put(Weight, {
            "PRODUCT": table.address(f"product_{shape.suffix}"), "ADDRESS": weight.address,
            "GROUPS": padded_rows(weight.rows) // 16, "COLUMNS": weight.columns,
            "QUANTISE": table.address(f"quantise_{shape.activation}") if first else 0,
            "ACTIVATIONS": shared, "PRIVATE_ACTIVATIONS": private,
            "BIAS": 0 if bias is None else self._biases(bias, weight.runs, weight.rows),
            "FETCH": fetch, "FETCH_CONTEXT": context,
            "TILE_GROUPS": weight.tile_groups or padded_rows(weight.rows) // 16,
            "IN_ORDER": int(weight.in_order),
            "GROUP_NBYTES": group_nbytes(shape.name, weight.columns),
            "TOKEN_NBYTES": token_nbytes(shape.activation, weight.columns),
            "BLOCK_NBYTES": token_nbytes(shape.activation, weight.columns if shape.activation == "f32" else
                                         ACTIVATIONS[shape.activation].elements),
            "RUN_NBYTES": weight.nbytes,
            "RUN_TILES": -(-padded_rows(weight.rows) // 16 // weight.tile_groups) if weight.tile_groups else 1,
            "VISITED": int(weight.visited),
            "GATHER": (table.address(f"gather_{shape.suffix}") if name == names.EMBEDDING and weight.address else 0),
        }, base)

    # --- operations -------------------------------------------------------------------------------
    def operations(self, rows: Rows) -> None:
        """Fill the tables of all operations."""
        first = 0
        for index, op in enumerate(self._ops):
            base, kinds = step.Op.nbytes * index, set[str]()
            for number, name in enumerate(op.weights):
                bias = name.removesuffix("weight") + "bias"
                self.weight(self.weights, Weight.nbytes * (first + number), name, kinds,
                            bias if bias in self._plan.biases else None)
            self.ops.put(step.Op, self._words(op, rows) | {
                "WEIGHTS": self.weights.address + Weight.nbytes * first, "COUNT": len(op.weights)}, base)
            self.norm(self.ops, base + step.Op.offsets["NORM"], op.norm, op.columns * op.parts if not op.weights else
                      self._parts.source.weight(op.weights[0]).columns)
            first += len(op.weights)
            if op.attention is not None:
                self._attend(op.layer, op.attention)
                self.ops.put(step.Op, {"ATTENTION": self.attention.address + Attention.nbytes * op.layer}, base)
            if op.convolution is not None:
                self.ops.put(step.Op, {"CONVOLUTION": self._convolve(op.layer, op.convolution)}, base)
            if op.delta is not None:
                self.ops.put(step.Op, {"DELTA": self._correct(op.layer, op.delta)}, base)
            if op.mamba is not None:
                self.ops.put(step.Op, {"MAMBA": self._scan(op.layer, op.mamba)}, base)
            if op.experts is not None:
                self.ops.put(step.Op, {"EXPERTS": self.experts.address + step.ExpertLayer.nbytes * op.layer}, base)
                if op.kind == "choose":
                    self._mix(op.layer, op.experts)

    def _words(self, op: RowOperation, rows: Rows) -> dict[str, int | float]:
        """The words of an operation that no tensor tells."""
        (x, x_stride), (y, y_stride) = rows[op.source], rows[op.target]
        final = 1.0 if op.final is None else float(self._parts.source.vector(op.final)[0])
        return {"KIND": step.KINDS.index(op.kind), "X": x + 4 * op.start, "X_STRIDE": x_stride, "Y": y,
                "Y_STRIDE": y_stride, "ACCUMULATE": int(op.accumulate), "COLUMNS": op.columns, "PARTS": op.parts,
                "SCALE": op.scale, "FINAL": final, "ACTIVATION": _ACTIVATIONS[self._card.activation],
                "UP": 4 * op.columns if self._card.gated else 0}

    def _attend(self, index: int, attention: AttentionParts) -> None:
        """Fill the table Attention of a layer."""
        layer, place, words = self._architecture.layer(index), self._places[index], self.attention
        base = Attention.nbytes * index
        words.put(Attention, {
            "HEADS": layer.heads, "KV_HEADS": layer.kv_heads, "HEAD_SIZE": layer.head_size, "WINDOW": layer.window,
            "KEY": (8 if attention.gated else 4) * layer.query_width, "GATED": int(attention.gated),
            "VALUE": 0 if attention.value_is_key else 4 * layer.kv_width, **self._scale(layer), **self._rotation(layer),
            "SINKS": 0 if attention.sinks is None else self.vector(attention.sinks, layer.heads), "PLACE": place.keys,
            "HEAD_STRIDE": place.key_stride, "VALUE_PLACE": place.values, "VALUE_STRIDE": place.value_stride,
        }, base)
        for word, norm in (("QUERY_NORM", attention.query_norm), ("KEY_NORM", attention.key_norm),
                           ("VALUE_NORM", attention.value_norm)):
            self.norm(words, base + Attention.offsets[word], norm, layer.head_size)

    def _convolve(self, index: int, parts: ConvolutionParts) -> int:
        """Fill the table ConvolutionLayer of a layer, with a row of weights for each of the rows
        that a row sees; its address."""
        recurrence, offset = self._architecture.layer(index).recurrence, step.ConvolutionLayer.nbytes * index
        if recurrence is not None:
            columns, width = recurrence.columns, recurrence.width
            weights, count = self._parts.source.vector(parts.weight).reshape(-1), columns * width
            boundary.check_vector(parts.weight, weights, count)
            memory = self._keep(4 * count)
            memory.view(np.float32, count=count).reshape(width, columns)[:] = weights.reshape(columns, width).T
            self.convolutions.put(step.ConvolutionLayer, {
                "COLUMNS": columns, "WIDTH": width, "WEIGHTS": memory.address, "PLACE": self._states[index],
                "LOG": self._logs[index], "BIAS": 0 if parts.bias is None else self.vector(parts.bias, columns),
                "GATED": int(parts.gated), "ACTIVATED": int(parts.activated)}, offset)
        return self.convolutions.address + offset

    def _correct(self, index: int, parts: DeltaParts) -> int:
        """Fill the table DeltaLayer of a layer; its address."""
        recurrence, offset = self._architecture.layer(index).recurrence, step.DeltaLayer.nbytes * index
        if isinstance(recurrence, Delta):
            self.deltas.put(step.DeltaLayer, _delta_words(recurrence, self._states[index], self._logs[index]) | {
                word: self.vector(name, recurrence.heads)
                for word, name in (("START", parts.start), ("DECAY", parts.decay))}, offset)
        return self.deltas.address + offset

    def _scan(self, index: int, parts: MambaParts) -> int:
        """Fill the table MambaLayer of a layer; its address."""
        recurrence, offset = self._architecture.layer(index).recurrence, step.MambaLayer.nbytes * index
        if isinstance(recurrence, Mamba):
            vectors = {"START": parts.start, "DECAY": parts.decay, "SKIP": parts.skip}
            self.mambas.put(step.MambaLayer, _mamba_words(recurrence, self._states[index], self._logs[index]) | {
                word: self.vector(name, recurrence.heads) for word, name in vectors.items()}, offset)
        return self.mambas.address + offset

    def _mix(self, index: int, parts: ExpertParts) -> None:
        """Fill the table ExpertLayer of a layer."""
        mixture = self._architecture.mixture
        if mixture is not None:
            self.experts.put(step.ExpertLayer, {
                "COUNT": mixture.count, "USED": mixture.used, "SCORE": step.SCORES.index(mixture.score),
                "BIAS": 0 if parts.bias is None else self.vector(parts.bias, mixture.count),
                "GROUPS": mixture.groups, "GROUPS_USED": mixture.groups_used, "LEAST": mixture.least,
                "ADDED": mixture.added,
                "WEIGHTS": 0 if parts.weights is None else self.vector(parts.weights, mixture.count),
                "SCALE": mixture.scale, "SHARED": int(parts.shared), "ALL": int(index in self._through_all),
                "SHARED_SCALE": 0 if parts.scale is None else self.vector(parts.scale, self._architecture.embedding),
            }, step.ExpertLayer.nbytes * index)

    def _scale(self, layer: Layer) -> dict[str, int | float]:
        """The factor of queries. Scores come out in units of log2, so that the softmax needs powers
        of two only."""
        scales = self._architecture.scales
        scale = math.log2(math.e) / math.sqrt(layer.head_size)
        if scales.query is not None:
            scale = math.log2(math.e) * scales.query
        if not scales.temperature:
            return {"SCALE": scale}
        table = query_scales(scale, scales.temperature, scales.temperature_step, self._context)
        return {"SCALE": scale, "SCALES": self._floats(table)}

    def _floats(self, table: NDArray[np.float32]) -> int:
        memory = Memory(table.nbytes, huge=True)
        memory.view(np.float32)[:] = table.reshape(-1)
        self.kept.append(memory)
        return memory.address

    def _rotation(self, layer: Layer) -> dict[str, int]:
        """The rotation of a layer; tables are shared by layers that turn alike."""
        rope = layer.rope
        if rope is None:
            return {}
        elements = rope.turned or layer.head_size
        if rope not in self._turns:
            factors = self._factors(rope, elements // 2)
            self._turns[rope] = self._floats(turns(rope, layer.head_size, self._context, factors))
        width = elements if rope.halves else -(-elements // 16) * 16
        return {"TURNS": self._turns[rope], "TURNS_STRIDE": 4 * width, "TURNED": elements, "HALVES": int(rope.halves)}

    def _factors(self, rope: Rope, pairs: int) -> NDArray[np.float32] | None:
        """The file's divisors of frequencies."""
        name = names.ROPE_FACTORS
        if names.LONG_FACTORS in self._plan.others:
            name = names.LONG_FACTORS if self._context > rope.original_context else names.SHORT_FACTORS
        if not rope.factors or name not in self._parts.source.tensors:
            return None
        factors = self._parts.source.vector(name)
        boundary.check_vector(name, factors, pairs)
        if not (factors >= LEAST_FACTOR).all():
            raise EngineError(f"{name} has values below {LEAST_FACTOR}")
        return factors


def _heads_log(recurrence: Delta | Mamba, log: int) -> int:
    """The place of a layer's heads in a log: behind the rows of its convolution."""
    return log + 4 * step.LOG_ROWS * recurrence.columns


def _delta_words(recurrence: Delta, place: int, log: int) -> dict[str, int | float]:
    """The words of a table DeltaLayer that no vector tells. `place`: of the layer in a state;
    `log`: in a log."""
    heads, keys, behind = recurrence.heads, recurrence.key_heads, recurrence.columns + recurrence.result
    together = heads // keys if recurrence.together else heads
    return {"HEADS": heads, "KEY_HEADS": keys, "SIZE": recurrence.size, "TOGETHER": together,
            "QUERY_SCALE": recurrence.size**-0.5, "GATE": 4 * recurrence.columns, "RATE": 4 * behind,
            "PACE": 4 * (together if recurrence.together else padded_rows(heads)),
            "PLACE": place + 4 * (recurrence.width - 1) * recurrence.columns, "LOG": _heads_log(recurrence, log)}


def _mamba_words(recurrence: Mamba, place: int, log: int) -> dict[str, int | float]:
    """The words of a table MambaLayer that no vector tells. `place`: of the layer in a state;
    `log`: in a log."""
    heads, size, inner = recurrence.heads, recurrence.size, recurrence.inner
    return {"HEADS": heads, "HEAD_SIZE": inner // heads, "SIZE": size, "SHARED": heads // recurrence.groups,
            "KEY": 4 * inner, "QUERY": 4 * size * recurrence.groups, "PACE": 4 * (inner + recurrence.columns),
            "PLACE": place + 4 * (recurrence.width - 1) * recurrence.columns, "LOG": _heads_log(recurrence, log)}
