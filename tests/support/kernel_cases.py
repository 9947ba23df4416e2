"""Inputs for kernel tests: weights and activations made from a seed, in the memory that kernels expect."""

from __future__ import annotations

from typing import Any

import numpy as np

from appliance.kernels.layouts import shapes
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import layout, quants
from appliance.models.sealed import order as kernel_order


def random_weights(name: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """GGUF rows of random bytes whose scales are small finite numbers, flat uint8."""
    block_format = quants.FORMATS[name]
    random = np.random.default_rng([block_format.ggml_id, rows, columns, seed])
    data = random.integers(0, 256, rows * block_format.row_nbytes(columns), dtype=np.uint8)
    blocks = data.view(quants.layout(block_format))
    for field in ("d", "dmin", "m", "s", "x"):
        if field not in (blocks.dtype.names or ()):
            continue
        values = random.uniform(-0.02, 0.02, len(blocks)).astype(np.float32)
        if name == "BF16":
            blocks[field] = (values.view(np.uint32) >> 16).astype(np.uint16)
        else:
            blocks[field] = values
    if "e" in (blocks.dtype.names or ()):
        blocks["e"] = random.integers(116, 122, len(blocks))
    return data


def largest_weights(name: str, rows: int, columns: int) -> np.ndarray:
    """As `random_weights`, but quants and scales are next to the largest in magnitude, so that sums of a block are too,
    more than float32 holds exactly in Q4_K, Q5_K and Q6_K."""
    data, chosen = random_weights(name, rows, columns), random_weights(name, rows, columns, seed=1)
    full = np.where(chosen < 250, 0xFF, data).astype(np.uint8)
    blocks = full.view(quants.layout(quants.FORMATS[name]))
    source = data.view(quants.layout(quants.FORMATS[name]))
    for field in {"d", "dmin", "m", "s", "x", "e"} & set(blocks.dtype.names or ()):
        blocks[field] = source[field]
    if name.startswith("IQ4"):
        blocks["qs"] = np.where(chosen.view(blocks.dtype)["qs"] < 250, 0, source["qs"])  # -127
    if name == "IQ4_XS":
        blocks["scales_l"], blocks["scales_h"] = 0, 0  # -32
    if name == "Q6_K":
        blocks["scales"] = np.where(source["scales"] > -120, 127, source["scales"])
    return full


def packed(name: str, data: np.ndarray, rows: int, columns: int) -> Memory:
    """GGUF rows in kernel order."""
    block_format = quants.FORMATS[name]
    memory = Memory(layout.interleaved_nbytes(block_format, rows, columns))
    kernel_order.interleave_into(block_format, data, rows, columns, memory.view("u1"))
    return memory


def quantised(kernels: KernelTable, kind: str, x: np.ndarray) -> Memory:
    """Activations (tokens, columns) as the quantiser of a kind writes them."""
    tokens, columns = x.shape
    act = Memory(shapes.activation_nbytes(kind, columns, tokens))
    kernels.function(f"quantise_{kind}")(x.ctypes.data, x.strides[0], columns, act.address, 0, tokens, tokens)
    return act


def fields(kind: str, act: Memory, columns: int, tokens: int) -> np.ndarray:
    """Activations as int32 (tokens, blocks, fields)."""
    shape = shapes.ACTIVATIONS[kind]
    blocks, share = columns // shape.elements, shapes.token_nbytes(kind, columns) // 4
    flat = act.view("<i4")
    if kind == "f32":
        return flat[:tokens * share].reshape(tokens, blocks, 1)
    return flat[:tokens * share].reshape(blocks, tokens, shape.fields).swapaxes(0, 1)


class Product:
    """One matrix, ready to be multiplied."""

    def __init__(self, kernels: KernelTable, name: str, data: np.ndarray, rows: int, columns: int) -> None:
        self.kernels, self.name, self.rows, self.columns = kernels, name, rows, columns
        self.weights = packed(name, data, rows, columns)

    def __call__(self, x: np.ndarray, groups: Any = None, start: np.ndarray | None = None) -> np.ndarray:
        """x (tokens, columns) times the matrix: (tokens, padded rows). `groups`: ranges of groups, one call each;
        `start`: results to add to. Rows that no call writes are NaN."""
        kind, padded = shapes.activation_kind(self.name), shapes.padded_rows(self.rows)
        act = quantised(self.kernels, kind, np.ascontiguousarray(x))
        y = np.full((len(x), padded), np.nan, np.float32) if start is None else start.copy()
        function = self.kernels.function(f"product_{self.name.lower()}")
        for first, last in groups or [(0, padded // 16)]:
            function(self.weights.address, self.columns, act.address, len(x), y.ctypes.data, y.strides[0],
                     int(start is not None), first, last)
        return y
