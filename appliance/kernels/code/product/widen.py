"""Weights of 16-bit floats as float32 in scratch memory, once for many tokens: the values are the
same, and so is what is made of them. Where they are converted for each patch of tokens, that takes
a sixth of the time.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from appliance.kernels.code.product.formats import Rows
from appliance.kernels.code.product.patch import LANES, READ, SEGMENT
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.vector import calling, i64, operation
from appliance.kernels.layouts.shapes import GROUP_ROWS, SHAPES

FORMATS = ("F16", "BF16")

LEAST = 64
"""Tokens from which on it is worth it."""

STRIDE = SEGMENT * SHAPES["F32"].record
"""Bytes from one group to the next in scratch memory."""

_NBYTES = 2 * STRIDE


@operation(i64)
def scratch(code: Code) -> Val:
    """Scratch memory in the caller's frame, for two groups."""
    return code.frame(_NBYTES)


@operation(types.void, i64)
def clear(code: Code, memory: Val) -> None:
    """Zero scratch memory: it held plaintext."""
    code.clear(memory, _NBYTES)


def unpack(format_name: str) -> Any:
    """The numba function `(w, stride, groups, columns, memory, ahead)`: `columns` (a multiple of
    16, SEGMENT at most) of `groups` groups from `w` on, `stride` bytes apart, in the order of F32.
    Asks for what is `ahead` bytes on."""
    record, wide = SHAPES[format_name].record, SHAPES["F32"].record

    def emit(code: Code, args: list[Val]) -> None:
        w, stride, groups, columns, memory, ahead = args
        lanes = LANES[code.target]

        def pair(group: Val, number: Val) -> None:
            """Two columns, which are one cache line."""
            line, to = w + group * stride + number * (2 * record), memory + group * STRIDE + number * (2 * wide)
            code.prefetch(line + ahead)
            for column in (0, 1):
                for row in range(0, GROUP_ROWS, lanes):
                    rows = Rows(code, line, code.constant(line.type, row), lanes)
                    code.store(to + column * wide + 4 * row, READ[format_name](rows, column * record))

        code.loop(groups, lambda group: code.loop(columns >> 1, lambda number: pair(group, number)))
    return calling(f"unpack_{format_name.lower()}", emit, *[i64] * 6)
