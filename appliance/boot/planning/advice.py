"""The sampling that a model's file advises (`general.sampling.*`), as the bounds of a policy.

Nothing runs by it: `appliance model pin` prints it, and what the policy says holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from appliance.models.file.metadata import Metadata
from appliance.policy.schema.sampling import BY_NAME, OTHER_NAMES, SAMPLERS, Bound

PREFIX = "general.sampling."
_NAMES: Mapping[str, str] = MappingProxyType({
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n", "penalty_freq": "frequency_penalty", "penalty_present": "presence_penalty",
    "xtc_probability": "xtc_probability", "xtc_threshold": "xtc_threshold", "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau", "mirostat_eta": "mirostat_eta"})


def of(metadata: Metadata) -> dict[str, float | int | str]:
    """The advised values by their names in a policy's `sampling` block. A value that a policy's
    usual bounds do not allow is left out."""
    found: dict[str, float | int | str] = {}
    for key, name in _NAMES.items():
        value, bounds = metadata.get(PREFIX + key), Bound.usual(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        whole = BY_NAME[name].whole and float(value).is_integer()
        number = int(value) if whole else _short(value)
        if bounds.min <= number <= bounds.max and isinstance(number, int) == BY_NAME[name].whole:
            found[name] = number
    order = _order(metadata.get(f"{PREFIX}sequence"))
    return found | ({"samplers": order} if order else {})


def block(metadata: Metadata) -> str:
    """The lines of the `sampling` block of schema 2, indented for a `model` block; empty without
    advice."""
    lines = [f'    {name} = "{value}"' if isinstance(value, str) else f'    bound "{name}" {{ default = {value} }}'
             for name, value in of(metadata).items()]
    return "\n".join(["", "  sampling { # as the file advises", *lines, "  }", ""]) if lines else ""


def _short(value: float) -> float:
    """The shortest number that a file rounds to this one: files have 32 bits."""
    return float(str(np.float32(value)))


def _order(value: object) -> str | None:
    """The samplers of a file's sequence in a policy's words; None for one that is not there, or
    that names a sampler twice or one that is not known."""
    if not isinstance(value, str) or not 0 < len(value) <= 1024:
        return None
    names = [OTHER_NAMES.get(name.strip(), name.strip()) for name in value.split(";") if name.strip()]
    return ";".join(names) if names and len(set(names)) == len(names) and set(names) <= set(SAMPLERS) else None
