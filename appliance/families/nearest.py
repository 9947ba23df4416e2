"""The nearest card to an unknown architecture, and the differences, for a refusal.

They are told by the keys of its header and the names of its tensors. Nothing is loaded by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.families.architecture import Architecture
from appliance.families.card import Family
from appliance.families.header import dimensions
from appliance.families.lacking import lacking
from appliance.families.reader import HeaderReader
from appliance.families.table import FAMILIES
from appliance.families.tensors import optional_shapes, required_shapes

_SHOWN = 6  # names of a kind in the message
_LAYER = re.compile(r"blk\.\d+\.")
_PLAIN = re.compile(r"[\w.\-]{1,60}")  # a stranger's name that may stand in a message


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of a model from a family."""

    family: Family
    more: tuple[str, ...]  # parts that it has tensors for, and the family has not
    fewer: tuple[str, ...]  # parts that the family must have
    keys: tuple[str, ...]  # of its header, that the family does not know

    @property
    def size(self) -> int:
        """How many there are. Tensors weigh more than keys."""
        return 3 * (len(self.more) + len(self.fewer)) + len(self.keys)

    def __str__(self) -> str:
        said = [f"{words} {_list(found)}" for words, found in (
            ("has other tensors:", self.more), ("has none named", self.fewer), ("has other keys:", self.keys)) if found]
        return (f"the nearest family is {self.family.name} ({self.family.models}); beside it the model "
                + ("; it ".join(said) or "has no other tensor and no other key, but an unknown order of operations"))


def advice(name: str, metadata: Mapping[str, Any], tensors: Collection[str], hint: str) -> tuple[str, str]:
    """Explain the refusal of an unknown architecture: what is missing for it, and in the place of
    `hint` what the nearest family is, and what differs."""
    lacks = lacking(name, metadata)
    return ("" if lacks is None else f", which does not run here: {lacks}",
            str(nearest(name, metadata, tensors)) if tensors else hint)


def nearest(name: str, keys: Iterable[str], tensors: Collection[str]) -> Difference:
    """The family that differs least, of equal ones the first. `name`: the model's architecture, the
    prefix of its keys."""
    prefix = name + "."
    parts = {_LAYER.sub("", tensor) for tensor in tensors}
    own = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
    return min((_difference(card, parts, own) for card in FAMILIES.values()), key=lambda found: found.size)


def _difference(card: Family, parts: set[str], own: set[str]) -> Difference:
    smallest, known = keys_of(card)
    must = {_LAYER.sub("", tensor) for tensor, _ in required_shapes(smallest, parts)}
    if "attn_qkv.weight" in parts:
        must = must - {"attn_q.weight", "attn_k.weight", "attn_v.weight"} | {"attn_qkv.weight"}
    may = {_LAYER.sub("", tensor) for tensor, _ in optional_shapes(smallest)}
    return Difference(card, tuple(sorted(parts - must - may)), tuple(sorted(must - parts)), tuple(sorted(own - known)))


def _list(found: tuple[str, ...]) -> str:
    shown = [name if _PLAIN.fullmatch(name) else "one with an odd name" for name in found[:_SHOWN]]
    return ", ".join(shown) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")


def keys_of(family: Family) -> tuple[Architecture, set[str]]:
    """The smallest model of a family, and the keys that a header of it may have, without their
    prefix."""
    said: dict[str, Any] = dict.fromkeys(family.must, 1) | {
        "block_count": 1, "context_length": 1, "embedding_length": 32, "feed_forward_length": 32, "vocab_size": 1,
        "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5}
    if family.experts is not None and family.experts.always:
        said |= {"expert_count": 1, "expert_used_count": 1, "expert_feed_forward_length": 32}
    if family.recurrent in ("convolution", "mamba"):
        said |= {"block_count": 2, "attention.head_count_kv": [0, 1], "shortconv.l_cache": 3}
    if family.recurrent == "delta":
        said |= {"block_count": 2, "full_attention_interval": 2}
    if family.recurrent is not None:
        said |= {"ssm.state_size": 32, "ssm.inner_size": 32, "ssm.time_step_rank": 1, "ssm.group_count": 1,
                 "ssm.conv_kernel": 4}
    if family.single:
        said |= {"block_count": 3, "attention.head_count_kv": [0, 1, 0], "feed_forward_length": [0, 0, 32]}
    header = {f"{family.name}.{key}": value for key, value in said.items()}
    reader = HeaderReader(family.name, header)
    return dimensions(reader, family, header), reader.seen | family.neutral.keys() | family.silent
