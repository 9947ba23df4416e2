"""Sizes that kernels and their callers agree on: records of weights, quantised activations,
patches.

Plain Python, no numba: the boundary checks use it in processes that only run prebuilt kernels. The
order of a weight record is fixed by `appliance.models.file.layout`; this module only needs its
size.

Quantised activations lie by blocks: a block's 4-byte fields of one token after those of another,
then the next block; a run of tokens is so a run of memory, wherever it begins. Those of the kind
f32 lie by tokens, as they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GROUP_ROWS = 16
"""Rows of weights that are interleaved; a product writes whole groups, so rows of y have room for padding."""

PATCHES = (6, 4, 2, 1)
"""Tokens of the patches that kernels are emitted for, largest first."""


@dataclass(frozen=True)
class Activation:
    """A kind of activations: `elements` columns in a block of `fields` 4-byte fields."""

    name: str
    elements: int
    fields: int

    @property
    def nbytes(self) -> int:
        """Of a block."""
        return 4 * self.fields


# Blocks are whole cache lines, so that a matrix register reads each of its rows from one; their
# last 3 fields are free. Field numbers of a q8_32 block (ggml's Q8_0 and Q8_1 in one): 32 int8,
# multiples of their sum, scale, scaled sum.
Q32_QUANTS, Q32_MINUS8, Q32_MINUS16, Q32_MINUS128, Q32_SCALE, Q32_SUM, Q32_FIELDS = 0, 8, 9, 10, 11, 12, 16

# Field numbers of a q8_256 block (ggml's Q8_K). A sum s of int8 is kept as two bytes, s = 128 high
# + low with 0 <= low < 128, four sums to a field, so that minima are products of bytes too.
Q256_QUANTS = 0  # 256 int8
Q256_MINUS32 = 64  # -32 times the sum of each 16
Q256_HIGH32, Q256_LOW32 = 80, 82  # 8 sums of 32
Q256_HIGH16, Q256_LOW16 = 84, 88  # 16 sums of 16
Q256_SCALE, Q256_FIELDS = 92, 96

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType({
    "q8_32": Activation("q8_32", 32, Q32_FIELDS),
    "q8_256": Activation("q8_256", 256, Q256_FIELDS),
    "f32": Activation("f32", 1, 1),
})


@dataclass(frozen=True)
class Shape:
    """A weight format: `elements` columns in a GGUF block of `nbytes` bytes, multiplied with
    `activation`."""

    name: str
    elements: int
    nbytes: int
    activation: str

    @property
    def record(self) -> int:
        """Bytes of one block of 16 rows."""
        return GROUP_ROWS * self.nbytes

    @property
    def suffix(self) -> str:
        """Of kernel names, as in `product_q4_k`."""
        return self.name.lower()


SHAPES: Mapping[str, Shape] = MappingProxyType({shape.name: shape for shape in (
    Shape("F32", 1, 4, "f32"), Shape("F16", 1, 2, "f32"), Shape("BF16", 1, 2, "f32"),
    Shape("Q4_0", 32, 18, "q8_32"), Shape("Q4_1", 32, 20, "q8_32"), Shape("Q5_0", 32, 22, "q8_32"),
    Shape("Q5_1", 32, 24, "q8_32"), Shape("Q8_0", 32, 34, "q8_32"), Shape("Q8_1", 32, 36, "q8_32"),
    Shape("Q2_K", 256, 84, "q8_256"), Shape("Q3_K", 256, 110, "q8_256"), Shape("Q4_K", 256, 144, "q8_256"),
    Shape("Q5_K", 256, 176, "q8_256"), Shape("Q6_K", 256, 210, "q8_256"),
    Shape("IQ4_NL", 32, 18, "q8_32"), Shape("MXFP4", 32, 17, "q8_32"), Shape("IQ4_XS", 256, 136, "q8_256"),
)})

FLOAT_COLUMNS = 16
"""Rows of F32, F16 and BF16 weights have a multiple of this many columns."""


def activation_kind(format_name: str) -> str:
    """The kind of activations that weights of a format are multiplied with."""
    return SHAPES[format_name].activation


def column_multiple(format_name: str) -> int:
    """The number whose multiple the number of columns must be."""
    return max(SHAPES[format_name].elements, FLOAT_COLUMNS)


def token_nbytes(kind: str, k: int) -> int:
    """Bytes of one token's `k` activations; ValueError unless `k` is whole blocks."""
    activation = ACTIVATIONS[kind]
    if k <= 0 or k % activation.elements:
        raise ValueError(f"{k} columns are not whole blocks of {activation.elements}")
    return k // activation.elements * activation.nbytes


def activation_nbytes(kind: str, k: int, tokens: int) -> int:
    """Bytes of the activations of `tokens` tokens."""
    return tokens * token_nbytes(kind, k)


def group_nbytes(format_name: str, k: int) -> int:
    """Bytes of a group of 16 rows of `k` weights; ValueError unless `k` is allowed."""
    if k <= 0 or k % column_multiple(format_name):
        raise ValueError(f"{format_name} rows have {k} columns, not a multiple of {column_multiple(format_name)}")
    return k // SHAPES[format_name].elements * SHAPES[format_name].record


def padded_rows(rows: int) -> int:
    """Rows that a product writes for `rows` rows of weights."""
    return -(-rows // GROUP_ROWS) * GROUP_ROWS
