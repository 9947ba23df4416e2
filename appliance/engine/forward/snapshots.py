"""The states of earlier texts at the ends of pages, beside those pages.

A text may begin with kept pages up to the last page with a state here. Each tenant has a fixed
share of the room. Where it is full, the tenant's state that was kept longest ago goes, and its page
stays. With a page its state goes, and is wiped.

Not safe to use from two threads at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from appliance.engine.forward.states import States


class KeptStates:
    """The states that are kept, by the numbers of their pages."""

    def __init__(self, states: States, tenants: Collection[str]) -> None:
        self._states, self._free = states, list(states.rooms)
        self._rooms: dict[int, int] = {}  # by page
        self._order: dict[str, OrderedDict[int, None]] = {}  # pages of each tenant, kept longest ago first
        self.divide(tenants)

    def keep(self, tenant: str, page: int, slot: int) -> None:
        """Keep the state that a slot had at the end of a page, if there is not one already."""
        own = self._order.get(tenant)
        if own is None or not self.share or page in self._rooms:
            return
        if len(own) >= self.share:
            self.drop(next(iter(own)))
        room = self._rooms[page] = self._free.pop()
        own[page] = None
        self._states.copy(self._states.mark_of(slot), room)

    def longest(self, pages: Sequence[int]) -> int:
        """How many of a text's pages there are up to the last page with a state."""
        return max((index + 1 for index, page in enumerate(pages) if page in self._rooms), default=0)

    def begin(self, slot: int, page: int) -> None:
        """Let a slot have the state at the end of a page, which must be there."""
        self._states.copy(self._rooms[page], slot)

    def drop(self, page: int) -> None:
        """Wipe the state of a page, if it has one."""
        room = self._rooms.pop(page, None)
        if room is not None:
            self._states.wipe(room)
            self._free.append(room)
            for own in self._order.values():
                own.pop(page, None)

    def divide(self, tenants: Collection[str]) -> None:
        """Let `tenants` share the room from now on. The states of others go, and those beyond a
        share."""
        self.share = len(self._states.rooms) // max(len(tenants), 1)
        for tenant, own in self._order.items():
            while len(own) > (self.share if tenant in tenants else 0):
                self.drop(next(iter(own)))
        self._order = {tenant: self._order.get(tenant, OrderedDict()) for tenant in tenants}
