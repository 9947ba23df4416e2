"""Which experts a row goes through, and with which weights: scores of logits, the best of them, and
weights of those.

A row's choice depends on its logits only. It always names as many experts as a row uses, each once,
in ascending order, and none that is not there. Other code multiplies with those. The
same memory is read and written in the same order for all logits.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir

from appliance.kernels.code.rows.activation import LOG2E, exp2_f32, power_of_two
from appliance.kernels.compiler.emit import F32, I32, Code, Val, vector
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    f32,
    f32x16,
    fma_f32,
    get_f32,
    i32x16,
    i64,
    largest_f32,
    load_f32,
    max_f32,
    min_f32,
    operation,
    set_f32,
    smallest_f32,
    splat_f32,
    splat_i32,
    store_f32,
    store_i32,
    sum_f32,
)
from appliance.kernels.layouts.step import CHOSEN, SIGMOID, SOFTMAX, Choice, ExpertLayer

LOWEST = -1e30
"""The score of an expert that must not be chosen."""

LEAST = -3e38
"""A score that is not a number is taken for this."""

TAKEN = float("-inf")
"""The score of an expert that is chosen already."""

NOWHERE = 1e9
"""Larger than the number of any expert."""


@operation(f32x16, f32x16)
def sigmoid(code: Code, x: Val) -> Val:
    """1 / (1 + e^-x) of each lane."""
    return x.like(1.0) / (power_of_two(code, x * -LOG2E) + 1.0)


@device
def sigmoid_of(x: float) -> float:
    """1 / (1 + e^-x)."""
    return largest_f32(sigmoid(splat_f32(x)))


@device
def dot(x: int, y: int, size: int) -> float:
    """The sum of x[i] y[i] for `size` floats, a multiple of 16, by the chains of a norm."""
    even, odd = splat_f32(f32(0.0)), splat_f32(f32(0.0))
    for i in range(size // 32):
        even = fma_f32(load_f32(x + 128 * i), load_f32(y + 128 * i), even)
        odd = fma_f32(load_f32(x + 128 * i + 64), load_f32(y + 128 * i + 64), odd)
    if size % 32 != 0:
        even = fma_f32(load_f32(x + 4 * size - 64), load_f32(y + 4 * size - 64), even)
    return sum_f32(even + odd)


@device
def scale_vector(x: int, scale: float, size: int) -> None:
    """x[i] *= scale for `size` floats, a multiple of 16."""
    factor = splat_f32(scale)
    for i in range(size // 16):
        store_f32(x + 64 * i, load_f32(x + 64 * i) * factor)


@device
def padded(count: int) -> int:
    """Floats of whole vectors."""
    return (count + 15) // 16 * 16


@device
def fill(x: int, count: int, value: float) -> None:
    """Set the floats from `count` on to the end of its vector."""
    for i in range(count, padded(count)):
        set_f32(x + 4 * i, value)


@device
def powers(x: int, count: int) -> None:
    """x[i] = e^(x[i] - the largest of x); zeros to the end of the last vector."""
    fill(x, count, f32(LOWEST))
    largest = load_f32(x)
    for i in range(1, padded(count) // 16):
        largest = max_f32(largest, load_f32(x + 64 * i))
    most = splat_f32(largest_f32(largest))
    for i in range(padded(count) // 16):
        store_f32(x + 64 * i, exp2_f32((load_f32(x + 64 * i) - most) * splat_f32(f32(LOG2E))))
    fill(x, count, f32(0.0))


@device
def softmax(x: int, count: int) -> None:
    """x[i] = e^x[i] / the sum of these."""
    powers(x, count)
    lanes = splat_f32(f32(0.0))
    for i in range(padded(count) // 16):
        lanes = lanes + load_f32(x + 64 * i)
    total = splat_f32(sum_f32(lanes))
    for i in range(padded(count) // 16):
        store_f32(x + 64 * i, load_f32(x + 64 * i) / total)


@device(inline=False)
def score(experts: ExpertLayer, logits: int, scores: int, wanted: int) -> None:
    """The score of each expert, and what it is chosen by."""
    count, bias = experts.COUNT, experts.BIAS
    for i in range(padded(count) // 16):
        x = load_f32(logits + 64 * i)
        store_f32(scores + 64 * i, sigmoid(x) if experts.SCORE == SIGMOID else x)
    if experts.SCORE == SOFTMAX:
        softmax(scores, count)
    for i in range(padded(count) // 16):
        x = load_f32(scores + 64 * i)
        x = x if bias == 0 else x + load_f32(bias + 64 * i)
        store_f32(wanted + 64 * i, max_f32(x, splat_f32(f32(LEAST))))


@operation(f32x16, i64)
def numbers_from(code: Code, first: Val) -> Val:
    """The numbers first, first + 1, ... of 16 lanes."""
    lanes = Val(code, ir.Constant(vector(F32, 16), [float(lane) for lane in range(16)]))
    return code.splat(first.convert("sitofp", F32), 16) + lanes


@operation(i32x16, f32x16, f32)
def where(code: Code, x: Val, value: Val) -> Val:
    """All bits of the lanes that are equal to a value, and none of the others."""
    return x.compare("==", code.splat(value, 16)).convert("sext", I32)


@operation(f32x16, i32x16, f32x16, f32x16)
def blend(code: Code, mask: Val, yes: Val, no: Val) -> Val:
    """`yes` in the lanes of a mask and `no` in others, by bits: both are there before."""
    return (no.bits(I32) ^ ((no.bits(I32) ^ yes.bits(I32)) & mask)).bits(F32)


@operation(f32, i32x16, f32x16, f32)
def joined(code: Code, mask: Val, x: Val, other: Val) -> Val:
    """The bits of a float and of the lanes of a mask, together: one of these at most is not 0."""
    return (code.fold(x.bits(I32) & mask, operator.or_) | other.bits(I32)).bits(F32)


@device
def value_at(x: int, count: int, number: float) -> Any:
    """x[number] of `count` floats. All of them are read."""
    found = f32(0.0)
    for i in range(padded(count) // 16):
        found = joined(where(numbers_from(16 * i), number), load_f32(x + 64 * i), found)
    return found


@device
def put_at(x: int, count: int, number: float, value: float) -> None:
    """x[number] = value. All `count` floats are written."""
    for i in range(padded(count) // 16):
        store_f32(x + 64 * i, blend(where(numbers_from(16 * i), number), splat_f32(value), load_f32(x + 64 * i)))


@device
def first_largest(x: int, count: int) -> float:
    """The number of the largest of `count` floats; of equal ones, the lowest."""
    largest, number = load_f32(x), splat_f32(f32(NOWHERE))
    for i in range(1, padded(count) // 16):
        largest = max_f32(largest, load_f32(x + 64 * i))
    most = largest_f32(largest)
    for i in range(padded(count) // 16):
        number = min_f32(number, blend(where(load_f32(x + 64 * i), most), numbers_from(16 * i), number))
    return smallest_f32(number)


@device(inline=False)
def take_best(x: int, count: int, used: int, numbers: int) -> None:
    """Put the numbers of the `used` largest of `count` floats to `numbers`, as floats, ascending.
    The largest themselves become TAKEN."""
    fill(x, count, f32(TAKEN))
    for index in range(used):
        number = first_largest(x, count)
        put_at(x, count, number, f32(TAKEN))
        set_f32(numbers + 4 * index, number)
    for last in range(used - 1, 0, -1):
        for i in range(last):
            left, right = get_f32(numbers + 4 * i), get_f32(numbers + 4 * i + 4)
            set_f32(numbers + 4 * i, left if left < right else right)
            set_f32(numbers + 4 * i + 4, right if left < right else left)


@device
def two_best(x: int, count: int) -> Any:
    """The sum of the two largest of `count` floats."""
    first, second = f32(LEAST), f32(LEAST)
    for i in range(count):
        value = get_f32(x + 4 * i)
        lower = value if value < first else first
        second = lower if lower > second else second
        first = value if value > first else first
    return first + second


@device(inline=False)
def keep_groups(experts: ExpertLayer, wanted: int, sums: int, numbers: int) -> None:
    """Let no expert be chosen but those of the best groups, by the sum of each one's two best."""
    groups = experts.GROUPS
    each = experts.COUNT // groups
    for group in range(groups):
        total = two_best(wanted + 4 * each * group, each)
        set_f32(sums + 4 * group, total if total > f32(LEAST) else f32(LEAST))
    take_best(sums, groups, experts.GROUPS_USED, numbers)
    for group in range(groups):
        kept = get_f32(sums + 4 * group) == f32(TAKEN)
        for i in range(each * group, each * (group + 1)):
            value = get_f32(wanted + 4 * i)
            set_f32(wanted + 4 * i, value if kept else f32(LOWEST))


@device(inline=False)
def weigh(experts: ExpertLayer, scores: int, numbers: int, weights: int) -> None:
    """The weights of the experts with these numbers."""
    count, used = experts.COUNT, experts.USED
    for index in range(used):
        set_f32(weights + 4 * index, value_at(scores, count, get_f32(numbers + 4 * index)))
    if experts.SCORE == CHOSEN:
        powers(weights, used)
    total = get_f32(weights)
    for index in range(1, used):
        total = total + get_f32(weights + 4 * index)
    total = total + experts.ADDED
    total = experts.LEAST if total < experts.LEAST else total
    for index in range(used):
        weight = get_f32(weights + 4 * index)
        if experts.LEAST != f32(0.0):
            weight = weight / total
        weight = weight * experts.SCALE
        if experts.WEIGHTS != 0:
            weight = weight * value_at(experts.WEIGHTS, count, get_f32(numbers + 4 * index))
        set_f32(weights + 4 * index, weight)


@device(inline=False)
def choose(experts: ExpertLayer, logits: int, scratch: int, choices: Choice) -> None:
    """The experts of a row by its logits; ties go to the lowest number. `scratch`: four floats for
    each expert, in whole vectors."""
    count = experts.COUNT
    scores, wanted = scratch, scratch + 4 * padded(count)
    numbers, weights = wanted + 4 * padded(count), wanted + 8 * padded(count)
    score(experts, logits, scores, wanted)
    if experts.GROUPS_USED < experts.GROUPS:
        keep_groups(experts, wanted, weights, numbers)
    take_best(wanted, count, experts.USED, numbers)
    weigh(experts, scores, numbers, weights)
    for index in range(experts.USED):
        choices[index].EXPERT = int(get_f32(numbers + 4 * index))
        set_f32(choices[index].WEIGHT, get_f32(weights + 4 * index))


@device(inline=False)
def spread(experts: ExpertLayer, scratch: int, choices: Choice) -> None:
    """Put the weight of each expert where `choose` had scores, and behind all weights a mask of the
    chosen experts. Weights of others are 0."""
    count = padded(experts.COUNT)
    weights, masks = scratch, scratch + 4 * count
    for i in range(count // 16):
        numbers, weight, mask = numbers_from(16 * i), splat_f32(f32(0.0)), splat_i32(0)
        for index in range(experts.USED):
            own = where(numbers, f32(choices[index].EXPERT))
            weight = blend(own, splat_f32(get_f32(choices[index].WEIGHT)), weight)
            mask = mask | own
        store_f32(weights + 64 * i, weight)
        store_i32(masks + 64 * i, mask)
