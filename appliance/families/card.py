"""A card: what one model family is, as data alone, so that it can be printed into a specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from appliance.families import names

COMMON: Mapping[str, tuple[Any, ...]] = MappingProxyType({
    "expert_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "use_parallel_residual": (False,),
    "pooling_type": (0,),
    "tensor_data_layout": ("reference", "Meta AI original pth"),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
})
"""Keys of any family that ask for something else unless they have these values."""

HINTS: Mapping[str, str] = MappingProxyType({
    "expert_count": "a mixture of experts does not run here in this family: use a dense model of it",
    "attention.sliding_window": "windows of attention do not run here in this family: use a model without",
    "pooling_type": "the model makes embeddings or rankings, not text: use a model that generates text",
    "attention.causal": "the model makes embeddings or fills gaps, not text: use a model that generates text",
})
"""The advice for keys with other values."""

SILENT = frozenset({"rope.scaling.finetuned"})

NO_PART = ("expert_", "ssm.")
"""Keys that begin so are about parts that no family here has. They say nothing in a file without
such tensors, which `tensors` sees to: converters write them for dense models of mixed families."""

TOPOLOGIES: Mapping[str, str] = MappingProxyType({
    "serial": "a norm before attention and one before the feed-forward network",
    "parallel": "attention and feed-forward network read one normalised row",
    "sandwich": "as serial, and what both give is normalised before it is added",
    "post": "only what both give is normalised",
})
"""Where norms stand in a layer, and what reads what."""


@dataclass(frozen=True, slots=True)
class Rotary:
    """How heads are turned by their position."""

    pairs: str = "neighbours"  # or "halves": element i with element i + n / 2 of the first n
    base: tuple[str, ...] = ("rope.freq_base",)  # keys of the base: the first that a file has holds
    scaled: bool = True  # whether the file's scaling and its factors of frequencies hold


@dataclass(frozen=True, slots=True)
class Attend:
    """The attention of one kind of layer."""

    rotary: Rotary | None = Rotary()
    window: str | None = None  # key: positions that a row sees, its own included; 0 or absent: all
    sizes: str = ""  # behind the keys of its head size: "_swa"


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a family's layers. Their counts and widths are in the file."""

    score: str = "softmax"  # of all logits; "chosen": of those chosen; or "sigmoid"
    normalised: bool = True  # whether weights are divided by their sum, where the file does not say
    least: float = 1e-20  # that they are divided by
    added: float = 0.0  # to the sum that they are divided by
    always: bool = True  # whether each model of the family has experts
    shared: str | None = None  # an expert that every row goes through: "plain", or "gated" by a sigmoid
    beside: bool = False  # whether they stand beside a dense network, with norms of their own
    biased: bool = False  # whether a bias may be added to scores where experts are chosen


@dataclass(frozen=True, slots=True)
class Family:
    """One family. Each way in which its models differ from llama's is a field here."""

    name: str  # `general.architecture` of its files, and the prefix of its keys
    source: str  # where its arithmetic stands
    models: str  # well-known ones, for a message
    norm: str = "rms"  # or "layer": by mean and deviation
    norm_bias: bool = False  # whether norms add one
    topology: str = "serial"  # or "parallel", "sandwich", "post", see `TOPOLOGIES`
    layers: tuple[Attend, ...] = (Attend(),)  # repeated; where the file has a pattern, windows come first, then others
    windowless: tuple[Attend, ...] | None = None  # the same for files without a window
    sectioned: tuple[Attend, ...] | None = None  # the same for files with `rope.dimension_sections`
    pattern: str | None = None  # key: a period, or for each layer whether it has a window
    head_norm: str | None = None  # of queries and keys: "head", or "row" for all heads together
    sinks: bool = False  # whether each head has a score that takes part in the sum of weights
    head_norm_always: bool = True  # whether each model of the family has it
    value_norm: bool = False  # of each head of a value, without weights
    value_is_key: bool = False  # a layer without `attn_v` has its keys, before norm and turning, as values
    partial: bool = False  # whether `rope.dimension_count` may be less than a head
    yarn_whole: bool = True  # whether YaRN blends frequencies from a whole pair on, and up to one
    long_factors: bool = False  # factors of frequencies for slots up to the original context, and beyond
    switch: str | None = None  # key: whether heads are turned
    # How layers keep a state: "convolution" or "mamba" where they have no key-value heads, or
    # "delta".
    recurrent: str | None = None
    together: bool = False  # whether value heads of a delta rule that have the same keys lie together
    output_gate: bool = False  # whether a query has a gate behind each head, for its output
    single: bool = False  # a layer has one part: a state, attention, or a feed-forward network where that has a width
    activation: str = "silu"  # or "gelu", "swiglu_oai", "relu2"
    gated: bool = True
    fused: frozenset[str] = frozenset()  # "qkv", "gate_up": in one matrix
    biases: frozenset[str] = frozenset()  # matrices of a layer that may have one
    output_bias: bool = False
    places: bool = False  # learned embeddings of positions
    output_norm: str = names.OUTPUT_NORM
    feed_forward_norm: str = names.FEED_FORWARD_NORM  # the norm before the feed-forward network
    second_norm: bool = False  # attention may have a norm of its own beside the feed-forward network
    arrays: frozenset[str] = frozenset()  # keys that may have a number for each layer
    embedding_scale: str | None = None  # a key, or "sqrt(embedding)"
    query_scale: str | None = None  # a key, "1", or "1/sqrt(share) at 62 layers"; else 1/sqrt(head)
    query_temperature: str | None = None  # key: how queries grow with the logarithm of the position
    residual_scale: str | None = None  # key
    logit_scale: str | None = None  # key, behind "/" where it divides
    logit_cap: str | None = None  # key
    layer_scale: bool = False  # a layer may have a factor for its result
    experts: Experts | None = None
    predictors: str | None = None  # key: layers at the end that guess further tokens, and are not in the program
    guesses: bool = False  # whether the first of these may guess for an engine, see `tensors.guess_head`
    must: frozenset[str] = frozenset()  # keys that a file must have: without one, readers would guess
    # Keys that change nothing with these values.
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: COMMON)
    hints: Mapping[str, str] = field(default_factory=lambda: HINTS)  # by key: what to do where it has another value
    silent: frozenset[str] = SILENT  # keys that say nothing about the forward pass


def but(*keys: str) -> Mapping[str, tuple[Any, ...]]:
    """COMMON without keys that a family reads."""
    return {key: values for key, values in COMMON.items() if key not in keys}
