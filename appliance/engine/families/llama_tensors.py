"""Which tensors a model of the llama architecture has: names, shapes, which are optional, which may be quantised.

The check runs over the tensor table before any weight is used, and names every missing, surplus or misshapen
tensor at once. Names: GGUF specification, section "Standardized tensor names".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from appliance.engine.families.llama import Architecture
from appliance.errors import FormatError

EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
OUTPUT_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"  # one divisor per pair of a head (Llama 3)

# The matrices of a block, in the order of their use. Each may have a bias vector of its row count.
QUERY, KEY, VALUE, ATTENTION_OUTPUT = "attn_q", "attn_k", "attn_v", "attn_output"
GATE, UP, DOWN = "ffn_gate", "ffn_up", "ffn_down"
MATRICES = (QUERY, KEY, VALUE, ATTENTION_OUTPUT, GATE, UP, DOWN)
NORMS = ("attn_norm", "ffn_norm")

_SHOWN = 8  # problems listed in one error


class TensorEntry(Protocol):
    """What the check needs of a tensor: its row-major shape."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns) of a matrix, (length,) of a vector."""
        ...


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What of the optional tensors a checked model has."""

    output: str  # name of the output head: OUTPUT, or EMBEDDING when the two are tied
    biases: frozenset[str]


def block(index: int, part: str, kind: str = "weight") -> str:
    """The name of a tensor of block `index`: `blk.3.attn_q.weight`."""
    return f"blk.{index}.{part}.{kind}"


def matrix_shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """(rows, columns) of each matrix of a block, by part name."""
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
    for index in range(a.blocks):
        for part in NORMS:
            yield block(index, part), (a.embedding,)
        for part in MATRICES:
            yield block(index, part), shapes[part]


def optional(architecture: Architecture) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every (name, shape) that the model may have."""
    a = architecture
    yield OUTPUT, (a.vocabulary, a.embedding)
    yield ROPE_FACTORS, (a.head_size // 2,)
    shapes = matrix_shapes(a)
    for index in range(a.blocks):
        for part in MATRICES:
            yield block(index, part, "bias"), (shapes[part][0],)


def check(architecture: Architecture, tensors: Mapping[str, TensorEntry]) -> TensorPlan:
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
                          hint="the file is not a whole model of the plain llama architecture, or is damaged")
    return TensorPlan(output=OUTPUT if OUTPUT in tensors else EMBEDDING,
                      biases=frozenset(name for name in tensors if name.endswith(".bias")))
