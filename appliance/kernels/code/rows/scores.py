"""Which experts a row goes through, and with which weights: scores of logits, the best of them, and
weights of those.

A row's choice depends on its logits only. It always names as many experts as a row uses, each once,
in ascending order, and none that is not there. Other code multiplies with those.
"""

from __future__ import annotations

from appliance.kernels.code.rows.activation import LOG2E, exp2_f32, power_of_two
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    f32,
    f32x16,
    fma_f32,
    get_f32,
    largest_f32,
    load_f32,
    max_f32,
    operation,
    set_f32,
    splat_f32,
    store_f32,
    sum_f32,
)
from appliance.kernels.layouts.step import CHOSEN, SIGMOID, SOFTMAX, Choice, ExpertLayer

LOWEST = -1e30
"""The score of an expert that must not be chosen."""


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
        store_f32(wanted + 64 * i, x if bias == 0 else x + load_f32(bias + 64 * i))


@device(inline=False)
def least_of(x: int, count: int, used: int, held: int) -> float:
    """The smallest of the `used` largest of `count` floats, which are left at `held`, the largest
    first."""
    for i in range(count):
        value, place = get_f32(x + 4 * i), min(i, used)
        if place < used or value > get_f32(held + 4 * (used - 1)):
            place = min(place, used - 1)
            while place > 0 and value > get_f32(held + 4 * (place - 1)):
                set_f32(held + 4 * place, get_f32(held + 4 * (place - 1)))
                place -= 1
            set_f32(held + 4 * place, value)
    return get_f32(held + 4 * (used - 1))


@device
def ties_of(used: int, held: int, least: float) -> int:
    """How many of the `used` largest floats at `held` are no larger than the smallest of them."""
    larger = 0
    while larger < used and get_f32(held + 4 * larger) > least:
        larger += 1
    return used - larger


@device(inline=False)
def keep_groups(experts: ExpertLayer, wanted: int, sums: int, held: int) -> None:
    """Let no expert be chosen but those of the best groups, by the sum of each one's two best."""
    groups, used = experts.GROUPS, experts.GROUPS_USED
    each = experts.COUNT // groups
    for group in range(groups):
        least = least_of(wanted + 4 * each * group, each, 2, held)
        set_f32(sums + 4 * group, get_f32(held) + least)
    least = least_of(sums, groups, used, held)
    ties = ties_of(used, held, least)
    for group in range(groups):
        total = get_f32(sums + 4 * group)
        kept = total > least
        if total == least and ties > 0:
            kept = True
            ties -= 1
        if not kept:
            for i in range(each * group, each * (group + 1)):
                set_f32(wanted + 4 * i, f32(LOWEST))


@device(inline=False)
def weigh(experts: ExpertLayer, scores: int, choices: Choice, weights: int) -> None:
    """The weights of the experts that were chosen."""
    used = experts.USED
    for index in range(used):
        set_f32(weights + 4 * index, get_f32(scores + 4 * choices[index].EXPERT))
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
            weight = weight * get_f32(experts.WEIGHTS + 4 * choices[index].EXPERT)
        set_f32(choices[index].WEIGHT, weight)


@device(inline=False)
def choose(experts: ExpertLayer, logits: int, scratch: int, choices: Choice) -> None:
    """The experts of a row by its logits; ties go to the lowest number. `scratch`: four floats for
    each expert, in whole vectors."""
    count, used = experts.COUNT, experts.USED
    scores, wanted = scratch, scratch + 4 * padded(count)
    held, sums = wanted + 4 * padded(count), wanted + 8 * padded(count)
    score(experts, logits, scores, wanted)
    if experts.GROUPS_USED < experts.GROUPS:
        keep_groups(experts, wanted, sums, held)
    least = least_of(wanted, count, used, held)
    ties, taken = ties_of(used, held, least), 0
    for i in range(count):
        value = get_f32(wanted + 4 * i)
        chosen = value > least
        if value == least and ties > 0:
            chosen = True
            ties -= 1
        if (chosen or count - i <= used - taken) and taken < used:  # the second: of scores that are not numbers
            choices[taken].EXPERT = i
            taken += 1
    weigh(experts, scores, choices, held)
