"""The shape of a model of the llama architecture, read from GGUF metadata and range-checked.

Everything that the forward pass would do differently is either read here or refused here by its metadata key:
an unknown `llama.*` key is refused too, because ignoring it could silently change the model.
Keys: GGUF specification (`docs/gguf.md` of ggml), section "Standardized key-value pairs", and for the scaling of
rotary positions the YaRN paper (arXiv 2309.00071). This module knows nothing of tensors; see `architecture_tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from appliance.errors import FormatError, UnsupportedError

NAME = "llama"
CONTEXT_CAP = 32_768  # positions; the default limit, where the policy names none
HEAD_SIZES = range(32, 257, 16)  # what the attention kernels are built for
ROW_MULTIPLE = 32  # every activation row is a whole number of quantisation blocks
LEAST_FACTOR = 1e-3  # of rotary positions, which it divides: near zero they would have no sine

# Keys that may appear with these values only; any other value asks for something we do not run.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.sliding_window": (0,),
    "use_parallel_residual": (False,),
    "pooling_type": (0,),
    "tensor_data_layout": ("reference", "Meta AI original pth"),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
_FAMILY = "use a model of the llama family (Llama 2 and 3, TinyLlama, SmolLM2, Mistral 7B without window)"
_SAYS_NOTHING = "the file does not say what it is: it is damaged, or not a language model"
_ASKS_MORE = "the model asks for more than the plain llama architecture; to ignore it could change its answers"
_HINTS = {
    "expert_count": "a mixture of experts does not run here: use a dense model",
    "attention.sliding_window": "windows of attention do not run here: use a model without (Mistral 7B from v0.2 on)",
    "pooling_type": "the model makes embeddings or rankings, not text: use a model that generates text",
    "attention.causal": "the model makes embeddings or fills gaps, not text: use a model that generates text",
}
# Keys that say nothing about the forward pass.
_SILENT = frozenset({"rope.scaling.finetuned"})
# Head sizes of known models that the kernels do not take.
_KNOWN_SIZES = {100: ", that of OpenLLaMA 3B", 120: ", that of H2O Danube3 4B"}
_SUPPRESSED = "tokenizer.ggml.suppress_tokens"  # that no answer may have


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of interleaved pairs, and how positions are scaled."""

    scaling: str  # "none", "linear" or "yarn"
    base: float  # frequency base
    factor: float  # context extension; 1.0 without scaling
    original_context: int  # positions the model was trained on (YaRN)
    magnitude: float  # factor on cosine and sine


@dataclass(frozen=True, slots=True)
class Architecture:
    """The dimensions of one model. All counts are positive and within the ranges that the kernels take."""

    blocks: int
    embedding: int  # floats of a residual row
    heads: int  # query heads
    kv_heads: int  # key and value heads; each serves heads // kv_heads query heads
    head_size: int
    feed_forward: int
    vocabulary: int
    context_length: int  # positions that the file promises
    epsilon: float  # of the RMS norms
    rope: Rope

    @property
    def query_width(self) -> int:
        """Floats of all query heads of a row."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Floats of all key (or value) heads of a row."""
        return self.kv_heads * self.head_size

    def context(self, wanted: int | None = None) -> int:
        """Positions to serve: the wanted number (None: CONTEXT_CAP), at most what the file promises."""
        return min(self.context_length, CONTEXT_CAP if wanted is None else wanted)


class _Reader:
    """Typed, range-checked reads of `llama.*` keys; remembers what was read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._values = metadata
        self.seen: set[str] = set()

    def _raw(self, key: str, default: Any) -> Any:
        self.seen.add(key)
        value = self._values.get(f"{NAME}.{key}")
        return default if value is None else value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in low..high; FormatError when absent without a default, or out of range."""
        value = self._raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FormatError(f"{NAME}.{key} is {_show(value)}; allowed: an integer in {low}..{high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low..high; FormatError when absent without a default, or out of range."""
        value = self._raw(key, default)
        least = low * (1 - 2**-24)  # what a file has of `low` in 32 bits may lie below
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= float(value) <= high:
            raise FormatError(f"{NAME}.{key} is {_show(value)}; allowed: a number in {low:g}..{high:g}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A string; FormatError for any other type."""
        value = self._raw(key, default)
        if not isinstance(value, str):
            raise FormatError(f"{NAME}.{key} is {_show(value)}; allowed: a string")
        return value


def _show(value: Any) -> str:
    """A short description of a value from an untrusted file, for a message."""
    if value is None:
        return "missing"
    return repr(value) if isinstance(value, (bool, int, float)) else f"of type {type(value).__name__}"


def read(metadata: Mapping[str, Any]) -> Architecture:
    """The architecture of a GGUF file from its metadata.

    UnsupportedError names what we do not run; FormatError what is missing or out of range.
    """
    found = metadata.get("general.architecture")
    if found != NAME:
        name = found if isinstance(found, str) and found.isprintable() and len(found) < 64 else _show(found)
        raise UnsupportedError(
            f"the model's architecture is {name}; this version runs: {NAME}",
            hint=_FAMILY if isinstance(found, str) else _SAYS_NOTHING)
    reader = _Reader(metadata)
    architecture = _dimensions(reader, metadata)
    _refuse_unknown(metadata, reader.seen)
    suppressed = metadata.get(_SUPPRESSED, ())
    if not isinstance(suppressed, Sized) or len(suppressed):
        raise UnsupportedError(f"{_SUPPRESSED} names tokens that no answer may have; this version keeps none out")
    return architecture


def _dimensions(reader: _Reader, metadata: Mapping[str, Any]) -> Architecture:
    embedding = reader.integer("embedding_length", ROW_MULTIPLE, 65_536)
    heads = reader.integer("attention.head_count", 1, 1024)
    kv_heads = reader.integer("attention.head_count_kv", 1, heads, heads)
    if heads % kv_heads:
        raise FormatError(f"{NAME}.attention.head_count_kv is {kv_heads}: {heads} query heads cannot share that evenly")
    head_size = _head_size(reader, embedding, heads)
    feed_forward = reader.integer("feed_forward_length", ROW_MULTIPLE, 1 << 20)
    for key, value in (("embedding_length", embedding), ("feed_forward_length", feed_forward),
                       ("attention.head_count × head size", heads * head_size)):
        if value % ROW_MULTIPLE:
            raise UnsupportedError(f"{NAME}.{key} is {value}; allowed: a multiple of {ROW_MULTIPLE}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    counted = len(tokens) if isinstance(tokens, Sized) and not isinstance(tokens, (str, bytes)) else None
    context = reader.integer("context_length", 1, 1 << 24)
    return Architecture(
        blocks=reader.integer("block_count", 1, 1024), embedding=embedding, heads=heads, kv_heads=kv_heads,
        head_size=head_size, feed_forward=feed_forward,
        vocabulary=reader.integer("vocab_size", 1, 1 << 20, counted), context_length=context,
        epsilon=reader.real("attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        rope=_rope(reader, context),
    )


def _head_size(reader: _Reader, embedding: int, heads: int) -> int:
    default = embedding // heads if embedding % heads == 0 else None
    size = reader.integer("attention.key_length", 1, 65_536, default)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = reader.integer(key, 1, 65_536, size)
        if other != size:
            raise UnsupportedError(f"{NAME}.{key} is {other}; allowed: the head size, {size}")
    if size not in HEAD_SIZES:
        raise UnsupportedError(
            f"{NAME}.attention.key_length (or else embedding_length / attention.head_count), the head size, is {size}"
            f"{_KNOWN_SIZES.get(size, '')}; allowed: multiples of {HEAD_SIZES.step} in "
            f"{HEAD_SIZES.start}..{HEAD_SIZES[-1]}",
            hint="the attention kernels take 16 elements at once; models with heads of 100 (OpenLLaMA 3B), 120 (H2O "
                 "Danube3 4B) and other sizes that 16 does not divide do not run here, in any quantisation")
    return size


def _rope(reader: _Reader, context: int) -> Rope:
    scaling = reader.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"{NAME}.rope.scaling.type asks for an unknown scaling; allowed: none, linear, yarn")
    old = reader.real("rope.scale_linear", 0.0, 1e4, 0.0)
    factor = reader.real("rope.scaling.factor", 0.0, 1e4, old) or 1.0  # zero means absent
    if factor < LEAST_FACTOR:
        raise FormatError(f"{NAME}.rope.scaling.factor is {factor}; allowed: 0, or a number in {LEAST_FACTOR}..10000")
    magnitude = reader.real("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    if scaling == "none":
        factor = 1.0
    elif scaling == "yarn":
        magnitude *= max(1.0, 1.0 + 0.1 * math.log(factor))
    return Rope(
        scaling=scaling, base=reader.real("rope.freq_base", 1.0 + 1e-3, 1e12, 10_000.0), factor=factor,
        original_context=reader.integer("rope.scaling.original_context_length", 1, 1 << 24, context),
        magnitude=magnitude,
    )


def _refuse_unknown(metadata: Mapping[str, Any], seen: set[str]) -> None:
    prefix = NAME + "."
    for full, value in metadata.items():
        key = full.removeprefix(prefix)
        if key == full or key in seen or key in _SILENT:
            continue
        allowed = _NEUTRAL.get(key)
        if allowed is None:
            raise UnsupportedError(f"metadata key {full[:80]!r} is not known to this version", hint=_ASKS_MORE)
        if not isinstance(value, (bool, int, float, str)) or value not in allowed:
            raise UnsupportedError(
                f"{full} is {_show(value)}; this version runs only: {', '.join(map(repr, allowed))}",
                hint=_HINTS.get(key, _ASKS_MORE))
