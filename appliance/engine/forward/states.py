"""The states of texts in layers that have no keys and values: what earlier positions leave behind,
in as many bytes however many they are.

Each slot has one, of all such layers. It is that of the positions that the slot holds, and cannot
go back to an earlier one: the kernels begin again at position 0 only. A slot without a text has
zeros, as it is wiped when it is given back.
"""

from __future__ import annotations

import ctypes

from appliance.engine.families.architecture import Architecture
from appliance.kernels.runtime.memory import Memory
from appliance.secure import locked

_LINE = 64


def _places(architecture: Architecture) -> tuple[list[int], int]:
    """The place of each layer in a state, and the bytes of all."""
    places, offset = [], 0
    for layer in architecture.every:
        places.append(offset)
        if layer.recurrence is not None:
            offset += -(-4 * layer.recurrence.state_floats // _LINE) * _LINE
    return places, offset


def state_nbytes(architecture: Architecture) -> int:
    """Bytes of the state of a slot; 0 of models whose layers all attend."""
    return _places(architecture)[1]


class States:
    """The states of so many slots. Places and strides are in bytes."""

    def __init__(self, architecture: Architecture, slots: int) -> None:
        self.places, self.stride = _places(architecture)
        """Where each layer is in a state; bytes from one slot's state to the next one's."""
        self._memory: Memory | None = Memory(self.stride * slots, huge=True)
        if self.stride:
            locked.protect(self._memory.address, self._memory.nbytes, "states", own=self._memory.own)
        self.address, self.nbytes = self._memory.address, self._memory.nbytes

    def copy(self, source: int, to: int) -> None:
        """Let a slot have the state of another one."""
        if self._memory is not None:
            ctypes.memmove(self.address + to * self.stride, self.address + source * self.stride, self.stride)

    def wipe(self, slot: int) -> None:
        """Overwrite the state of a slot with zeros."""
        if self._memory is not None:
            ctypes.memset(self.address + slot * self.stride, 0, self.stride)

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None
