"""The exponential, and the gate of the feed-forward network (SwiGLU), over 16 lanes."""

from __future__ import annotations

from appliance.engine.kernels.compiler.emit import F32, I32, Code, Val
from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import f32x16, load_f32, operation, store_f32

LOG2E = 1.4426950408889634

# 2^r - 1 = r * (c0 + c1 r + ... + c5 r^5) for |r| <= 1/2; relative error of 2^r at most 2e-9
# (minimax fit), and at most 1.4 half-ULP after rounding. 2^0 is exactly 1.
_POWER = (0.6931471824645996, 0.24022647738456726, 0.055503323674201965,
          0.009618437848985195, 0.0013398875016719103, 0.0001535333867650479)
_LOWEST, _HIGHEST = -126.0, 127.0  # beyond these the result would not be a normal number


def power_of_two(code: Code, x: Val) -> Val:
    """Emit 2^x of each lane; x is clamped to -126..127, and NaN gives some number."""
    x = code.smaller(code.larger(x, x.like(_LOWEST)), x.like(_HIGHEST))
    whole = code.nearest(x)
    rest = x - whole.convert("sitofp", F32)
    total = x.like(_POWER[-1])
    for coefficient in reversed(_POWER[:-1]):
        total = code.fma(total, rest, x.like(coefficient))
    total = code.fma(total, rest, x.like(1.0))
    return (total.bits(I32) + (whole << 23)).bits(F32)


@operation(f32x16, f32x16)
def exp2_f32(code: Code, x: Val) -> Val:
    """2^x of each lane."""
    return power_of_two(code, x)


@operation(f32x16, f32x16, f32x16)
def gated(code: Code, gate: Val, up: Val) -> Val:
    """silu(gate) * up, where silu(x) = x / (1 + e^-x)."""
    return gate / (power_of_two(code, gate * -LOG2E) + 1.0) * up


@device
def swiglu(gate: int, up: int, count: int) -> None:
    """gate[i] = silu(gate[i]) * up[i] for `count` floats, a multiple of 16."""
    for i in range(count // 16):
        store_f32(gate + 64 * i, gated(load_f32(gate + 64 * i), load_f32(up + 64 * i)))


@device
def add_vector(y: int, x: int, count: int) -> None:
    """y[i] += x[i] for `count` floats, a multiple of 16."""
    for i in range(count // 16):
        store_f32(y + 64 * i, load_f32(y + 64 * i) + load_f32(x + 64 * i))

