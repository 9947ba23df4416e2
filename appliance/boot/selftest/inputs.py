"""Inputs of the kernels' known answers: bytes of an extendable hash, shaped into weights and
activations.

The same on every machine and with every numpy: nothing here draws from a generator that could
change.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.runtime.memory import Memory
from appliance.models.file import quants
from appliance.models.sealed.order import interleave

Floats = NDArray[np.float32]

ROWS = 48        # three groups of 16: products take groups in pairs, and one is left over
COLUMNS = 1280   # five blocks of 256, forty of 32: longer than the runs that products cut a row into
TOKENS = (1, 3, 10, 16)  # in tiles of 6, 4, 2 and 1, or of 16
# Of shorter rows: tiles of two groups and of more than 16 tokens, what is left of them, and all
# that they lead to.
MORE_TOKENS = (2, 11, 20, 31, 33, 65)
MORE_FLOATS = (45, 68, 69, 96)  # unquantised weights: many tokens, and what is left of them


def products(name: str) -> list[tuple[int, int]]:
    """(tokens, columns) of a format's products; other sizes run no more of a kernel's code (tested
    where it runs)."""
    elements = quants.FORMATS[name].elements
    short = 2 * elements if elements > 32 else 19 * 32 if elements > 1 else 208  # not whole runs of blocks
    floats = [(tokens, short) for tokens in MORE_FLOATS] if elements == 1 else []
    return [*((tokens, COLUMNS) for tokens in TOKENS), *((tokens, short) for tokens in MORE_TOKENS), *floats]


def stream(label: str, nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes that belong to `label`: SHAKE-128 of it."""
    return np.frombuffer(hashlib.shake_128(label.encode()).digest(nbytes), np.uint8).copy()


def floats(label: str, *shape: int) -> Floats:
    """Multiples of 2^-13 within -4..4, with a run of zeros and an outlier in the first row."""
    count = int(np.prod(shape))
    values = (stream(label, 2 * count).view("<i2").astype(np.float32) * np.float32(2.0 ** -13)).reshape(shape)
    flat = values.reshape(-1)
    if count >= 512:
        flat[256:512] = 0.0
        flat[77] = 300.0
    return values


def weights(name: str, rows: int = ROWS, columns: int = COLUMNS, *, label: str = "", scale: float = 2.0 ** -9) -> bytes:
    """Rows of a block format, as in a GGUF file: every quant is any value, every scale is a small
    number."""
    block_format = quants.FORMATS[name]
    data = stream(f"weights {name} {rows} {columns} {label}", rows * block_format.row_nbytes(columns))
    blocks = data.view(quants.layout(block_format))
    for field in ("d", "dmin", "m", "s", "x"):
        if field in (blocks.dtype.names or ()):
            _finite(blocks, field, scale if field != "x" else scale * 64)
    if "e" in (blocks.dtype.names or ()):  # scales of 2^(e - 128): up to 7 powers of two below the given one
        blocks["e"] = 128 + round(math.log2(scale)) - blocks["e"] % 8
    return data.tobytes()


def _finite(blocks: NDArray[Any], field: str, scale: float) -> None:
    """Replace a float field's random bits by numbers between -scale and scale, of the field's
    precision."""
    kind = blocks.dtype[field]
    raw = np.ascontiguousarray(blocks[field]).view(np.uint8).reshape(len(blocks), -1)
    numbers = (raw[:, 0].astype(np.float32) - np.float32(127.5)) * np.float32(scale / 128)
    if kind == np.dtype("<u2"):  # bfloat16 as its bits
        blocks[field] = (numbers.view("<u4") >> np.uint32(16)).astype("<u2")
    else:
        blocks[field] = numbers.astype(kind)


def packed(name: str, data: bytes, rows: int, columns: int) -> Memory:
    """Rows in kernel order, in memory that a kernel may read."""
    order = interleave(quants.FORMATS[name], data, rows, columns)
    memory = Memory(len(order))
    memory.view(np.uint8)[:] = np.frombuffer(order, np.uint8)
    return memory


def placed(values: NDArray[Any]) -> Memory:
    """An array's bytes in memory that a kernel may read."""
    memory = Memory(values.nbytes)
    memory.view(np.uint8)[:] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return memory
