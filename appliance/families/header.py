"""A model's header against the card of its family: the architecture, read from GGUF metadata and
range-checked.

Everything that the forward pass would do differently is either read here or refused here by its
metadata key. A key of the family that the card does not know is refused too, because ignoring it
could silently change the model. Keys: GGUF specification (`docs/gguf.md` of ggml), section
"Standardized key-value pairs". This module knows nothing of tensors; see `tensors`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Collection, Iterator, Mapping, Sized
from typing import Any

from appliance.errors import FormatError, UnsupportedError
from appliance.families.architecture import (
    HEAD_SIZES,
    Architecture,
    Convolution,
    Delta,
    Layer,
    Mamba,
    Mixture,
    Recurrence,
    Scales,
)
from appliance.families.card import NO_PART, Attend, Experts, Family
from appliance.families.reader import HeaderReader, show
from appliance.families.rotary import ropes
from appliance.families.table import FAMILIES

ROW_MULTIPLE = 32  # every activation row is a whole number of quantisation blocks
MOST_EXPERTS, MOST_USED = 1024, 64  # experts of a layer, and of a row
SCORES = ("softmax", "sigmoid", "chosen")  # `expert_gating_func` counts them from 1

_ADVICE = "appliance.families.nearest"  # explains refusals; no image has it
_SAYS_NOTHING = "the file does not say what it is: it is damaged, or not a language model"
# Head sizes of known models that the kernels do not take.
_KNOWN_SIZES = {100: ", that of OpenLLaMA 3B", 120: ", that of H2O Danube3 4B"}


def _family_of(metadata: Mapping[str, Any], tensors: Collection[str]) -> Family:
    """The card of a model's family. UnsupportedError for any other, with the desk's words where
    there are any."""
    name = metadata.get("general.architecture")
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    reason, hint = "", _SAYS_NOTHING
    if isinstance(name, str):
        hint = "use a model of the " + ", or of the ".join(
            f"{family.name} family ({family.models})" for family in FAMILIES.values())
        if importlib.util.find_spec(_ADVICE):
            reason, hint = importlib.import_module(_ADVICE).advice(name, metadata, tensors, hint)
    name = name if isinstance(name, str) and name.isprintable() and len(name) < 64 else show(name)
    raise UnsupportedError(f"the model's architecture is {name}{reason}; this version runs: {', '.join(FAMILIES)}",
                           hint=hint)


def architecture_of(metadata: Mapping[str, Any], tensors: Collection[str] = ()) -> Architecture:
    """The architecture of a GGUF file, from its metadata; the names of its `tensors` only help to
    explain a refusal.

    UnsupportedError names what we do not run; FormatError what is missing or out of range.
    """
    family = _family_of(metadata, tensors)
    reader = HeaderReader(family.name, metadata)
    architecture = dimensions(reader, family, metadata)
    _refuse_unknown(family, metadata, reader.seen, experts=architecture.mixture is not None)
    return architecture


def dimensions(reader: HeaderReader, family: Family, metadata: Mapping[str, Any]) -> Architecture:
    """The architecture by the keys that the card names."""
    name = family.name
    blocks = reader.integer("block_count", 1, 1024)
    left_out = 0 if family.predictors is None else reader.integer(family.predictors, 0, blocks - 1, 0)
    layers = blocks - left_out
    embedding = reader.integer("embedding_length", ROW_MULTIPLE, 65_536)
    context = reader.integer("context_length", 1, 1 << 24)
    for key in sorted(family.must):
        if metadata.get(f"{name}.{key}") is None:
            raise FormatError(f"{name}.{key} is missing; without it the model would be another one",
                              hint="convert the model again with a current llama.cpp")
    kinds = _kinds(reader, family, layers)
    each = tuple(_layers(reader, family, kinds, embedding, context, blocks))
    for key, value in (("embedding_length", embedding),
                       *(("feed_forward_length", layer.feed_forward) for layer in each),
                       *(("attention.head_count × head size", layer.query_width) for layer in each)):
        if value % ROW_MULTIPLE:
            raise UnsupportedError(f"{name}.{key} is {value}; allowed: a multiple of {ROW_MULTIPLE}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    counted = len(tokens) if isinstance(tokens, Sized) and not isinstance(tokens, (str, bytes)) else None
    epsilon = "attention.layer_norm_rms_epsilon" if family.norm == "rms" else "attention.layer_norm_epsilon"
    uniform, wide = len(set(each)) == 1, max(layer.feed_forward for layer in each)
    return Architecture(
        family=name, layers=layers, embedding=embedding, heads=max(layer.heads for layer in each),
        kv_heads=max(layer.kv_heads for layer in each), head_size=max(layer.head_size for layer in each),
        feed_forward=wide,
        vocabulary=reader.integer("vocab_size", 1, 1 << 20, counted), context_length=context,
        epsilon=reader.real(epsilon, 1e-12, 1e-2),
        rope=next((layer.rope for layer in each if layer.rope is not None), None), each=() if uniform else each,
        window=each[0].window if uniform else 0, scales=_scales(reader, family, embedding, each[0], layers, context),
        mixture=_mixture(reader, family, wide, layers), left_out=left_out,
    )


def _kinds(reader: HeaderReader, family: Family, layers: int) -> list[Attend]:
    """The kind of each layer: by the file's pattern, or the card's."""
    kinds = family.layers
    if family.sectioned is not None and reader.sections("rope.dimension_sections"):
        kinds = family.sectioned
    if family.windowless is not None and all(
            kind.window is None or not reader.integer(kind.window, 0, 1 << 24, 0) for kind in kinds):
        kinds = family.windowless
    pattern = None if family.pattern is None else reader.pattern(family.pattern, layers)
    if pattern is None:
        return [kinds[index % len(kinds)] for index in range(layers)]
    return [kinds[0 if windowed else -1] for windowed in pattern]


def _layers(reader: HeaderReader, family: Family, kinds: list[Attend], embedding: int, context: int,
            blocks: int) -> Iterator[Layer]:
    count = len(kinds)
    more = blocks - count
    heads = reader.integers("attention.head_count", 1, 1024, count, several="attention.head_count" in family.arrays,
                            more=more)
    kv_heads = reader.integers("attention.head_count_kv", 1 if family.recurrent is None else 0, 1024, count, heads,
                               several="attention.head_count_kv" in family.arrays, more=more)
    if family.recurrent == "delta":
        kv_heads = [0 if kept else heads for kept, heads in zip(_kept(reader, blocks), kv_heads, strict=False)]
    if not any(kv_heads):
        raise UnsupportedError(f"{family.name}.attention.head_count_kv is 0 in all layers; this version runs only: "
                               "models of which a layer attends")
    always = family.experts is not None and family.experts.always  # then no layer needs to have another width
    default = [reader.integer("expert_feed_forward_length", ROW_MULTIPLE, 1 << 20)] * count if always and (
        family.recurrent == "delta") else None
    wide = reader.integers("feed_forward_length", 0 if family.single else ROW_MULTIPLE, 1 << 20, count, default,
                           several="feed_forward_length" in family.arrays, more=more)
    for index, kind in enumerate(kinds):
        if not kv_heads[index]:
            network = family.single and wide[index]
            yield Layer(0, 0, HEAD_SIZES.start, wide[index], None, 0,
                        None if network else _recurrence(reader, family, embedding))
            continue
        if family.single and wide[index]:
            raise UnsupportedError(f"{family.name}.feed_forward_length is {wide[index]} in layer {index}, which "
                                   "attends; allowed there: 0")
        if kv_heads[index] > heads[index] or heads[index] % kv_heads[index]:
            raise FormatError(f"{family.name}.attention.head_count_kv is {kv_heads[index]}: {heads[index]} query heads "
                              "cannot share that evenly")
        size = _head_size(reader, kind, embedding, heads[index])
        window = 0 if kind.window is None else reader.integer(kind.window, 0, 1 << 24, 0)
        rope = ropes(reader, family, kind, size, context)
        yield Layer(heads[index], kv_heads[index], size, wide[index], rope, window)


def _kept(reader: HeaderReader, blocks: int) -> list[bool]:
    """Read which layers keep a state, of families with a delta rule: by a list, or all but every
    fourth, or another."""
    period = reader.integer("full_attention_interval", 1, 1024, 4)
    listed = reader.pattern("attention.recurrent_layers", blocks)
    return [(index + 1) % period != 0 for index in range(blocks)] if listed is None else listed


def _recurrence(reader: HeaderReader, family: Family, embedding: int) -> Recurrence:
    """Read the numbers of a layer that keeps a state."""
    if family.recurrent == "convolution":
        return Convolution(embedding, reader.integer("shortconv.l_cache", 2, 64))
    return _mamba(reader) if family.recurrent == "mamba" else _delta(reader, family)


def _delta(reader: HeaderReader, family: Family) -> Delta:
    """Read the numbers of a layer with a delta rule. Raises as `_mamba` does."""
    size, keys = reader.integer("ssm.state_size", 32, 256), reader.integer("ssm.group_count", 1, 256)
    heads, width = reader.integer("ssm.time_step_rank", 1, 256), reader.integer("ssm.conv_kernel", 2, 64)
    if size % ROW_MULTIPLE:
        raise UnsupportedError(f"{family.name}.ssm.state_size is {size}; allowed: a multiple of {ROW_MULTIPLE}")
    if heads % keys:
        raise FormatError(f"{family.name}.ssm.time_step_rank is {heads}: so many value heads cannot share "
                          f"{keys} key heads evenly")
    if reader.integer("ssm.inner_size", 1, 1 << 24) != heads * size:
        raise UnsupportedError(f"{family.name}.ssm.inner_size is another number than ssm.time_step_rank x "
                               f"ssm.state_size; allowed: {heads * size}")
    return Delta(heads, keys, size, width, family.together)


def _mamba(reader: HeaderReader) -> Mamba:
    """Read the numbers of a layer with Mamba-2. Raises FormatError and UnsupportedError."""
    heads, groups = reader.integer("ssm.time_step_rank", 1, 1024), reader.integer("ssm.group_count", 1, 256)
    found = Mamba(reader.integer("ssm.inner_size", 32, 1 << 16), heads, groups,
                  reader.integer("ssm.state_size", 16, 256), reader.integer("ssm.conv_kernel", 2, 64))
    for key, value, part in (("inner_size", found.inner, math.lcm(32, 16 * heads)),
                             ("time_step_rank", heads, groups), ("state_size", found.size, 16)):
        if value % part:
            raise UnsupportedError(f"{reader.family}.ssm.{key} is {value}; allowed: a multiple of {part}")
    return found


def _head_size(reader: HeaderReader, kind: Attend, embedding: int, heads: int) -> int:
    name, key = reader.family, f"attention.key_length{kind.sizes}"
    default = embedding // heads if embedding % heads == 0 else None
    size = reader.integer(key, 1, 65_536, default)
    other = reader.integer(f"attention.value_length{kind.sizes}", 1, 65_536, size)
    if other != size:
        raise UnsupportedError(f"{name}.attention.value_length{kind.sizes} is {other}; allowed: the head size, {size}")
    if size not in HEAD_SIZES:
        raise UnsupportedError(
            f"{name}.{key} (or else embedding_length / attention.head_count), the head size, is {size}"
            f"{_KNOWN_SIZES.get(size, '')}; allowed: multiples of {HEAD_SIZES.step} in "
            f"{HEAD_SIZES.start}..{HEAD_SIZES[-1]}",
            hint="the attention kernels take 16 elements at once; models with heads of 100 (OpenLLaMA 3B), 120 (H2O "
                 "Danube3 4B) and other sizes that 16 does not divide do not run here, in any quantisation")
    return size


def _scales(reader: HeaderReader, family: Family, embedding: int, layer: Layer, layers: int, context: int) -> Scales:
    """The factors that the card names."""
    root = family.embedding_scale == "sqrt(embedding)"
    logits, divides = (family.logit_scale or "").removeprefix("/"), (family.logit_scale or "").startswith("/")
    factor = reader.real(logits, 1e-6, 1e6, 1.0) if logits else 1.0
    return Scales(
        embedding=math.sqrt(embedding) if root else _factor(reader, family.embedding_scale) or 1.0,
        query=_query_scale(reader, family, embedding, layer, layers),
        residual=_factor(reader, family.residual_scale) or 1.0,
        logits=1.0 / factor if divides else factor,
        cap=_factor(reader, family.logit_cap),
        temperature=_factor(reader, family.query_temperature),
        temperature_step=reader.integer("rope.scaling.original_context_length", 1, 1 << 24, context),
    )


def _factor(reader: HeaderReader, key: str | None) -> float:
    """A factor; 0 where the card or the file names none."""
    return 0.0 if key is None else reader.real(key, 0.0, 1e6, 0.0)


def _query_scale(reader: HeaderReader, family: Family, embedding: int, layer: Layer, layers: int) -> float | None:
    rule = family.query_scale
    if rule == "1":
        return 1.0
    if rule == "1/sqrt(share) at 62 layers":
        return 1.0 / math.sqrt(embedding / layer.heads) if layers == 62 else None
    return _factor(reader, rule) or None


def _mixture(reader: HeaderReader, family: Family, wide: int, layers: int) -> Mixture | None:
    """Read the sizes of experts; None for a model without. `wide`: floats of a hidden row where the
    file tells of none for experts. Raises FormatError and UnsupportedError as the reader does."""
    card, name = family.experts, family.name
    if card is None:
        return None
    count = reader.integer("expert_count", 1 if card.always else 0, MOST_EXPERTS, None if card.always else 0)
    if count == 0:
        return None
    used = reader.integer("expert_used_count", 1, min(count, MOST_USED))
    width = reader.integer("expert_feed_forward_length", 1, 1 << 20, wide)
    shared = _shared(reader, card, width)
    for key, value in (("expert_feed_forward_length", width), ("expert_shared_feed_forward_length", shared)):
        if value % 32:
            raise UnsupportedError(f"{name}.{key} is {value}; allowed: a multiple of 32")
    _expect_score(reader, card)
    groups, groups_used = _groups(reader, card, count, used)
    normalised = reader.flag("expert_weights_norm", card.normalised) or card.score == "chosen"
    return Mixture(
        count, used, width, card.score, card.least if normalised else 0.0, card.added,
        reader.real("expert_weights_scale", 0.0, 1e6, 1.0) or 1.0, groups, groups_used, shared,
        reader.integer("leading_dense_block_count", 0, layers - 1, 0), card.beside)


def _shared(reader: HeaderReader, card: Experts, width: int) -> int:
    """Floats of a hidden row of the shared expert: as the file says, or as of so many experts; 0
    without one."""
    if card.shared is None:
        return 0
    several = reader.integer("expert_shared_count", 0, 64, 0)
    return reader.integer("expert_shared_feed_forward_length", 0, 1 << 20, 0) or several * width


def _expect_score(reader: HeaderReader, card: Experts) -> None:
    """Raise UnsupportedError where the file names another score than its family has."""
    own = SCORES.index(card.score) + 1
    said = reader.integer("expert_gating_func", 0, 1 << 20, own)
    if said not in (0, own):
        raise UnsupportedError(f"{reader.family}.expert_gating_func is {said}; this version runs only: 0, {own}",
                               hint=f"experts of this family have the score {card.score}")


def _groups(reader: HeaderReader, card: Experts, count: int, used: int) -> tuple[int, int]:
    """Groups of experts, and those of a row."""
    groups = reader.integer("expert_group_count", 0, count, 1) or 1
    groups_used = reader.integer("expert_group_used_count", 0, groups, groups) or groups
    if groups_used == groups:
        return 1, 1
    if card.score != "sigmoid":
        raise UnsupportedError(f"{reader.family}.expert_group_count is {groups}; "
                               f"allowed with the score {card.score}: 1")
    if count % groups or count // groups < 2 or groups_used * (count // groups) < used:
        raise FormatError(f"{reader.family}.expert_group_count is {groups}, and {groups_used} are used: {used} of "
                          f"{count} experts cannot be chosen so")
    return groups, groups_used


def _spelling(value: bool | float | str) -> str:
    """An allowed value as a file has it."""
    return f'"{value}"' if isinstance(value, str) else show(value)


def _refuse_unknown(family: Family, metadata: Mapping[str, Any], keys: set[str], *, experts: bool) -> None:
    there = {"expert_": experts, "ssm.": any(key.startswith("ssm.") for key in keys)}
    prefix, no_part = family.name + ".", tuple(part for part in NO_PART if not there[part])
    asks_more = (f"the model asks for more than the plain {family.name} architecture; to ignore it could change its "
                 "answers")
    for full, value in metadata.items():
        key = full.removeprefix(prefix)
        if key == full or key in keys or key in family.silent:
            continue
        allowed = family.neutral.get(key)
        if allowed is None and key.startswith(no_part):
            continue
        if allowed is None:
            raise UnsupportedError(f"metadata key {full[:80]!r} is not known to this version", hint=asks_more)
        if not isinstance(value, (bool, int, float, str)) or value not in allowed:
            raise UnsupportedError(
                f"{full} is {show(value)}; this version runs only: {', '.join(map(_spelling, allowed))}",
                hint=family.hints.get(key, asks_more))
