"""The memory of keys and values: an arena of pages, which sequences take as they grow and give back
at their end.

A page holds the keys and values of 64 positions of all layers: an array (layers, key-value heads)
of keys, and the same of values behind them. The content of one head in a page depends on the format
of the cache: binary16, or 8 or 4 bits with a scale for every 32 elements (`attention.f16`,
`attention.quantised`). The arena is made once, and nothing grows afterwards. A free page is always
zero: giving back the last reference to a page wipes it.

A sequence's place is a *slot*. It has a row of page offsets, which kernels follow, and a *claim*:
how many pages it may take, promised beforehand, so that no running sequence ever lacks a page.

A page that several share is only read. Its cost stands in claims so:

    fork     in the claim of one of the slots; when that one ends, in the claim of the next
    prefix   in the claim of each slot that reads it, and in what is set aside for prefixes: so
             nobody's admission depends on what is kept of earlier texts
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.engine.forward.states import States
from appliance.errors import CapacityError, EngineError
from appliance.families.architecture import Architecture
from appliance.kernels.layouts.attention import CACHE_FORMATS, PAGE, head_nbytes
from appliance.kernels.runtime.memory import Memory
from appliance.secure import locked

MAX_SLOTS = 1024
WORD_NBYTES = 8  # of a page's offset in a row
NOWHERE = -1 << 46  # the offset of no page: no address is there, so a kernel that follows it ends the process


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """The place of a layer among the keys, and among the values, of a page, and the bytes of a head
    of each."""

    keys: int
    key_stride: int
    values: int
    value_stride: int


def _places(architecture: Architecture, kind: str) -> tuple[list[LayerPlace], tuple[int, int]]:
    """The place of each layer, and the bytes of the keys, and of the values, of all."""
    places, keys, values = [], 0, 0
    for layer in architecture.every:
        of_key, of_value = head_nbytes(kind, layer.head_size)
        places.append(LayerPlace(keys, of_key, values, of_value))
        keys, values = keys + layer.kv_heads * of_key, values + layer.kv_heads * of_value
    return places, (keys, values)


def pages_of(positions: int) -> int:
    """Pages that so many positions take."""
    return -(-positions // PAGE)


def page_nbytes(architecture: Architecture, kind: str = "f16") -> int:
    """Bytes of keys and values of one page; EngineError for a format that there is not."""
    if kind not in CACHE_FORMATS:
        raise EngineError(f"there is no KV cache of format {kind!r}", hint=f"allowed: {', '.join(CACHE_FORMATS)}")
    return sum(_places(architecture, kind)[1])


def slot_nbytes(architecture: Architecture, context: int, kind: str = "f16") -> int:
    """Bytes of keys and values of one whole context; EngineError for a format that there is not."""
    return pages_of(context) * page_nbytes(architecture, kind)


class KVCache:
    """Keys and values of up to `slots` sequences of up to `context` positions. Strides, offsets and
    addresses are in bytes."""

    def __init__(self, architecture: Architecture, slots: int, context: int, kind: str = "f16",
                 pages: int | None = None, states: int = 0, logs: int = 0) -> None:
        """`pages` of the arena; None: a whole context for each slot. `states` of earlier texts;
        `logs`: slots that may have guesses at a time."""
        if not 1 <= slots <= MAX_SLOTS:
            raise EngineError(f"a KV cache of {slots} slots; allowed: 1..{MAX_SLOTS}")
        if context < 1:
            raise EngineError(f"a KV cache of {context} positions; allowed: 1 or more")
        self.pages_a_slot = pages_of(context)
        self.pages = slots * self.pages_a_slot if pages is None else pages
        if self.pages < self.pages_a_slot:
            raise EngineError(f"a KV cache of {self.pages} pages; one context takes {self.pages_a_slot}")
        self.slots, self.context, self.kind = slots, context, kind
        self.layers, self.halves = _places(architecture, kind)  # bytes of the keys of a page, and of its values
        self.page_stride = sum(self.halves)
        self.states = States(architecture, slots, states, logs)
        self._memory: Memory | None = Memory(self.page_stride * self.pages, huge=True)
        locked.protect(self._memory.address, self._memory.nbytes, "keys and values", own=self._memory.own)
        self.keys = self._memory.address
        self.values = self.keys + self.halves[0]
        self.rows = Memory(WORD_NBYTES * slots * self.pages_a_slot)
        self._offsets = self.rows.view("i8").reshape(slots, self.pages_a_slot)
        self._offsets[:] = NOWHERE
        self._free = list(range(self.pages - 1, -1, -1))
        self._references = [0] * self.pages
        self._taken: list[list[int]] = [[] for _ in range(slots)]  # pages of each slot, in order of positions
        self._claims = [0] * slots  # most pages that each may have, but for those of another's claim
        self._lent = [0] * slots  # pages of each that stand in another's claim
        self._sharers: dict[int, list[list[int]]] = {}  # groups of slots by forked page, in the claim of each's first
        self._unclaimed = self.pages

    @property
    def nbytes(self) -> int:
        """Bytes of all pages together, touched or not."""
        return self.page_stride * self.pages

    @property
    def row_stride(self) -> int:
        """Bytes from one slot's row of page offsets to the next one's."""
        return WORD_NBYTES * self.pages_a_slot

    @property
    def unclaimed(self) -> int:
        """Pages that are promised to nobody."""
        return self._unclaimed

    @property
    def in_use(self) -> int:
        """Pages that hold keys and values."""
        return self.pages - len(self._free)

    def claim(self, slot: int, positions: int, shared: int = 0) -> None:
        """Promise a slot all pages of so many positions, less `shared` ones by a fork;
        CapacityError where they are not there."""
        self._check(slot, positions)
        self._promise(slot, pages_of(positions) - shared)

    def set_aside(self, pages: int) -> None:
        """Take pages for prefixes out of what may be claimed, or put some back where the number is
        negative; CapacityError where they are not there."""
        if pages > self._unclaimed:
            raise CapacityError(f"{pages} pages for prefixes; {self._unclaimed} are free", code="pages-in-use")
        self._unclaimed -= pages

    def cover(self, slot: int, first: int, count: int) -> None:
        """Before positions first .. first + count - 1 of a slot are written: take the pages that it
        lacks. Beyond its claim this takes what is promised to nobody, and CapacityError where there
        is none. EngineError for positions whose page other slots read."""
        self._check(slot, first + count)
        pages, count = self._taken[slot], pages_of(first + count)
        if any(self._references[page] > 1 for page in pages[first // PAGE:count]):
            raise EngineError(f"position {first} of slot {slot} is in a page that others read")
        if count <= len(pages):
            return
        self._promise(slot, count - self._lent[slot])
        while len(pages) < count:
            self._append(slot, self._free.pop())

    def fork(self, parent: int, child: int, positions: int) -> None:
        """Let an empty slot begin with the first `positions` of another: it shares the pages that
        these fill, and has a copy of the next one. EngineError where the positions are not there,
        CapacityError where the copy's page is not."""
        self._check(child, positions)
        whole, source = positions // PAGE, self._taken[parent]
        if self._taken[child] or pages_of(positions) > len(source) or parent == child:
            raise EngineError(f"slot {child} cannot begin with {positions} positions of slot {parent}")
        if whole < pages_of(positions):
            self._promise(child, 1)
        self.states.copy(parent, child)
        self._lent[child] = whole
        for page in source[:whole]:
            self._append(child, page)
            self._share(page, parent, child)
        if whole < pages_of(positions):
            self._append(child, self._free.pop())
            self._copy(source[whole], self._taken[child][whole])

    def pages_below(self, slot: int, positions: int) -> list[int]:
        """The pages of a slot that its first `positions` fill."""
        self._check(slot, positions)
        return self._taken[slot][:positions // PAGE]

    def begin(self, slot: int, pages: Sequence[int]) -> None:
        """Let an empty slot begin with pages that are held. They count in its claim."""
        if self._taken[slot]:
            raise EngineError(f"slot {slot} is not empty")
        self._promise(slot, len(pages))
        for page in pages:
            self._append(slot, page)

    def hold(self, page: int) -> None:
        """Keep a page that a slot has, also when the slot ends. Nobody writes it from now on."""
        self._references[page] += 1

    def let_go(self, page: int) -> None:
        """The end of `hold`."""
        self._drop(page)

    def views(self, page: int) -> tuple[memoryview, memoryview]:
        """The bytes of a page, keys and values, as a slot that has it may read and write them."""
        at = page * self.page_stride
        keys, values = (memoryview((ctypes.c_char * nbytes).from_address(base + at)).cast("B")
                        for base, nbytes in zip((self.keys, self.values), self.halves, strict=True))
        return keys, values

    def restart(self, slot: int) -> None:
        """Let a slot's pages go, and keep its claim for others in their place. EngineError where
        its claim is for fewer than a whole context."""
        claim = self._claims[slot]
        if claim < self.pages_a_slot:
            raise EngineError(f"slot {slot} has a claim on {claim} pages; a context has {self.pages_a_slot}")
        self.give_back(slot)
        self._promise(slot, self.pages_a_slot)

    def rewind(self, slot: int, positions: int) -> None:
        """Keep the first positions of a slot, and its claim. The pages after them go. Where others
        read the page that they end in, the slot has a copy of it from now on. A state goes where no
        position stays."""
        self._check(slot, positions)
        pages, count = self._taken[slot], pages_of(positions)
        if count > len(pages):
            raise EngineError(f"slot {slot} has fewer than {positions} positions")
        while len(pages) > count:
            self._take_off(slot)
        if positions == 0:
            self.states.wipe(slot)
        if positions % PAGE and self._references[pages[-1]] > 1:
            source = pages[-1]
            self._references[source] += 1  # it stays until it is copied
            self._take_off(slot)
            self._append(slot, self._free.pop())
            self._copy(source, pages[-1])
            self._drop(source)

    def give_back(self, slot: int) -> None:
        """Let a slot's pages, its state and its claim go. Pages that nobody else reads are wiped.
        """
        self._check(slot, 0)
        self.states.wipe(slot)
        for page in self._taken[slot]:
            self._leave(slot, page)
            self._drop(page)
        self._taken[slot] = []
        self._offsets[slot] = NOWHERE
        self._unclaimed += self._claims[slot]
        self._claims[slot] = self._lent[slot] = 0

    def release(self) -> None:
        """Overwrite everything with zeros and give the memory back; a second call does nothing."""
        if self._memory is not None:
            self._memory.wipe()
            self._memory = None
            self.states.release()

    def _check(self, slot: int, positions: int) -> None:
        if not (0 <= slot < self.slots and 0 <= positions <= self.context):
            raise EngineError(f"{positions} positions of slot {slot}; there are {self.slots} slots of {self.context}")

    def _promise(self, slot: int, pages: int) -> None:
        """Raise a slot's claim to so many pages of its own."""
        more = pages - self._claims[slot]
        if more > self._unclaimed:
            raise CapacityError(f"{more} more pages of keys and values are needed, {self._unclaimed} are free",
                                hint="try again later", code="pages-in-use")
        if more > 0:
            self._claims[slot] += more
            self._unclaimed -= more

    def _append(self, slot: int, page: int) -> None:
        """Make a page the next one of a slot."""
        pages = self._taken[slot]
        self._offsets[slot, len(pages)] = page * self.page_stride
        self._references[page] += 1
        pages.append(page)

    def _take_off(self, slot: int) -> None:
        """Let the last page of a slot go."""
        pages = self._taken[slot]
        page = pages.pop()
        self._offsets[slot, len(pages)] = NOWHERE
        self._leave(slot, page)
        self._drop(page)

    def _leave(self, slot: int, page: int) -> None:
        """End a slot's part in a forked page. Where it stands in its claim, it passes to that of
        the next one."""
        sharers = self._group(page, slot)
        if sharers is None:
            return
        paid = sharers[0] == slot
        sharers.remove(slot)
        if paid:
            heir = sharers[0]
            if self._claims[heir] + self._lent[heir] <= self.pages_a_slot:  # else its claim has this page already
                self._claims[slot] -= 1
                self._claims[heir] += 1
            self._lent[heir] -= 1
        if len(sharers) == 1:
            self._sharers[page].remove(sharers)

    def _group(self, page: int, slot: int) -> list[int] | None:
        """The slots with which a slot shares a page by forks. A slot that began with it, as a held
        one, has it in a claim of its own."""
        return next((group for group in self._sharers.get(page, []) if slot in group), None)

    def _share(self, page: int, parent: int, child: int) -> None:
        group = self._group(page, parent)
        if group is None:
            group = [parent]
            self._sharers.setdefault(page, []).append(group)
        group.append(child)

    def _drop(self, page: int) -> None:
        """Take one reference to a page away; after the last one it is wiped and free."""
        self._references[page] -= 1
        if self._references[page] == 0:
            self._wipe(page)
            self._free.append(page)

    def _wipe(self, page: int) -> None:
        if self._memory is not None:
            ctypes.memset(self.keys + page * self.page_stride, 0, self.page_stride)

    def _copy(self, source: int, to: int) -> None:
        ctypes.memmove(self.keys + to * self.page_stride, self.keys + source * self.page_stride, self.page_stride)
