"""Checks inside the `step` kernel, compiled in by a debug build only (`compile_for(name,
debug=True)`).

A list of ranges says what may be touched, each to read, to write or to call. `allowed` judges
places as a pass computes them. A refused address is not touched: the number of the fault goes to
the status word, and the pass goes on without it (all threads must finish their phases). The runner
of such a build makes the list and judges every word of the tables before a pass:
`tests/support/step_tables.py` does. Other builds look at neither.
"""

from __future__ import annotations

from appliance.kernels.compiler.jit import DEBUG, device
from appliance.kernels.compiler.vector import set_i64
from appliance.kernels.layouts.step import FAULTS, Step

BUFFER, WEIGHT, CACHE = (FAULTS.index(name) for name in ("buffer", "weight", "cache"))


@device(inline=False)
def refuse(step: Step, fault: int) -> bool:
    """Record the first fault; always False."""
    if step.STATUS[0] == 0:
        set_i64(step.STATUS, fault)
    return False


@device(inline=False)
def found(step: Step, fault: int, address: int, nbytes: int, access: int) -> bool:
    """Whether one range that may be accessed so holds `nbytes` at `address`; records the fault if
    not."""
    for index in range(step.RANGE_COUNT):
        place = step.RANGES[index]
        offset = address - place.ADDRESS
        if offset >= 0 and 0 <= nbytes <= place.NBYTES - offset and place.ACCESS & access == access:
            return True
    return refuse(step, fault)


@device
def allowed(step: Step, fault: int, address: int, nbytes: int, access: int) -> bool:
    """`found` in a debug build; nothing otherwise."""
    if DEBUG:
        return found(step, fault, address, nbytes, access)
    return True
