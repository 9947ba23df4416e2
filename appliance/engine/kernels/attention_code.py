"""What the attention kernels of every cache format emit alike: loop variables, tile shapes, and the softmax."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from appliance.engine.kernels.activation import power_of_two
from appliance.engine.kernels.attention_layout import BLOCK, LANES, POSITION, SUMS
from appliance.engine.kernels.emit import F32, I16, I32, Code, Val

VECTORS = BLOCK // LANES
_HIDDEN = -1e30  # score of a position that a row must not see: far below NOTHING, so that its weight is zero
_NEGLIGIBLE = -100.0  # a weight below 2^-100 of the largest is zero
LARGEST_HALF = 65504.0


class Variable:
    """A value that a loop changes; LLVM keeps it in a register."""

    def __init__(self, code: Code, start: Val) -> None:
        self._code = code
        self._place = cgutils.alloca_once(code.b, start.type)
        self.set(start)

    def get(self) -> Val:
        """The value now."""
        return Val(self._code, self._code.b.load(self._place))

    def set(self, value: Val) -> None:
        """Give it a value."""
        self._code.b.store(value.ir, self._place)


def halves(code: Code, address: Val) -> Val:
    """16 binary16, widened."""
    return code.half_to_float(code.load(address, I16, LANES))


def tile_shape(code: Code) -> tuple[int, int]:
    """Rows and vectors that accumulate in registers together; changes no bit."""
    return (4, 4) if code.target == "avx512vnni" else (2, 2)


def weigh(code: Code, scores: list[Val], state: Val, position: Val, weights: Val) -> Val:
    """Turn a row's scores of a block into weights; returns what the earlier sums shrink by, in every lane."""
    last = code.splat(code.load(state + POSITION, I32) - position.convert("trunc", I32), LANES)
    seen = []
    for index, score in enumerate(scores):
        lanes = Val(code, ir.Constant(ir.VectorType(I32, LANES), list(range(index * LANES, (index + 1) * LANES))))
        seen.append(lanes.compare("<=", last).select(score, score.like(_HIDDEN)))
    highest = seen[0]
    for score in seen[1:]:
        highest = code.larger(highest, score)
    before = code.load(state, F32)
    now = code.larger(before, code.fold(highest, code.larger))
    code.store(state, now)
    peak = code.splat(now, LANES)
    shrink = power_of_two(code, code.splat(before, LANES) - peak)
    sums = code.load(state + SUMS, F32, LANES) * shrink
    for index, score in enumerate(seen):
        below = score - peak
        weight = below.compare(">", _NEGLIGIBLE).select(power_of_two(code, below), below.like(0.0))
        code.store(weights + 4 * LANES * index, weight)
        sums = sums + weight
    code.store(state + SUMS, sums)
    return shrink
