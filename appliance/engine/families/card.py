"""A card: what one model family is, as data alone, so that it can be printed into a specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """One family. Each way in which its models differ from the forward pass of `kernels.code.step`
    is a field here."""

    name: str  # `general.architecture` of its files, and the prefix of its keys
    source: str  # where its arithmetic stands
    models: str  # well-known ones, for a message
    biases: frozenset[str] = frozenset()  # matrices of a layer that may have one
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # keys that change nothing with these values
    hints: Mapping[str, str] = field(default_factory=dict)  # by key: what to do where it has another value
    silent: frozenset[str] = frozenset()  # keys that say nothing about the forward pass
