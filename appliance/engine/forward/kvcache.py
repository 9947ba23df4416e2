"""The memory of keys and values: one piece of memory, cut into slots, one for each running
sequence.

Keys and values are arrays (slots, pages of positions, layers, key-value heads) with equal strides,
so a sequence of n positions touches only the first pages of its slot. Its content, one head's keys
or values of a page of positions, depends on the format of the cache: binary16, or 8 or 4 bits with
a scale for every 32 elements (`kernels.attention_f16`, `kernels.attention_quantised`). Every byte
that ever held a key or value is in this class, so it can be wiped: a slot when its sequence ends,
everything in `release`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from appliance.engine.families.architecture import Architecture
from appliance.engine.kernels.layouts.attention import CACHE_FORMATS, PAGE, head_nbytes
from appliance.engine.kernels.runtime.memory import Memory
from appliance.errors import EngineError
from appliance.secure import locked

MAX_SLOTS = 1024


def slot_nbytes(architecture: Architecture, context: int, kind: str = "f16") -> int:
    """Bytes of keys and values of one slot; EngineError for a format that there is not."""
    if kind not in CACHE_FORMATS:
        raise EngineError(f"there is no KV cache of format {kind!r}", hint=f"allowed: {', '.join(CACHE_FORMATS)}")
    return 2 * -(-context // PAGE) * _places(architecture, kind)[1]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a layer in a page of the cache, in bytes."""

    offset: int
    head_stride: int


def _places(architecture: Architecture, kind: str) -> tuple[list[Place], int]:
    """The place of each layer, and the bytes of a page."""
    found, offset = [], 0
    for layer in architecture.every:
        found.append(Place(offset, head_nbytes(kind, layer.head_size)))
        offset += layer.kv_heads * found[-1].head_stride
    return found, offset


class KVCache:
    """Keys and values of `slots` sequences of up to `context` positions. Strides and addresses are
    in bytes."""

    def __init__(self, architecture: Architecture, slots: int, context: int, kind: str = "f16") -> None:
        if not 1 <= slots <= MAX_SLOTS:
            raise EngineError(f"a KV cache of {slots} slots; allowed: 1..{MAX_SLOTS}")
        if context < 1:
            raise EngineError(f"a KV cache of {context} positions; allowed: 1 or more")
        self.slots, self.context, self.kind = slots, context, kind
        self.slot_stride = slot_nbytes(architecture, context, kind) // 2
        self.layers, self.page_stride = _places(architecture, kind)
        half = self.slot_stride * slots
        self._memory: Memory | None = Memory(2 * half, huge=True)
        locked.protect(self._memory.address, self._memory.nbytes, "keys and values", own=self._memory.own)
        self.keys = self._memory.address
        self.values = self.keys + half

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together, touched or not."""
        return 2 * self.slot_stride * self.slots

    def wipe(self, slot: int, positions: int) -> None:
        """Overwrite the first `positions` positions of a slot (rounded up to whole pages) with
        zeros."""
        if self._memory is None:
            return
        if not (0 <= slot < self.slots and 0 <= positions <= self.context):
            raise EngineError(f"cannot wipe {positions} positions of slot {slot}")
        used = -(-positions // PAGE) * self.page_stride
        for base in (self.keys, self.values):
            ctypes.memset(base + slot * self.slot_stride, 0, used)

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None
