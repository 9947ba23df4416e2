"""How far answers stray where keys and values have few bits: what was measured, by family.

`docs/concepts/accuracy.md` says how. Models of a family share what makes it so: the keys of Qwen2
and its kin have a few elements that are far larger than all others, which 4 bits do not tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from appliance.models.file.metadata import Metadata

BAD = 0.5  # nats: above it a third of the best tokens are others
FIX = 'kv_cache = "q8q4" (schema 2), "q8" or "f16"'


@dataclass(frozen=True, slots=True)
class Measured:
    """The divergence of one model from its own answers with 16 bits."""

    model: str
    divergence: float  # mean Kullback-Leibler divergence of distributions, in nats
    same: int  # of 100 best tokens, those that stay the best


MEASURED: Mapping[tuple[str, str], Measured] = MappingProxyType({
    ("llama", "q8"): Measured("SmolLM2 135M Instruct", 0.0058, 94),
    ("llama", "q8q4"): Measured("SmolLM2 135M Instruct", 0.0356, 89),
    ("llama", "q4"): Measured("SmolLM2 135M Instruct", 0.158, 81),
    ("gemma3", "q8"): Measured("Gemma 3 270M", 0.0054, 98),
    ("gemma3", "q8q4"): Measured("Gemma 3 270M", 0.0122, 95),
    ("gemma3", "q4"): Measured("Gemma 3 270M", 0.0711, 91),
    ("qwen2", "q8"): Measured("Qwen2.5-Coder 0.5B Instruct", 0.0827, 95),
    ("qwen2", "q8q4"): Measured("Qwen2.5-Coder 0.5B Instruct", 0.083, 95),
    ("qwen2", "q4"): Measured("Qwen2.5-Coder 1.5B Instruct", 3.05, 36),
})
"""By family and format, the worst model of each."""
_KIN: Mapping[str, str] = MappingProxyType({"qwen2vl": "qwen2"})  # families with the weights of another


def warning(metadata: Metadata, kv_cache: str) -> str | None:
    """Why a model's answers suffer from the format of its keys and values; None where that is not
    known, or little."""
    family = metadata.get("general.architecture")
    found = MEASURED.get((_KIN.get(str(family), str(family)), kv_cache))
    if found is None or found.divergence < BAD:
        return None
    return (f'kv_cache = "{kv_cache}" changes the answers of {family} models: with {found.model}, {found.same} of 100 '
            f"best tokens stay the same (divergence {found.divergence:.2g})")
