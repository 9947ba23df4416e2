"""Which tensors a model has: shapes, and which are optional, by its architecture and the card of
its family.

The check runs over the tensor table before any weight is used, and names every missing, surplus or
misshapen tensor at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from appliance.engine.families.architecture import Architecture
from appliance.engine.families.names import (
    ATTENTION_OUTPUT,
    DOWN,
    EMBEDDING,
    GATE,
    KEY,
    MATRICES,
    NORMS,
    OUTPUT,
    OUTPUT_NORM,
    QUERY,
    ROPE_FACTORS,
    UP,
    VALUE,
    in_layer,
)
from appliance.engine.families.table import FAMILIES
from appliance.errors import FormatError

_SHOWN = 8  # problems listed in one error


class TensorEntry(Protocol):
    """The part of a tensor that the check needs: its row-major shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix, (length,) of a vector."""
        ...


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The optional tensors that a checked model has."""

    output: str  # name of the output head: OUTPUT, or EMBEDDING when the two are tied
    biases: frozenset[str]


def matrix_shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(rows, columns) of each matrix of a layer, by part name."""
    a = architecture
    return {
        QUERY: (a.query_width, a.embedding), KEY: (a.kv_width, a.embedding), VALUE: (a.kv_width, a.embedding),
        ATTENTION_OUTPUT: (a.embedding, a.query_width),
        GATE: (a.feed_forward, a.embedding), UP: (a.feed_forward, a.embedding),
        DOWN: (a.embedding, a.feed_forward),
    }


def required(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every (name, shape) that the model must have."""
    a = architecture
    yield EMBEDDING, (a.vocabulary, a.embedding)
    yield OUTPUT_NORM, (a.embedding,)
    shapes = matrix_shapes(a)
    for index in range(a.layers):
        for part in NORMS:
            yield in_layer(index, part), (a.embedding,)
        for part in MATRICES:
            yield in_layer(index, part), shapes[part]


def optional(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every (name, shape) that the model may have."""
    a = architecture
    yield OUTPUT, (a.vocabulary, a.embedding)
    yield ROPE_FACTORS, (a.head_size // 2,)
    shapes = matrix_shapes(a)
    for index in range(a.layers):
        for part in MATRICES:
            if part in FAMILIES[a.family].biases:
                yield in_layer(index, part, "bias"), (shapes[part][0],)


def check_tensors(architecture: Architecture, tensors: Mapping[str, TensorEntry]) -> TensorPlan:
    """Compare a tensor table with the architecture; FormatError lists what does not fit."""
    must, may = dict(required(architecture)), dict(optional(architecture))
    problems = [f"{name} is missing" for name in must if name not in tensors]
    for name, tensor in tensors.items():
        shape = must.get(name) or may.get(name)
        if shape is None:
            problems.append(f"{name[:80]!r} is not part of the architecture")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if problems:
        more = len(problems) - _SHOWN
        listed = "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
        raise FormatError(f"the tensors do not fit the metadata: {listed}",
                          hint=f"the file is not a whole model of the plain {architecture.family} architecture, or is "
                               "damaged")
    return TensorPlan(output=OUTPUT if OUTPUT in tensors else EMBEDDING,
                      biases=frozenset(name for name in tensors if name.endswith(".bias")))
