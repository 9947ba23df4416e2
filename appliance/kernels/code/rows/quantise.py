"""Quantisation of activations, as ggml's x86 build does it, into the order of `shapes.py`.

    quantise_A(x, ldx, k, act, first, last, tokens)

quantises tokens first <= t < last of `tokens`; `x`: float32 of token 0, the next token `ldx` bytes
on; `k` columns; `act`: the activations of all `tokens` tokens (`activation_nbytes(A, k, tokens)`).
Threads may share the tokens.

- q8_32 (ggml Q8_0 and Q8_1, `ggml-cpu/arch/x86/quants.c`): d = amax / 127 rounded to binary16.
  Values are multiplied by 127 / amax in float32 and rounded to nearest, ties to even; the sum is
  binary16(d * sum) with the unrounded d.
- q8_256 (ggml Q8_K, `ggml-quants.c`): values are multiplied by -127 / m, where m is the first value
  of largest magnitude, sign included; the scale is 1 / (-127 / m) in float32.

A block of zeros has scale 0. NaN or infinity in a block makes its products NaN or infinite; bytes
stay within -127..127, so integer sums cannot overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from appliance.kernels.compiler.emit import I8, I32, I64, Code, Val, vector
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    get_f32,
    i32x16,
    i64,
    largest_f32,
    largest_magnitude,
    load_f32,
    magnitude_i32,
    max_f32,
    max_i32,
    min_f32,
    min_i32,
    nearest_i32,
    operation,
    round_f16,
    set_f32,
    set_i32,
    smallest_f32,
    splat_f32,
    splat_i32,
    store_f32,
    sum_i32,
)
from appliance.kernels.layouts import shapes

SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i8)"

_ZERO, _ONE, _LIMIT = np.float32(0.0), np.float32(1.0), np.float32(127.0)


@operation(types.void, i64, i32x16)
def store_bytes(code: Code, address: Val, values: Val) -> None:
    """The low bytes of 16 lanes, one after the other."""
    code.store(address, values.convert("trunc", I8))


@operation(types.void, i64, i64, i32x16)
def store_fields(code: Code, address: Val, apart: Val, values: Val) -> None:
    """The low bytes of 16 lanes as four 4-byte fields, `apart` bytes apart."""
    fields = values.convert("trunc", I8).bits(I32)
    for index in range(4):
        code.store(address + apart * index, fields.lane(index))


@device
def quantised(values: Any, inverse: Any) -> Any:
    """16 values times `inverse`, rounded, within -127..127."""
    return max_i32(min_i32(nearest_i32(values * inverse), splat_i32(127)), splat_i32(-127))


@device
def store_quantised(low: Any, high: Any, to: int) -> Any:
    """Quantise 32 values to bytes at `to`; their largest magnitude, and the sum of the bytes."""
    amax = largest_magnitude(max_i32(magnitude_i32(low), magnitude_i32(high)))
    inverse = splat_f32(_LIMIT / amax if amax > _ZERO else _ZERO)
    first, second = quantised(low, inverse), quantised(high, inverse)
    store_bytes(to, first)
    store_bytes(to + 16, second)
    return amax, sum_i32(first + second)


@device
def quantise_32(x: int, at: int) -> None:
    """One block of 32 for one token; `at`: field 0 of the token."""
    amax, total = store_quantised(load_f32(x), load_f32(x + 64), at)
    scale = amax / _LIMIT
    set_i32(at + 4 * shapes.Q32_MINUS8, -8 * total)
    set_i32(at + 4 * shapes.Q32_MINUS16, -16 * total)
    set_i32(at + 4 * shapes.Q32_MINUS128, -128 * total)
    set_f32(at + 4 * shapes.Q32_SCALE, round_f16(scale))
    set_f32(at + 4 * shapes.Q32_SUM, round_f16(scale * np.float32(total)))


@device
def extreme(x: int) -> Any:
    """The first of 256 values with the largest magnitude; 0 for zeros, NaN if one of them is."""
    high, low, magnitudes = splat_f32(_ZERO), splat_f32(_ZERO), splat_i32(0)
    for i in range(16):
        value = load_f32(x + 64 * i)
        high, low = max_f32(value, high), min_f32(value, low)
        magnitudes = max_i32(magnitudes, magnitude_i32(value))
    most, largest, smallest = largest_magnitude(magnitudes), largest_f32(high), smallest_f32(low)
    if math.isnan(most):
        return most
    if largest > -smallest:
        return largest
    if largest < -smallest:
        return smallest
    for i in range(256):
        value = get_f32(x + 4 * i)
        if abs(value) == largest:
            return value
    return _ZERO


def _pairs(values: Val) -> Val:
    """Sums of neighbouring lanes (int32)."""
    pairs = values.bits(I64)
    return (pairs + (pairs >> 32)).convert("trunc", I32)


@operation(types.void, i64)
def add_sums(code: Code, at: Val) -> None:
    """All sums of a block from its values."""
    ones = code.constant(vector(I32, 16), 0x01010101)
    for part in range(4):
        sums = _pairs(_pairs(code.dot7(ones.like(0), ones, code.load(at + 64 * part, I32, 16))))
        code.store(at + 4 * (shapes.Q256_MINUS32 + 4 * part), sums * -32)
    sums = code.load(at + 4 * shapes.Q256_MINUS32, I32, 16)
    sums = sums.like(0) - sums.sar(5)
    for totals, high, low in ((sums, shapes.Q256_HIGH16, shapes.Q256_LOW16),
                              (_pairs(sums), shapes.Q256_HIGH32, shapes.Q256_LOW32)):
        code.store(at + 4 * high, (totals >> 7).convert("trunc", I8))
        code.store(at + 4 * low, (totals & 127).convert("trunc", I8))


@device
def quantise_256(x: int, at: int) -> None:
    """One block of 256 for one token; `at`: field 0 of the token."""
    most = extreme(x)
    inverse = -_LIMIT / most if most != _ZERO else _ZERO
    for j in range(16):
        store_bytes(at + 16 * j, quantised(load_f32(x + 64 * j), splat_f32(inverse)))
    add_sums(at)
    set_f32(at + 4 * shapes.Q256_SCALE, _ONE / inverse if most != _ZERO else _ZERO)


def _quantise(block: Callable[..., None], elements: int, fields: int) -> Any:
    """The kernel of one kind from the device function that does a block."""
    def quantise(x: int, ldx: int, k: int, act: int, first: int, last: int, tokens: int) -> None:
        for t in range(first, last):
            for b in range(k // elements):
                block(x + t * ldx + b * (4 * elements), act + (b * tokens + t) * (4 * fields))
    return quantise


@kernel("quantise_f32", SIGNATURE)
def copy(x: int, ldx: int, k: int, act: int, first: int, last: int, tokens: int) -> None:
    """No quantisation: a multiple of FLOAT_COLUMNS columns."""
    for t in range(first, last):
        for column in range(0, k, shapes.FLOAT_COLUMNS):
            store_f32(act + 4 * (t * k + column), load_f32(x + t * ldx + 4 * column))


kernel("quantise_q8_32", SIGNATURE)(_quantise(quantise_32, 32, shapes.Q32_FIELDS))
kernel("quantise_q8_256", SIGNATURE)(_quantise(quantise_256, 256, shapes.Q256_FIELDS))
