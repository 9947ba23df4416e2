"""Rotary positions over interleaved pairs: (a, b) becomes (a cos - b sin, a sin + b cos).

The table holds, for each position, the cosine and sine of each pair of a head: (positions,
head_size) floats.
"""

from __future__ import annotations

from llvmlite import ir

from appliance.engine.kernels.compiler.emit import F32, I32, Code, Val
from appliance.engine.kernels.compiler.vector import LANES, f32x16, operation

_EVEN_SIGN = [-(1 << 31), 0] * (LANES // 2)  # xor: changes the sign of the even lanes


@operation(f32x16, f32x16, f32x16)
def rotate(code: Code, x: Val, turns: Val) -> Val:
    """Eight pairs of `x` turned by eight (cosine, sine) pairs."""
    cosine = turns.shuffle([lane & ~1 for lane in range(LANES)])
    sine = turns.shuffle([lane | 1 for lane in range(LANES)])
    crossed = x.shuffle([lane ^ 1 for lane in range(LANES)]) * sine
    signs = Val(code, ir.Constant(ir.VectorType(I32, LANES), _EVEN_SIGN))
    return code.fma(x, cosine, (crossed.bits(I32) ^ signs).bits(F32))
