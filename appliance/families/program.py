"""The program of a model: the operations of a pass in their order, from its card and its tensors.

It says which tensors are used for what, and where rows come from and go to. `engine.forward` puts
it into tables, and the compiled `step` carries it out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from appliance.families import names
from appliance.families.architecture import Architecture, Convolution, Delta, Layer, Mamba, Mixture
from appliance.families.card import Family
from appliance.families.names import in_layer
from appliance.families.table import FAMILIES
from appliance.families.tensors import TensorPlan


@dataclass(frozen=True, slots=True)
class RowNorm:
    """A normalisation. `weight` and `bias` are names of tensors; without a weight it is one of
    ones."""

    kind: str  # "rms" or "layer"
    weight: str | None = None
    bias: str | None = None
    factor: float = 1.0  # of the weights


@dataclass(frozen=True, slots=True)
class AttentionParts:
    """The parts of a layer's attention that tensors tell."""

    query_norm: RowNorm | None = None
    key_norm: RowNorm | None = None
    value_norm: RowNorm | None = None
    value_is_key: bool = False
    sinks: str | None = None  # tensor of a score for each head
    gated: bool = False  # whether a query has a gate behind each head


@dataclass(frozen=True, slots=True)
class ExpertParts:
    """The parts of a layer's experts that tensors tell, by the names of their vectors."""

    bias: str | None = None  # of scores, where experts are chosen
    shared: bool = False  # whether there is a shared expert
    scale: str | None = None  # of its gate
    weights: str | None = None  # a factor for each expert's weight


@dataclass(frozen=True, slots=True)
class ConvolutionParts:
    """The parts of a layer's short convolution, by the names of their tensors."""

    weight: str
    bias: str | None = None
    gated: bool = False  # rows have a factor of what is convolved, one of the result, and then what is convolved
    activated: bool = False  # whether silu of the result is taken


@dataclass(frozen=True, slots=True)
class DeltaParts:
    """The parts of a layer's delta rule, by the names of their tensors."""

    start: str  # of paces
    decay: str


@dataclass(frozen=True, slots=True)
class MambaParts:
    """The parts of a layer's Mamba-2, by the names of their tensors: numbers of each head."""

    start: str  # added to a row's pace
    decay: str
    skip: str  # what heads read has so much of what they got


@dataclass(frozen=True, slots=True)
class RowOperation:
    """An operation. `source` and `target` are buffers of rows: words of `layouts.step`."""

    kind: str  # one of `layouts.step.KINDS`
    layer: int
    source: str = "RESIDUAL"
    target: str = "RESIDUAL"
    weights: tuple[str, ...] = ()  # matrices
    norm: RowNorm | None = None
    convolution: ConvolutionParts | None = None
    delta: DeltaParts | None = None
    mamba: MambaParts | None = None
    accumulate: bool = False  # products start from what is in the target
    start: int = 0  # floats from the start of a row of the source
    columns: int = 0  # floats of a row, where no matrix tells
    parts: int = 1  # that a row is normalised in, each of that many floats
    scale: float = 1.0  # of what is added to residual rows
    final: str | None = None  # tensor of one number that residual rows are multiplied by after that
    attention: AttentionParts | None = None
    experts: ExpertParts | None = None


def program(architecture: Architecture, plan: TensorPlan) -> tuple[RowOperation, ...]:
    """The operations of all layers. Embeddings go before them, and logits after."""
    card = FAMILIES[architecture.family]
    layers = [_Layer(architecture, plan, card, index) for index in range(architecture.layers)]
    joined = layers[0].join() if architecture.joined else ()
    return (*joined, *(op for layer in layers for op in layer.ops()))


def output_norm(plan: TensorPlan, card: Family) -> RowNorm:
    """The norm of the rows whose logits are asked for."""
    bias = names.OUTPUT_NORM_BIAS if names.OUTPUT_NORM_BIAS in plan.others else None
    return RowNorm(card.norm, card.output_norm, bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer of a model."""

    architecture: Architecture
    plan: TensorPlan
    card: Family
    index: int

    def ops(self) -> Iterator[RowOperation]:
        """Its operations in their order."""
        layer = self.layer
        if isinstance(layer.recurrence, Delta):
            yield from self.correct(layer.recurrence)
        elif isinstance(layer.recurrence, Mamba):
            yield from self.scan(layer.recurrence)
        elif isinstance(layer.recurrence, Convolution):
            yield from self.convolve()
        elif layer.kv_heads:
            yield from self.project()
            if self.card.topology == "parallel":  # the network reads the row before anything is added to it
                yield from self.expand()
            yield self.attend()
            yield from self.back(names.ATTENTION_OUTPUT, "ATTENDED", names.RESULT_NORMS[0])
        if not layer.feed_forward:
            return
        if self.architecture.mixes(self.index):
            yield from self.mix()
            return
        if self.card.topology != "parallel":
            yield from self.expand()
        yield from self.back(names.DOWN, "HIDDEN", names.RESULT_NORMS[1])

    def join(self) -> Iterator[RowOperation]:
        """The first rows: of a token and the row before it, which lie beside each other."""
        width = self.architecture.embedding
        for start, part in ((0, names.TOKEN_NORM), (width, names.ROW_NORM)):
            yield RowOperation("normalise", self.index, "JOINED", "JOINED", norm=self.norm(part), start=start,
                               columns=width)
        yield RowOperation("multiply", self.index, "JOINED", "RESIDUAL", (self.name(names.JOIN),))

    @property
    def layer(self) -> Layer:
        """Its numbers."""
        return self.architecture.layer(self.index)

    def name(self, part: str) -> str:
        """The name of a matrix or vector."""
        return in_layer(self.index, part)

    def has(self, part: str, kind: str = "weight") -> bool:
        """Whether an optional tensor is there."""
        return in_layer(self.index, part, kind) in self.plan.others

    def norm(self, part: str) -> RowNorm:
        """A norm of this layer."""
        bias = in_layer(self.index, part, "bias") if self.card.norm_bias else None
        return RowNorm(self.card.norm, self.name(part), bias)

    def project(self) -> Iterator[RowOperation]:
        """Queries, keys and values, beside each other."""
        parts: tuple[str, ...] = (names.QUERY, names.KEY, names.VALUE)
        if self.has(names.FUSED):
            parts = (names.FUSED,)
        elif self.value_is_key:
            parts = parts[:2]
        norm = None
        if self.card.topology != "post":
            norm = self.norm(names.SECOND_NORM if self.has(names.SECOND_NORM) else names.ATTENTION_NORM)
        yield RowOperation("multiply", self.index, "RESIDUAL", "PROJECTED", tuple(map(self.name, parts)), norm)
        if self.card.head_norm == "row":
            layer = self.architecture.layer(self.index)
            for part, start, width in ((names.QUERY_NORM, 0, layer.query_width),
                                       (names.KEY_NORM, layer.query_width, layer.kv_width)):
                yield RowOperation("normalise", self.index, "PROJECTED", "PROJECTED",
                                   norm=RowNorm(self.card.norm, self.name(part)), start=start, columns=width)

    def convolve(self) -> Iterator[RowOperation]:
        """The short convolution, in place of attention."""
        norm = self.norm(names.ATTENTION_NORM)
        yield RowOperation("multiply", self.index, "RESIDUAL", "PROJECTED", (self.name(names.CONVOLUTION_IN),), norm)
        yield RowOperation("convolve", self.index, "PROJECTED", "ATTENDED",
                           convolution=ConvolutionParts(self.name(names.CONVOLUTION), gated=True))
        yield from self.back(names.CONVOLUTION_OUT, "ATTENDED", names.RESULT_NORMS[0])

    def correct(self, recurrence: Delta) -> Iterator[RowOperation]:
        """The gated delta rule, in place of attention."""
        numbers = (names.BOTH,) if recurrence.together else (names.RATE, names.PACE)
        weights = tuple(map(self.name, (names.FUSED, names.DELTA_GATE, *numbers)))
        yield RowOperation("multiply", self.index, "RESIDUAL", "PROJECTED", weights, self.norm(names.ATTENTION_NORM))
        yield RowOperation("convolve", self.index, "PROJECTED", "CONVOLVED",
                           convolution=ConvolutionParts(self.name(names.STATE_CONVOLUTION), activated=True))
        parts = DeltaParts(in_layer(self.index, names.START, "bias"), in_layer(self.index, names.DECAY, ""))
        yield RowOperation("correct", self.index, "CONVOLVED", "ATTENDED", norm=self.norm(names.STATE_NORM),
                           columns=recurrence.size, delta=parts)
        yield from self.back(names.STATE_OUT, "ATTENDED", names.RESULT_NORMS[0])

    def scan(self, recurrence: Mamba) -> Iterator[RowOperation]:
        """Mamba-2, in place of attention."""
        index, inner, groups = self.index, recurrence.inner, recurrence.groups
        norm = self.norm(names.ATTENTION_NORM)
        bias = (in_layer(index, names.STATE_CONVOLUTION, "bias") if self.has(names.STATE_CONVOLUTION, "bias") else None)
        yield RowOperation("multiply", index, "RESIDUAL", "PROJECTED", (self.name(names.STATE_IN),), norm)
        yield RowOperation("convolve", index, "PROJECTED", "ATTENDED", start=inner, convolution=ConvolutionParts(
            self.name(names.STATE_CONVOLUTION), bias, activated=True))
        yield RowOperation("scan", index, "ATTENDED", "ATTENDED", mamba=MambaParts(
            in_layer(index, names.START, "bias"), in_layer(index, names.DECAY, ""), in_layer(index, names.SKIP, "")))
        yield RowOperation("normalise", index, "ATTENDED", "ATTENDED", norm=RowNorm("rms", self.name(names.STATE_NORM)),
                           columns=inner // groups, parts=groups)
        yield from self.back(names.STATE_OUT, "ATTENDED", names.RESULT_NORMS[0])

    @property
    def value_is_key(self) -> bool:
        """Whether keys are also the values."""
        return self.card.value_is_key and not self.has(names.VALUE) and not self.has(names.FUSED)

    def attend(self) -> RowOperation:
        """The attention over projected rows."""
        heads = self.card.head_norm == "head" and (self.card.head_norm_always or self.has(names.QUERY_NORM))
        return RowOperation("attend", self.index, "PROJECTED", "ATTENDED", attention=AttentionParts(
            self._head_norm(names.QUERY_NORM) if heads else None, self._head_norm(names.KEY_NORM) if heads else None,
            RowNorm("rms") if self.card.value_norm else None, self.value_is_key,
            self.name(names.SINKS) if self.card.sinks else None, self.card.output_gate))

    def _head_norm(self, part: str) -> RowNorm:
        return RowNorm(self.card.norm, self.name(part))

    def expand(self) -> Iterator[RowOperation]:
        """The hidden rows of the feed-forward network."""
        parallel = self.card.topology == "parallel"
        norm = None if self.card.topology == "post" else self.norm(
            names.ATTENTION_NORM if parallel else self.card.feed_forward_norm)
        width = self.architecture.layer(self.index).feed_forward
        if self.card.gated and not self.gate_up:
            gates = self.name(names.GATE), self.name(names.UP)
            yield RowOperation("expand", self.index, "RESIDUAL", "HIDDEN", gates, norm, columns=width)
            return
        yield RowOperation("multiply", self.index, "RESIDUAL", "HIDDEN", (self.name(names.UP),), norm)
        yield RowOperation("activate", self.index, "HIDDEN", "HIDDEN", columns=width)

    def mix(self) -> Iterator[RowOperation]:
        """The feed-forward network of a layer with experts."""
        mixture, index = self.architecture.mixture, self.index
        if mixture is None:
            return
        if mixture.beside:
            yield from self.mix_beside(mixture)
            return
        norm, scale = self.norm(self.card.feed_forward_norm), self.name(names.SHARED_SCALE)
        gated = self.card.experts is not None and self.card.experts.shared == "gated" and mixture.shared > 0
        parts = ExpertParts(
            in_layer(index, names.CHOICE_BIAS, "bias") if self.has(names.CHOICE_BIAS, "bias") else None,
            mixture.shared > 0, scale if gated else None)
        yield RowOperation("multiply", index, "RESIDUAL", "ROUTED", (self.name(names.ROUTER),), norm)
        if mixture.shared:
            yield from self.expand_shared(mixture, norm)
            yield RowOperation("multiply", index, "HIDDEN", "PRODUCT", (self.name(names.SHARED_DOWN),))
        if gated:
            yield RowOperation("scale", index, "RESIDUAL", "PRODUCT", norm=norm, experts=parts,
                               columns=self.architecture.embedding)
        yield from self.go_through(mixture, parts, norm)
        yield RowOperation("combine", index, "MIXED", "RESIDUAL", accumulate=True, columns=self.architecture.embedding,
                           scale=self.architecture.scales.residual, experts=parts)

    def expand_shared(self, mixture: Mixture, norm: RowNorm) -> Iterator[RowOperation]:
        """The hidden rows of the shared expert."""
        index, up, width = self.index, self.name(names.SHARED_UP), mixture.shared
        if self.card.gated:
            pair = self.name(names.SHARED_GATE), up
            yield RowOperation("expand", index, "RESIDUAL", "HIDDEN", pair, norm, columns=width)
            return
        yield RowOperation("multiply", index, "RESIDUAL", "HIDDEN", (up,), norm)
        yield RowOperation("activate", index, "HIDDEN", "HIDDEN", columns=width)

    def go_through(self, mixture: Mixture, parts: ExpertParts, norm: RowNorm) -> Iterator[RowOperation]:
        """The results of the experts of each row, from the logits of all."""
        index, width = self.index, mixture.width
        yield RowOperation("choose", index, "ROUTED", "ROUTED", experts=parts)
        if self.has(names.EXPERT_GATE_UP) or not self.card.gated:
            whole = (self.name(names.EXPERT_GATE_UP if self.card.gated else names.EXPERT_UP),)
            yield RowOperation("multiply_chosen", index, "RESIDUAL", "EXPANDED", whole, norm, experts=parts)
            yield RowOperation("activate", index, "EXPANDED", "EXPANDED", columns=width, experts=parts)
        else:
            pair = self.name(names.EXPERT_GATE), self.name(names.EXPERT_UP)
            yield RowOperation("expand_chosen", index, "RESIDUAL", "EXPANDED", pair, norm, columns=width,
                               experts=parts)
        yield RowOperation("multiply_chosen", index, "EXPANDED", "MIXED", (self.name(names.EXPERT_DOWN),),
                           experts=parts)

    def mix_beside(self, mixture: Mixture) -> Iterator[RowOperation]:
        """A dense network and experts: the result of each has a norm, and so has their sum."""
        index, width, ending = self.index, self.architecture.embedding, names.SCALE
        parts = ExpertParts(weights=in_layer(index, names.EXPERT_DOWN, ending)
                            if self.has(names.EXPERT_DOWN, ending) else None)
        router = RowNorm("rms", in_layer(index, names.ROUTER, ending), factor=width**-0.5)
        yield RowOperation("multiply", index, "RESIDUAL", "ROUTED", (self.name(names.ROUTER),), router)
        yield from self.go_through(mixture, parts, self.norm(names.EXPERT_NORM))
        yield RowOperation("combine", index, "MIXED", "PRODUCT", columns=width, experts=parts)
        yield RowOperation("normalise", index, "PRODUCT", "PRODUCT", norm=self.norm(names.EXPERT_RESULT_NORM),
                           columns=width)
        yield from self.expand()
        yield RowOperation("multiply", index, "HIDDEN", "MIXED", (self.name(names.DOWN),))
        yield RowOperation("add", index, "MIXED", "PRODUCT", norm=self.norm(names.DENSE_RESULT_NORM), columns=width)
        yield self.add(names.RESULT_NORMS[1], last=True)

    @property
    def gate_up(self) -> bool:
        """Whether gate and up are one matrix."""
        return "gate_up" in self.card.fused

    def back(self, part: str, source: str, result_norm: str) -> Iterator[RowOperation]:
        """Add the products of a matrix to the residual rows."""
        weights, scale = (self.name(part),), self.architecture.scales.residual
        normed = self.card.topology in ("sandwich", "post")
        last = part == names.DOWN
        if not normed and scale == 1.0 and not (last and self.has(names.LAYER_SCALE)):
            yield RowOperation("multiply", self.index, source, "RESIDUAL", weights, accumulate=True)
            return
        yield RowOperation("multiply", self.index, source, "PRODUCT", weights)
        yield self.add(result_norm if normed else None, last=last)

    def add(self, norm: str | None, *, last: bool) -> RowOperation:
        """Add the rows of PRODUCT to the residual rows. `last`: of the layer."""
        final = self.name(names.LAYER_SCALE) if last and self.has(names.LAYER_SCALE) else None
        return RowOperation("add", self.index, "PRODUCT", "RESIDUAL", norm=None if norm is None else self.norm(norm),
                            columns=self.architecture.embedding, scale=self.architecture.scales.residual, final=final)
