"""Positions beyond those of a model's file, by YaRN: the metadata that its publisher says to add.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.errors import UnsupportedError
from appliance.families.names import LONG_FACTORS, ROPE_FACTORS

_TYPE, _FACTOR, _LINEAR = "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear"
_ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True, slots=True)
class Extension:
    """How far positions go beyond the ones of the training."""

    factor: float
    original: int | None = None  # positions that it was trained on; None: those of the file


def extended_metadata(metadata: Mapping[str, Any], extension: Extension | None,
                      tensors: Container[str] = ()) -> Mapping[str, Any]:
    """The metadata of a model with an extension; as they are without one. UnsupportedError for a
    file that scales its positions itself, or has no positions to scale."""
    if extension is None:
        return metadata
    family, context = metadata.get("general.architecture"), _original(metadata, extension)
    scales = metadata.get(f"{family}.{_TYPE}") not in (None, "none", "linear") or any(
        metadata.get(f"{family}.{key}") not in (None, 0, 1) for key in (_FACTOR, _LINEAR))
    if scales or ROPE_FACTORS in tensors or LONG_FACTORS in tensors:
        raise UnsupportedError("the policy's rope extends the context, but the model's file scales positions itself",
                               hint="leave rope out: context_length goes up to what the file promises")
    if context is None:
        raise UnsupportedError("the policy's rope extends the context, but the model's file tells of none",
                               hint="give original_context")
    return {**metadata, f"{family}.{_TYPE}": "yarn", f"{family}.{_FACTOR}": float(extension.factor),
            f"{family}.{_ORIGINAL}": context, f"{family}.context_length": math.floor(context * extension.factor)}


def _original(metadata: Mapping[str, Any], extension: Extension) -> int | None:
    """The positions that a model was trained on."""
    family = metadata.get("general.architecture")
    positions = extension.original or metadata.get(f"{family}.{_ORIGINAL}") or metadata.get(f"{family}.context_length")
    return positions if isinstance(positions, int) and not isinstance(positions, bool) and positions > 0 else None
