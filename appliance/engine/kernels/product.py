"""Matrix products: rows of quantised weights times quantised activations, one kernel per block format.

    product_F(w, k, act, tokens, y, ldy, accumulate, group0, group1)

multiplies groups group0 <= g < group1 of 16 rows. `w`: the matrix in kernel order, from group 0 on; `k`: columns;
`act`: activations of `tokens` tokens as `quantise_A` writes them (A is `activation_kind(F)`). The result of row r and
token t goes to the float32 at `y + t ldy + 4 r`; with `accumulate` it is added to what is there. Whole groups are
written: each token has room for `padded_rows(rows)` results. Nothing is checked here (`boundary.py` does).

The float operations on one result are the same for every number of tokens, tile and range of groups: a result is a
chain over the blocks of its row in order, `result = finish(block, result)`; cutting the chain only stores it to y.
"""

from __future__ import annotations

from typing import Any

from appliance.engine.kernels.jit import device
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.shapes import (
    ACTIVATIONS,
    GROUP_ROWS,
    SHAPES,
    TILES,
    activation_kind,
    activation_nbytes,
    group_nbytes,
    padded_rows,
)
from appliance.engine.kernels.tile import tile
from appliance.engine.kernels.vector import prefetch_write

__all__ = ["SIGNATURE", "activation_kind", "activation_nbytes", "group_nbytes", "padded_rows"]

SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i4,i8,i8)"

_TOKENS = 192
"""Tokens whose activations stay in a core's second-level cache while all rows pass by; a multiple of a full tile."""

_OUTER_COLUMNS = 2048
"""Columns of those activations."""

_INNER_BYTES = 20480
"""Bytes of weights of two groups that stay in the first-level cache while tokens pass by."""


def _panel(format_name: str, groups: int) -> Any:
    """All tiles of tokens first <= t < last over `groups` groups and a run of blocks that stays in cache."""
    six, four, two, one = (tile(format_name, groups, size) for size in TILES)
    activation = 4 * ACTIVATIONS[SHAPES[format_name].activation].fields

    @device(inline=False)
    def panel(w: int, stride: int, act: int, share: int, y: int, ldy: int, blocks: int, block: int, fresh: int,
              first: int, last: int) -> None:
        # act: first block of token 0; share: bytes of a token; block: number of the first block
        t = first
        while t + 6 <= last:
            for i in range(6, 12):  # the next tile's results: a store that misses the cache is slow
                prefetch_write(y + (t + i) * ldy)
                prefetch_write(y + (t + i) * ldy + 64)
            six(w, stride, act + t * share + block * (6 * activation), y + t * ldy, ldy, blocks, fresh)
            t += 6
        if t + 4 <= last:
            four(w, stride, act + t * share + block * (4 * activation), y + t * ldy, ldy, blocks, fresh)
            t += 4
        if t + 2 <= last:
            two(w, stride, act + t * share + block * (2 * activation), y + t * ldy, ldy, blocks, fresh)
            t += 2
        if t < last:
            one(w, stride, act + t * share + block * activation, y + t * ldy, ldy, blocks, fresh)
    return panel


def _product(format_name: str) -> Any:
    shape = SHAPES[format_name]
    elements, record = shape.elements, shape.record
    activation = 4 * ACTIVATIONS[shape.activation].fields
    inner = max(1, _INNER_BYTES // (2 * record))
    outer = max(inner, _OUTER_COLUMNS // elements // inner * inner)
    single, one_group, two_groups = tile(format_name, 1, 1), _panel(format_name, 1), _panel(format_name, 2)
    row_bytes = 4 * GROUP_ROWS

    def product(w: int, k: int, act: int, tokens: int, y: int, ldy: int, accumulate: int, group0: int,
                group1: int) -> None:
        blocks = k // elements
        stride, share = blocks * record, blocks * activation
        if tokens == 1:
            for g in range(group0, group1):
                single(w + g * stride, stride, act, y + g * row_bytes, ldy, blocks, accumulate == 0)
            return
        for first in range(0, tokens, _TOKENS):
            last = min(first + _TOKENS, tokens)
            for outer_block in range(0, blocks, outer):
                outer_end = min(outer_block + outer, blocks)
                g = group0
                while g < group1:
                    for b in range(outer_block, outer_end, inner):
                        fresh = b == 0 and accumulate == 0
                        count = min(inner, outer_end - b)
                        at = w + g * stride + b * record
                        if g + 1 < group1:
                            two_groups(at, stride, act, share, y + g * row_bytes, ldy, count, b, fresh, first, last)
                        else:
                            one_group(at, stride, act, share, y + g * row_bytes, ldy, count, b, fresh, first, last)
                    g += 2
    return product


for _shape in SHAPES.values():
    if _shape.activation != "f32":
        kernel(f"product_{_shape.suffix}", SIGNATURE)(_product(_shape.name))
