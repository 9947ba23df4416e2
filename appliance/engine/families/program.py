"""The program of a model: the operations of a pass in their order, from its card and its tensors.

It says which tensors are used for what, and where rows come from and go to. `engine.forward` puts
it into tables, and the compiled `step` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.engine.families import names
from appliance.engine.families.architecture import Architecture
from appliance.engine.families.card import Family
from appliance.engine.families.names import in_layer
from appliance.engine.families.table import FAMILIES
from appliance.engine.families.tensors import TensorPlan


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation. `weight` and `bias` are names of tensors; without a weight it is one of
    ones."""

    kind: str  # "rms" or "layer"
    weight: str | None = None
    bias: str | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """The parts of a layer's attention that tensors tell."""

    query_norm: Norm | None = None
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    value_is_key: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """An operation. `source` and `target` are buffers of rows: words of `layouts.step`."""

    kind: str  # one of `layouts.step.KINDS`
    layer: int
    source: str = "RESIDUAL"
    target: str = "RESIDUAL"
    weights: tuple[str, ...] = ()  # matrices
    norm: Norm | None = None
    accumulate: bool = False  # products start from what is in the target
    start: int = 0  # floats from the start of a row of the source
    columns: int = 0  # floats of a row, where no matrix tells
    scale: float = 1.0  # of what is added to residual rows
    final: str | None = None  # tensor of one number that residual rows are multiplied by after that
    attention: Attention | None = None


def program(architecture: Architecture, plan: TensorPlan) -> tuple[Op, ...]:
    """The operations of all layers. Embeddings go before them, and logits after."""
    card = FAMILIES[architecture.family]
    return tuple(op for index in range(architecture.layers) for op in _Layer(architecture, plan, card, index).ops())


def output_norm(plan: TensorPlan, card: Family) -> Norm:
    """The norm of the rows whose logits are asked for."""
    return Norm(card.norm, names.OUTPUT_NORM, names.OUTPUT_NORM_BIAS if names.OUTPUT_NORM_BIAS in plan.others else None)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a model."""

    architecture: Architecture
    plan: TensorPlan
    card: Family
    index: int

    def ops(self) -> Iterator[Op]:
        """Its operations in their order."""
        yield from self.project()
        if self.card.topology == "parallel":  # the network reads the row before anything is added to it
            yield from self.expand()
        yield self.attend()
        yield from self.back(names.ATTENTION_OUTPUT, "ATTENDED", names.RESULT_NORMS[0])
        if self.card.topology != "parallel":
            yield from self.expand()
        yield from self.back(names.DOWN, "HIDDEN", names.RESULT_NORMS[1])

    def name(self, part: str) -> str:
        """The name of a matrix or vector."""
        return in_layer(self.index, part)

    def has(self, part: str, kind: str = "weight") -> bool:
        """Whether an optional tensor is there."""
        return in_layer(self.index, part, kind) in self.plan.others

    def norm(self, part: str) -> Norm:
        """A norm of this layer."""
        bias = in_layer(self.index, part, "bias") if self.card.norm_bias else None
        return Norm(self.card.norm, self.name(part), bias)

    def project(self) -> Iterator[Op]:
        """Queries, keys and values, beside each other."""
        parts: tuple[str, ...] = (names.QUERY, names.KEY, names.VALUE)
        if self.has(names.FUSED):
            parts = (names.FUSED,)
        elif self.value_is_key:
            parts = parts[:2]
        norm = None
        if self.card.topology != "post":
            norm = self.norm(names.SECOND_NORM if self.has(names.SECOND_NORM) else names.ATTENTION_NORM)
        yield Op("multiply", self.index, "RESIDUAL", "PROJECTED", tuple(map(self.name, parts)), norm)
        if self.card.head_norm == "row":
            layer = self.architecture.layer(self.index)
            for part, start, width in ((names.QUERY_NORM, 0, layer.query_width),
                                       (names.KEY_NORM, layer.query_width, layer.kv_width)):
                yield Op("normalise", self.index, "PROJECTED", "PROJECTED", norm=Norm(self.card.norm, self.name(part)),
                         start=start, columns=width)

    @property
    def value_is_key(self) -> bool:
        """Whether keys are values, too."""
        return self.card.value_is_key and not self.has(names.VALUE) and not self.has(names.FUSED)

    def attend(self) -> Op:
        """Attention."""
        heads = self.card.head_norm == "head"
        return Op("attend", self.index, "PROJECTED", "ATTENDED", attention=Attention(
            self._head_norm(names.QUERY_NORM) if heads else None, self._head_norm(names.KEY_NORM) if heads else None,
            Norm("rms") if self.card.value_norm else None, self.value_is_key))

    def _head_norm(self, part: str) -> Norm:
        return Norm(self.card.norm, self.name(part))

    def expand(self) -> Iterator[Op]:
        """The hidden rows of the feed-forward network."""
        parallel = self.card.topology == "parallel"
        norm = None if self.card.topology == "post" else self.norm(
            names.ATTENTION_NORM if parallel else self.card.feed_forward_norm)
        width = self.architecture.layer(self.index).feed_forward
        if self.card.gated and not self.gate_up:
            yield Op("expand", self.index, "RESIDUAL", "HIDDEN", (self.name(names.GATE), self.name(names.UP)), norm,
                     columns=width)
            return
        yield Op("multiply", self.index, "RESIDUAL", "HIDDEN", (self.name(names.UP),), norm)
        yield Op("activate", self.index, "HIDDEN", "HIDDEN", columns=width)

    @property
    def gate_up(self) -> bool:
        """Whether gate and up are one matrix."""
        return "gate_up" in self.card.fused

    def back(self, part: str, source: str, result_norm: str) -> Iterator[Op]:
        """Add the products of a matrix to the residual rows."""
        weights, scale = (self.name(part),), self.architecture.scales.residual
        normed = self.card.topology in ("sandwich", "post")
        final = self.name(names.LAYER_SCALE) if part == names.DOWN and self.has(names.LAYER_SCALE) else None
        if not normed and scale == 1.0 and final is None:
            yield Op("multiply", self.index, source, "RESIDUAL", weights, accumulate=True)
            return
        yield Op("multiply", self.index, source, "PRODUCT", weights)
        yield Op("add", self.index, "PRODUCT", "RESIDUAL", norm=self.norm(result_norm) if normed else None,
                 columns=self.architecture.embedding, scale=scale, final=final)
