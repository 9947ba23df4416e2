"""The memory of keys and values: one block of memory, cut into slots, one for each running sequence.

Keys and values are binary16 arrays (slots, blocks of positions, blocks of the model, key-value heads, positions of a
block, head_size) with equal strides, so a sequence of n positions touches only the first pages of its slot; the order
inside a head's block is that of `kernels.attention`. Every byte that ever held a key or value is in this class, so it
can be wiped: a slot when its sequence ends, everything in `release`.
"""

from __future__ import annotations

import ctypes

from appliance.engine.architecture import Architecture
from appliance.engine.kernels.attention_layout import BLOCK
from appliance.engine.kernels.memory import Memory
from appliance.errors import EngineError

FORMATS = ("f16",)
_ELEMENT = 2  # bytes of a binary16
MAX_SLOTS = 1024


def slot_nbytes(architecture: Architecture, context: int) -> int:
    """Bytes of keys and values of one slot."""
    return 2 * _ELEMENT * architecture.kv_width * architecture.blocks * -(-context // BLOCK) * BLOCK


class KVCache:
    """Keys and values of `slots` sequences of up to `context` positions. Strides and addresses are in bytes."""

    def __init__(self, architecture: Architecture, slots: int, context: int, kind: str = "f16") -> None:
        if kind not in FORMATS:
            raise EngineError(f"a KV cache of format {kind!r} is not enforced by this version",
                              hint=f"allowed: {', '.join(FORMATS)}")
        if not 1 <= slots <= MAX_SLOTS:
            raise EngineError(f"a KV cache of {slots} slots; allowed: 1..{MAX_SLOTS}")
        if context < 1:
            raise EngineError(f"a KV cache of {context} positions; allowed: 1 or more")
        self.slots, self.context, self.kind = slots, context, kind
        self.head_stride = BLOCK * architecture.head_size * _ELEMENT
        self.layer_stride = self.head_stride * architecture.kv_heads
        self.block_stride = self.layer_stride * architecture.blocks
        self.slot_stride = self.block_stride * -(-context // BLOCK)
        half = self.slot_stride * slots
        self._memory: Memory | None = Memory(2 * half, huge=True)
        self.keys = self._memory.address
        self.values = self.keys + half

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together, touched or not."""
        return 2 * self.slot_stride * self.slots

    def wipe(self, slot: int, positions: int) -> None:
        """Overwrite the first `positions` positions of a slot (rounded up to whole blocks) with zeros."""
        if self._memory is None:
            return
        if not (0 <= slot < self.slots and 0 <= positions <= self.context):
            raise EngineError(f"cannot wipe {positions} positions of slot {slot}")
        used = -(-positions // BLOCK) * self.block_stride
        for base in (self.keys, self.values):
            ctypes.memset(base + slot * self.slot_stride, 0, used)

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None
