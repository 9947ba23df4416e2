"""What is left of a row, brought to its front."""

from __future__ import annotations

from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import get_i32, i64, set_i32


@device(inline=False)
def close_up(row: int, alive: int, away: int, length: int) -> int:
    """Bring the living numbers of a row to its front, in order, by steps of 1, 2, 4 and so on; how
    many they are. Source: M. T. Goodrich, "Data-oblivious external-memory algorithms", 2011."""
    gone = 0
    for i in range(length):
        lives = i64(get_i32(alive + 4 * i))
        set_i32(away + 4 * i, gone & -lives)
        gone += 1 - lives
    step = 1
    while step < length:
        for i in range(length - step):
            from_there, stays = i64(get_i32(away + 4 * (i + step))), i64(get_i32(away + 4 * i))
            there, here = i64(get_i32(row + 4 * (i + step))), i64(get_i32(row + 4 * i))
            moves = (from_there & step) != 0
            set_i32(row + 4 * i, pick(moves, there, here))
            set_i32(away + 4 * i, pick(moves, from_there - step, stays))
            set_i32(away + 4 * (i + step), pick(moves, 0, from_there))
        step *= 2
    return length - gone
