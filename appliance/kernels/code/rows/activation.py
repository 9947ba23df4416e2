"""The exponential, the activations of the feed-forward network and their gates, over 16 lanes."""

from __future__ import annotations

from appliance.kernels.compiler.emit import F32, I32, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import f32x16, load_f32, operation, splat_f32, store_f32
from appliance.kernels.layouts.step import RELU2, SILU, SWIGLU_OAI

LOG2E = 1.4426950408889634
OAI_SLOPE, OAI_LIMIT = -2.4554669595930156, 7.0  # the first is -1.702 log2(e)
GELU_CUBE, GELU_SLOPE = 0.044715, -2.302208198144325  # the second is -2 log2(e) sqrt(2 / pi)

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


@operation(f32x16, f32x16)
def gelu(code: Code, x: Val) -> Val:
    """x / (1 + e^-2t), where t = sqrt(2 / pi) (x + 0.044715 x³): GELU by the hyperbolic tangent."""
    return x / (power_of_two(code, x * (x * x * GELU_CUBE + 1.0) * GELU_SLOPE) + 1.0)


@operation(f32x16, f32x16)
def silu(code: Code, x: Val) -> Val:
    """x / (1 + e^-x)."""
    return x / (power_of_two(code, x * -LOG2E) + 1.0)


_LOGARITHM = tuple(1.0 / n for n in (15, 13, 11, 9, 7, 5, 3, 1))  # of the hyperbolic tangent's inverse


@operation(f32x16, f32x16)
def softplus(code: Code, x: Val) -> Val:
    """ln(1 + e^x), which far below 0 has the relative error of e^x."""
    magnitude = (x.bits(I32) & 0x7FFFFFFF).bits(F32)
    power = power_of_two(code, magnitude * -LOG2E)
    ratio = power / (power + 2.0)  # ln(1 + power) is twice the inverse hyperbolic tangent of it
    square, series = ratio * ratio, x.like(_LOGARITHM[0])
    for coefficient in _LOGARITHM[1:]:
        series = code.fma(series, square, x.like(coefficient))
    return code.larger(x, x.like(0.0)) + (ratio + ratio) * series


@operation(f32x16, f32x16, f32x16)
def gated_oai(code: Code, gate: Val, up: Val) -> Val:
    """g / (1 + e^-1.702g) * (u + 1), where g is `gate` up to 7, and u is `up` within -7..7. NaN
    stays NaN."""
    gate = code.smaller(gate.like(OAI_LIMIT), gate)
    up = code.larger(up.like(-OAI_LIMIT), code.smaller(up.like(OAI_LIMIT), up))
    return gate / (power_of_two(code, gate * OAI_SLOPE) + 1.0) * (up + 1.0)


@device
def swiglu_oai(gate: int, up: int, count: int) -> None:
    """gate[i] = gated_oai(gate[i], up[i]) for `count` floats, a multiple of 16."""
    for i in range(count // 16):
        store_f32(gate + 64 * i, gated_oai(load_f32(gate + 64 * i), load_f32(up + 64 * i)))


@operation(f32x16, f32x16)
def squared(code: Code, x: Val) -> Val:
    """x² where x is above 0, else 0. NaN stays NaN."""
    x = code.larger(x.like(0.0), x)
    return x * x


@device
def activate(kind: int, gate: int, up: int, count: int) -> None:
    """gate[i] = activation(gate[i]) * up[i] for `count` floats, a multiple of 16; without the
    factor where `up` is 0. SWIGLU_OAI has another factor, and no activation without."""
    if kind == SILU and up != 0:
        swiglu(gate, up, count)
    elif kind == SWIGLU_OAI:
        swiglu_oai(gate, up, count)
    else:
        activate_others(kind, gate, up, count)


@device(inline=False)
def activate_others(kind: int, gate: int, up: int, count: int) -> None:
    """As `activate`, for everything but SwiGLU."""
    for i in range(count // 16):
        x = load_f32(gate + 64 * i)
        x = silu(x) if kind == SILU else squared(x) if kind == RELU2 else gelu(x)
        store_f32(gate + 64 * i, x if up == 0 else x * load_f32(up + 64 * i))


@operation(f32x16, f32x16, f32x16)
def bent(code: Code, x: Val, cap: Val) -> Val:
    """cap * tanh(x / cap)."""
    return cap - (cap + cap) / (power_of_two(code, x / cap * (2 * LOG2E)) + 1.0)


@device
def finish_vector(y: int, count: int, scale: float, cap: float) -> None:
    """y[i] = y[i] * scale, bent to stay within plus and minus `cap` unless that is 0; `count`
    floats, a multiple of 16."""
    factor, most = splat_f32(scale), splat_f32(cap)
    for i in range(count // 16):
        x = load_f32(y + 64 * i) * factor
        store_f32(y + 64 * i, bent(x, most) if cap != 0.0 else x)


@device
def add_vector(y: int, x: int, count: int) -> None:
    """y[i] += x[i] for `count` floats, a multiple of 16."""
    for i in range(count // 16):
        store_f32(y + 64 * i, load_f32(y + 64 * i) + load_f32(x + 64 * i))

