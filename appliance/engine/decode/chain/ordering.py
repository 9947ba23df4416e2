"""The order of logits, without leaving any of them on numpy's heap or on the stack."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import Logits

Ids = NDArray[np.int64]


def _float(place: int) -> np.float32:
    """The number at a place in the order of all: 0 at place 0, the least number above it at 1, and
    so on."""
    return np.int32(place if place >= 0 else place ^ 0x7FFFFFFF).view(np.float32)


def _place(number: np.float32) -> int:
    """The place of a number, see `_float`."""
    bits = int(number.view(np.int32))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def highest(logits: Logits, count: int, scratch: Scratch) -> Ids:
    """Ids, ascending, of the `count` highest logits; among equals at the border the lowest ids.

    The logits are cut into `count` blocks. Each has a logit that is at least the least of their
    maxima, so all lower ones are out at once.
    """
    values = scratch.wide.view(np.float32)
    starts = np.arange(count) * logits.size // count
    floor = np.maximum.reduceat(logits, starts, out=values[:count]).min()
    ids = np.flatnonzero(np.greater_equal(logits, floor, out=scratch.mask[:logits.size]))
    some, mask = np.take(logits, ids, out=values[:ids.size], mode="clip"), scratch.mask[:ids.size]
    low, high, size = _place(floor), _place(some.max()) + 1, ids.size
    while size != count and high - low > 1:  # not by numpy's sorting, which leaves values on the stack
        middle = (low + high) // 2
        size = int(np.count_nonzero(np.greater_equal(some, _float(middle), out=mask)))
        low, high = (middle, high) if size >= count else (low, middle)
    border = _float(low)
    above = ids[np.flatnonzero(np.greater(some, border, out=mask))]
    equal = ids[np.flatnonzero(np.equal(some, border, out=mask))][: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def descending(logits: Logits, ids: Ids, scratch: Scratch) -> Ids:
    """`ids`, ascending, in the order of their logits, the best first."""
    some = np.take(logits, ids, out=scratch.wide.view(np.float32)[:ids.size], mode="clip")
    return ids[np.argsort(np.negative(some, out=some), kind="stable")]
