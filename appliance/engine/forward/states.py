"""The states of texts in layers that have no keys and values: what earlier positions leave behind,
in as many bytes however many they are.

Each slot has one, of all such layers. It is that of the positions that the slot holds, and cannot
go back to an earlier one: the kernels begin again at position 0 only. A slot without a text has
zeros, as it is wiped when it is given back.
"""

from __future__ import annotations

import ctypes

from appliance.families.architecture import Architecture
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


def division(nbytes: int, page: int, state: int, slots: int) -> tuple[int, int]:
    """How many pages and states of earlier texts fit into so many bytes: no more states than pages,
    in half of the bytes at most. Where states are kept, each slot has a second one: see `mark`."""
    if not state:
        return nbytes // page, 0
    nbytes = max(nbytes - slots * state, 0)
    states = min(nbytes // 2 // state, nbytes // (page + state))
    return (nbytes - states * state) // page, states


class States:
    """The states of so many slots, and of earlier texts. Places and strides are in bytes."""

    def __init__(self, architecture: Architecture, slots: int, kept: int = 0) -> None:
        """`kept`: states of earlier texts that there is room for."""
        self.places, self.stride = _places(architecture)
        """Where each layer is in a state; bytes from one slot's state to the next one's."""
        self.rooms = range(2 * slots, 2 * slots + kept) if kept else range(0)
        """The numbers of states of earlier texts, behind those of slots."""
        self._slots, self._marks = slots, dict[int, int]()
        self._memory: Memory | None = Memory(self.stride * (self.rooms.stop or slots), huge=True)
        if self.stride:
            locked.protect(self._memory.address, self._memory.nbytes, "states", own=self._memory.own)
        self.address, self.nbytes = self._memory.address, self._memory.nbytes

    def copy(self, source: int, to: int) -> None:
        """Let a slot have the state of another one."""
        if self._memory is not None:
            ctypes.memmove(self.address + to * self.stride, self.address + source * self.stride, self.stride)

    def mark(self, slot: int, positions: int) -> None:
        """Remember the state of a slot as that of so many positions, where states are kept."""
        if self.rooms:
            self._marks[slot] = positions
            self.copy(slot, self.mark_of(slot))

    def mark_of(self, slot: int) -> int:
        """The number of the state that a slot's mark is in."""
        return self._slots + slot

    def marked(self, slot: int) -> int:
        """The positions of a slot's mark; 0 without one."""
        return self._marks.get(slot, 0)

    def wipe(self, slot: int) -> None:
        """Overwrite a state with zeros, and a slot's mark."""
        for each in (slot, *([self.mark_of(slot)] if self._marks.pop(slot, 0) else [])):
            if self._memory is not None:
                ctypes.memset(self.address + each * self.stride, 0, self.stride)

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None
