"""The states of texts in layers that have no keys and values: what earlier positions leave behind,
in as many bytes however many they are.

Each slot has one, of all such layers. It is that of the positions that the slot holds, and cannot
go back to an earlier one: the kernels begin again at position 0 only. A slot without a text has
zeros, as it is wiped when it is given back.

Guesses are committed late. They leave the state as it was, and what they would do to it in a log of
their slot. The next pass takes the right ones from there: the same bits as if a wrong guess had
never been read. Few slots have a log at a time.

States of earlier texts stand at the ends of pages, beside those pages. A text may begin with kept
pages up to the last page with such a state. Each tenant has a fixed share of the room. Where it is
full, the tenant's state that was kept longest ago goes, and its page stays. With a page its state
goes, and is wiped. Kept states are not safe to use from two threads at once.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from appliance.engine.forward.trees import shares
from appliance.errors import EngineError
from appliance.families.architecture import Architecture
from appliance.kernels.layouts.step import DELTA_ROWS, LOG_ROWS
from appliance.kernels.runtime.boundary import Run
from appliance.kernels.runtime.memory import Memory
from appliance.secure import locked

_LINE = 64
_PIECE = 16 << 20  # bytes of a state at most that are sealed as one message


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


def _log_places(architecture: Architecture) -> tuple[list[int], int]:
    """The place of each layer in a log, and the bytes of all."""
    places, offset = [], 0
    for layer in architecture.every:
        places.append(offset)
        if layer.recurrence is not None:
            each = 4 * layer.recurrence.columns + layer.recurrence.head_log_nbytes
            offset += -(-LOG_ROWS * each // _LINE) * _LINE
    return places, offset


def log_nbytes(architecture: Architecture) -> int:
    """Bytes of the log of a slot; 0 of models whose layers all attend."""
    return _log_places(architecture)[1]


def division(nbytes: int, page: int, state: int, slots: int) -> tuple[int, int]:
    """How many pages and states of earlier texts fit into so many bytes: no more states than pages,
    in half of the bytes at most. Where states are kept, each slot has a second one: see `mark`.
    Without room for a state no page is kept either: no text could begin with it."""
    if not state:
        return nbytes // page, 0
    nbytes = max(nbytes - slots * state, 0)
    states = min(nbytes // 2 // state, nbytes // (page + state))
    return ((nbytes - states * state) // page, states) if states else (0, 0)


def least_nbytes(page: int, state: int, slots: int, tenants: int) -> int:
    """The fewest bytes of earlier texts of which `division` has a state for each tenant."""
    return slots * state + tenants * (state + max(state, page))


def pieces(state: int) -> list[int]:
    """The sizes of the pieces of a state of so many bytes."""
    return [min(_PIECE, state - first) for first in range(0, state, _PIECE)]


class StateLogs:
    """The logs of few slots at a time.

    A slot has one from its first guess on. It stays with the slot until that is wiped, or another
    slot needs it and nothing of it is to be read any more.
    """

    def __init__(self, architecture: Architecture, address: int, count: int) -> None:
        self.places, self._stride = _log_places(architecture)
        """Where each layer is in a log."""
        self._address, self._free = address, list(range(count))
        self._rooms, self._right, self._guesses = dict[int, int](), dict[int, int](), dict[int, int]()  # by slot

    def expect(self, slot: int, guesses: int) -> None:
        """The last rows of a slot in the next pass, so many, will be guesses. EngineError where
        that is too many, or all logs are in use."""
        if slot not in self._rooms:
            idle = [each for each in self._rooms if each not in self._right and each not in self._guesses]
            if not self._free and idle:
                self.wipe(idle[0])
            if not self._free:
                raise EngineError("all logs of guesses are in use", code="engine-internal")
            self._rooms[slot] = self._free.pop()
        if not 1 <= guesses <= LOG_ROWS:
            raise EngineError(f"{guesses} guesses for layers with a state; allowed: 1..{LOG_ROWS}")
        self._guesses[slot] = guesses

    def rows(self, runs: Iterable[Run]) -> list[int]:
        """The words of tables SlotRows: which rows change the state of a slot, and which only its
        log. EngineError as of `words`."""
        return [word for run in runs for word in (
            run.first, run.count, run.slot, run.position, *self.words(run.slot, run.count, run.position))]

    def words(self, slot: int, rows: int, position: int) -> tuple[int, int, int]:
        """Of a slot with so many rows in a pass, from a position on: the address of its log, the
        rows that are read there first, and the rows that are guesses. EngineError for more rows
        than guesses may have beside them, or more to read than positions before: at position 0
        kernels take the state for zeros."""
        if slot not in self._rooms:
            return 0, 0, 0
        right, guesses = self._right.get(slot, 0), self._guesses.get(slot, 0)
        if right > position:
            raise EngineError(f"{right} rows of a log before position {position}", code="engine-internal")
        if guesses and not guesses < rows <= DELTA_ROWS - right:
            raise EngineError(f"{rows} rows with {guesses} guesses; allowed: {guesses + 1}..{DELTA_ROWS - right}")
        return self._address + self._rooms[slot] * self._stride, right, guesses

    def done(self, slots: Iterable[int]) -> None:
        """A pass of these slots was run: what it read in their logs is part of their states."""
        for slot in slots:
            self._right.pop(slot, None)

    def commit(self, slot: int, right: int) -> None:
        """Note how many guesses of the last pass were right. EngineError for more than there
        were."""
        if not 0 <= right <= self._guesses.pop(slot, 0):
            raise EngineError(f"{right} right guesses of slot {slot}, which had fewer")
        if right:
            self._right[slot] = right

    def behind(self, slot: int) -> int:
        """The positions that the state of a slot lacks: they are in its log."""
        return self._right.get(slot, 0)

    def wipe(self, slot: int) -> None:
        """Overwrite the log of a slot with zeros, if it has one, and let it go."""
        self._right.pop(slot, None)
        self._guesses.pop(slot, None)
        room = self._rooms.pop(slot, None)
        if room is not None:
            ctypes.memset(self._address + room * self._stride, 0, self._stride)
            self._free.append(room)


class States:
    """The states of so many slots, and of earlier texts. Places and strides are in bytes."""

    def __init__(self, architecture: Architecture, slots: int, kept: int = 0, logs: int = 0) -> None:
        """`kept`: states of earlier texts that there is room for; `logs`: slots with guesses at a
        time."""
        self.places, self.stride = _places(architecture)
        """Where each layer is in a state; bytes from one slot's state to the next one's."""
        self.rooms = range(2 * slots, 2 * slots + kept) if kept else range(0)
        """The numbers of states of earlier texts, behind those of slots."""
        self._slots, self._marks = slots, dict[int, int]()
        states = self.stride * (self.rooms.stop or slots)
        self._memory: Memory | None = Memory(states + logs * log_nbytes(architecture), huge=True)
        if self.stride:
            locked.protect(self._memory.address, self._memory.nbytes, "states", own=self._memory.own)
        self.address, self.nbytes = self._memory.address, self._memory.nbytes
        self.logs = StateLogs(architecture, self.address + states, logs)
        """The logs of guesses."""

    def views(self, number: int) -> list[memoryview]:
        """The bytes of a state, in pieces that are sealed each."""
        kind, at = ctypes.c_char * self.stride, self.address + number * self.stride
        whole = memoryview(kind.from_address(at)).cast("B")
        return [whole[first:first + size] for first, size in zip(
            range(0, self.stride, _PIECE), pieces(self.stride), strict=True)]

    def copy(self, source: int, to: int) -> None:
        """Let a slot have the state of another one."""
        if self._memory is not None:
            ctypes.memmove(self.address + to * self.stride, self.address + source * self.stride, self.stride)

    def mark(self, slot: int, positions: int) -> None:
        """Remember the state of a slot as that of so many positions, where states are kept."""
        if self.rooms:
            self._marks[slot] = positions
            self.copy(slot, self.mark_of(slot))

    def adopt(self, slot: int, positions: int) -> None:
        """Let a slot have the state in its mark, which somebody filled with that of so many
        positions."""
        self._marks[slot] = positions
        self.copy(self.mark_of(slot), slot)

    def mark_of(self, slot: int) -> int:
        """The number of the state that a slot's mark is in."""
        return self._slots + slot

    def marked(self, slot: int) -> int:
        """The positions of a slot's mark; 0 without one."""
        return self._marks.get(slot, 0)

    def wipe(self, slot: int) -> None:
        """Overwrite a state with zeros, with a slot's mark and its log."""
        self._zero(slot)
        if self._marks.pop(slot, None) is not None:
            self._zero(self.mark_of(slot))
        if self._memory is not None:
            self.logs.wipe(slot)

    def _zero(self, room: int) -> None:
        if self._memory is not None:
            ctypes.memset(self.address + room * self.stride, 0, self.stride)

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None


class StateRooms:
    """The rooms of states, by the numbers of their pages: those in memory, or on a disk."""

    def __init__(self, rooms: Collection[int], tenants: Collection[str], weights: Mapping[str, int],
                 let_go: Callable[[int], object]) -> None:
        """`let_go` gets each room whose state goes."""
        self._count, self._free, self._let_go = len(rooms), list(rooms), let_go
        self._rooms: dict[int, int] = {}  # by page
        self._order: dict[str, OrderedDict[int, None]] = {}  # pages of each tenant, kept longest ago first
        self.divide(tenants, weights)

    def take(self, tenant: str, page: int, room: int | None = None) -> int | None:
        """A room for the state of a page, or just this one, which is free; None where the page has
        one already, or its tenant no share."""
        own, share = self._order.get(tenant), self.shares.get(tenant, 0)
        if own is None or not share or page in self._rooms:
            return None
        if len(own) >= share:
            self.drop(next(iter(own)))
        room = self._free[-1] if room is None else room
        self._free.remove(room)
        self._rooms[page], own[page] = room, None
        return room

    def room(self, page: int) -> int | None:
        """The room of the state of a page; None where it has none."""
        return self._rooms.get(page)

    def longest(self, pages: Sequence[int]) -> int:
        """How many of a text's pages there are up to the last page with a state."""
        return max((index + 1 for index, page in enumerate(pages) if page in self._rooms), default=0)

    def drop(self, page: int) -> None:
        """Let the state of a page go, if it has one."""
        room = self._rooms.pop(page, None)
        if room is not None:
            self._let_go(room)
            self._free.append(room)
            for own in self._order.values():
                own.pop(page, None)

    def divide(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let `tenants` share the room by their weights from now on. The states of others go, and
        those beyond a share."""
        self.shares = shares(self._count, tenants, weights)
        for tenant, own in self._order.items():
            while len(own) > self.shares.get(tenant, 0):
                self.drop(next(iter(own)))
        self._order = {tenant: self._order.get(tenant, OrderedDict()) for tenant in tenants}


class KeptStates(StateRooms):
    """The states that are kept in memory. A state that goes is wiped."""

    def __init__(self, states: States, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        super().__init__(states.rooms, tenants, weights, states.wipe)
        self._states = states

    def keep(self, tenant: str, page: int, slot: int) -> None:
        """Keep the state that a slot had at the end of a page, if there is not one already."""
        room = self.take(tenant, page)
        if room is not None:
            self._states.copy(self._states.mark_of(slot), room)

    def begin(self, slot: int, page: int) -> None:
        """Let a slot have the state at the end of a page, which must be there."""
        self._states.copy(self._rooms[page], slot)
