"""Checks inside the `step` kernel, compiled in by a debug build only (`compile_for(name, debug=True)`).

What may be touched is a list of ranges, each to read, to write or to call. `allowed` judges places as a pass computes
them. What is refused is not touched: the number of the fault goes to the status word, and the pass goes on without it
(all threads must finish their phases). Whoever runs such a build makes the list and judges every word of the tables
before a pass: `tests/support/step_tables.py` does. Other builds look at neither.
"""

from __future__ import annotations

from appliance.engine.kernels.compiler.jit import DEBUG, device
from appliance.engine.kernels.compiler.vector import get_i64, set_i64
from appliance.engine.kernels.layouts.step import FAULTS, RANGE_NBYTES, S

BUFFER, WEIGHT, CACHE = (FAULTS.index(name) for name in ("buffer", "weight", "cache"))


@device(inline=False)
def refuse(p: int, fault: int) -> bool:
    """Record the first fault; always False."""
    status = get_i64(p + S.STATUS)
    if get_i64(status) == 0:
        set_i64(status, fault)
    return False


@device(inline=False)
def found(p: int, fault: int, address: int, nbytes: int, access: int) -> bool:
    """Whether one range that may be accessed so holds `nbytes` at `address`; records the fault if not."""
    table = get_i64(p + S.RANGES)
    for index in range(get_i64(p + S.RANGE_COUNT)):
        place = table + RANGE_NBYTES * index
        offset = address - get_i64(place)
        if offset >= 0 and 0 <= nbytes <= get_i64(place + 8) - offset and get_i64(place + 16) & access == access:
            return True
    return refuse(p, fault)


@device
def allowed(p: int, fault: int, address: int, nbytes: int, access: int) -> bool:
    """`found` in a debug build; nothing otherwise."""
    if DEBUG:
        return found(p, fault, address, nbytes, access)
    return True
