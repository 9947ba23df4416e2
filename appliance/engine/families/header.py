"""A model's header against the card of its family: the architecture, read from GGUF metadata and
range-checked.

Everything that the forward pass would do differently is either read here or refused here by its
metadata key. A key of the family that the card does not know is refused too, because ignoring it
could silently change the model. Keys: GGUF specification (`docs/gguf.md` of ggml), section
"Standardized key-value pairs", and for the scaling of rotary positions the YaRN paper (arXiv
2309.00071). This module knows nothing of tensors; see `tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from typing import Any

from appliance.engine.families.architecture import HEAD_SIZES, LEAST_FACTOR, Architecture, Rope
from appliance.engine.families.card import Family
from appliance.engine.families.table import FAMILIES
from appliance.errors import FormatError, UnsupportedError

ROW_MULTIPLE = 32  # every activation row is a whole number of quantisation blocks

_SAYS_NOTHING = "the file does not say what it is: it is damaged, or not a language model"
# Head sizes of known models that the kernels do not take.
_KNOWN_SIZES = {100: ", that of OpenLLaMA 3B", 120: ", that of H2O Danube3 4B"}
_SUPPRESSED = "tokenizer.ggml.suppress_tokens"  # that no answer may have


class _Reader:
    """Typed, range-checked reads of a family's keys; remembers what was read."""

    def __init__(self, family: Family, metadata: Mapping[str, Any]) -> None:
        self.family, self._values = family.name, metadata
        self.seen: set[str] = set()

    def _raw(self, key: str, default: Any) -> Any:
        self.seen.add(key)
        value = self._values.get(f"{self.family}.{key}")
        return default if value is None else value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in low..high; FormatError when absent without a default, or out of range."""
        value = self._raw(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FormatError(f"{self.family}.{key} is {_show(value)}; allowed: an integer in {low}..{high}")
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low..high; FormatError when absent without a default, or out of range.
        """
        value = self._raw(key, default)
        least = low * (1 - 2**-24)  # what a file has of `low` in 32 bits may lie below
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= float(value) <= high:
            raise FormatError(f"{self.family}.{key} is {_show(value)}; allowed: a number in {low:g}..{high:g}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        """A string; FormatError for any other type."""
        value = self._raw(key, default)
        if not isinstance(value, str):
            raise FormatError(f"{self.family}.{key} is {_show(value)}; allowed: a string")
        return value


def _show(value: Any) -> str:
    """A short description of a value from an untrusted file, for a message."""
    if value is None:
        return "missing"
    return repr(value) if isinstance(value, (bool, int, float)) else f"of type {type(value).__name__}"


def family_of(metadata: Mapping[str, Any]) -> Family:
    """The card of a model's family; UnsupportedError, which names those that there are, for any
    other."""
    found = metadata.get("general.architecture")
    if isinstance(found, str) and found in FAMILIES:
        return FAMILIES[found]
    name = found if isinstance(found, str) and found.isprintable() and len(found) < 64 else _show(found)
    families = ", or of the ".join(f"{family.name} family ({family.models})" for family in FAMILIES.values())
    raise UnsupportedError(f"the model's architecture is {name}; this version runs: {', '.join(FAMILIES)}",
                           hint=f"use a model of the {families}" if isinstance(found, str) else _SAYS_NOTHING)


def architecture_of(metadata: Mapping[str, Any]) -> Architecture:
    """The architecture of a GGUF file, from its metadata.

    UnsupportedError names what we do not run; FormatError what is missing or out of range.
    """
    family = family_of(metadata)
    reader = _Reader(family, metadata)
    architecture = _dimensions(reader, metadata)
    _refuse_unknown(family, metadata, reader.seen)
    suppressed = metadata.get(_SUPPRESSED, ())
    if not isinstance(suppressed, Sized) or len(suppressed):
        raise UnsupportedError(f"{_SUPPRESSED} names tokens that no answer may have; this version keeps none out")
    return architecture


def _dimensions(reader: _Reader, metadata: Mapping[str, Any]) -> Architecture:
    name = reader.family
    embedding = reader.integer("embedding_length", ROW_MULTIPLE, 65_536)
    heads = reader.integer("attention.head_count", 1, 1024)
    kv_heads = reader.integer("attention.head_count_kv", 1, heads, heads)
    if heads % kv_heads:
        raise FormatError(f"{name}.attention.head_count_kv is {kv_heads}: {heads} query heads cannot share that evenly")
    head_size = _head_size(reader, embedding, heads)
    feed_forward = reader.integer("feed_forward_length", ROW_MULTIPLE, 1 << 20)
    for key, value in (("embedding_length", embedding), ("feed_forward_length", feed_forward),
                       ("attention.head_count × head size", heads * head_size)):
        if value % ROW_MULTIPLE:
            raise UnsupportedError(f"{name}.{key} is {value}; allowed: a multiple of {ROW_MULTIPLE}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    counted = len(tokens) if isinstance(tokens, Sized) and not isinstance(tokens, (str, bytes)) else None
    context = reader.integer("context_length", 1, 1 << 24)
    return Architecture(
        family=name, layers=reader.integer("block_count", 1, 1024), embedding=embedding, heads=heads,
        kv_heads=kv_heads, head_size=head_size, feed_forward=feed_forward,
        vocabulary=reader.integer("vocab_size", 1, 1 << 20, counted), context_length=context,
        epsilon=reader.real("attention.layer_norm_rms_epsilon", 1e-12, 1e-2),
        rope=_rope(reader, context),
    )


def _head_size(reader: _Reader, embedding: int, heads: int) -> int:
    name = reader.family
    default = embedding // heads if embedding % heads == 0 else None
    size = reader.integer("attention.key_length", 1, 65_536, default)
    for key in ("attention.value_length", "rope.dimension_count"):
        other = reader.integer(key, 1, 65_536, size)
        if other != size:
            raise UnsupportedError(f"{name}.{key} is {other}; allowed: the head size, {size}")
    if size not in HEAD_SIZES:
        raise UnsupportedError(
            f"{name}.attention.key_length (or else embedding_length / attention.head_count), the head size, is {size}"
            f"{_KNOWN_SIZES.get(size, '')}; allowed: multiples of {HEAD_SIZES.step} in "
            f"{HEAD_SIZES.start}..{HEAD_SIZES[-1]}",
            hint="the attention kernels take 16 elements at once; models with heads of 100 (OpenLLaMA 3B), 120 (H2O "
                 "Danube3 4B) and other sizes that 16 does not divide do not run here, in any quantisation")
    return size


def _rope(reader: _Reader, context: int) -> Rope:
    name = reader.family
    scaling = reader.text("rope.scaling.type", "linear")
    if scaling not in ("none", "linear", "yarn"):
        raise UnsupportedError(f"{name}.rope.scaling.type asks for an unknown scaling; allowed: none, linear, yarn")
    old = reader.real("rope.scale_linear", 0.0, 1e4, 0.0)
    factor = reader.real("rope.scaling.factor", 0.0, 1e4, old) or 1.0  # zero means absent
    if factor < LEAST_FACTOR:
        raise FormatError(f"{name}.rope.scaling.factor is {factor}; allowed: 0, or a number in {LEAST_FACTOR}..10000")
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


def _refuse_unknown(family: Family, metadata: Mapping[str, Any], seen: set[str]) -> None:
    prefix = family.name + "."
    asks_more = (f"the model asks for more than the plain {family.name} architecture; to ignore it could change its "
                 "answers")
    for full, value in metadata.items():
        key = full.removeprefix(prefix)
        if key == full or key in seen or key in family.silent:
            continue
        allowed = family.neutral.get(key)
        if allowed is None:
            raise UnsupportedError(f"metadata key {full[:80]!r} is not known to this version", hint=asks_more)
        if not isinstance(value, (bool, int, float, str)) or value not in allowed:
            raise UnsupportedError(
                f"{full} is {_show(value)}; this version runs only: {', '.join(map(repr, allowed))}",
                hint=family.hints.get(key, asks_more))
