"""Earlier texts, as a slot gets their pages: those in memory at once, those on a shelf a little
later.

A text begins with the pages that are in memory (`prefixes`). The pages after them that are on the
shelf alone (`persistence`) are restored between passes; until then the text is not read. It is the
slot's own pages that they are restored into, which its claim has: so nobody's admission depends on
what is kept.

Not safe to use from two threads at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.persistence import Persisted, Restoring
from appliance.engine.forward.prefixes import Prefixes
from appliance.kernels.layouts.attention import PAGE

CLOSING_SECONDS = 5.0  # at the end, for pages on their way to the shelf
_PUTTING_SECONDS = 30.0  # the same, for a text that is kept nowhere else


class Earlier:
    """The texts of one cache."""

    def __init__(self, cache: KVCache, prefixes: Prefixes | None, persisted: Persisted | None) -> None:
        """`prefixes`: those in memory; `persisted`: those on a shelf."""
        self._cache, self._prefixes, self._persisted = cache, prefixes, persisted

    def begin(self, slot: int, tenant: str, tokens: Sequence[int]) -> tuple[int, Restoring | None]:
        """Let an empty slot begin with the pages of `tokens` that are in memory: their positions,
        and what is to be restored after them."""
        pages = [] if self._prefixes is None else self._prefixes.find(tenant, tokens)
        self._cache.begin(slot, pages)
        more = None if self._persisted is None else self._persisted.find(tenant, tokens, len(pages))
        return len(pages) * PAGE, more

    def restore(self, slot: int, position: int, wanted: Restoring) -> bool | None:
        """Restore the next page of a slot that has `position` positions: whether it is there now;
        None where it has not been read yet. After False the rest of the text is to be read."""
        if self._persisted is None:
            return False

        def page() -> int:
            self._cache.cover(slot, position, PAGE)
            return self._cache.pages_below(slot, position + PAGE)[-1]
        return self._persisted.next_page(wanted, page)

    def keep(self, slot: int, tenant: str, tokens: Sequence[int], positions: int, *, ended: bool) -> None:
        """Keep the pages that a slot has filled, of which `tokens` are the text. `ended`: the slot
        gives them back now."""
        pages = self._cache.pages_below(slot, positions)
        with contextlib.suppress(MemoryError):
            if self._prefixes is None:
                if self._persisted is not None and ended:
                    self._persisted.put(tenant, tokens, pages, _PUTTING_SECONDS)
                return
            last = self._prefixes.keep(tenant, tokens, pages)
            if self._persisted is not None and last is not None:
                self._persisted.later(tenant, last)

    def divide(self, tenants: Collection[str]) -> None:
        """Let `tenants` share the room from now on. The texts of others go."""
        for each in (self._prefixes, self._persisted):
            if each is not None:
                each.divide(tenants)

    def expire(self) -> float | None:
        """Wipe what is too old, and put some of what waits on the shelf; seconds until there is
        more to do, None where nothing is."""
        due = list[float | None]()
        if self._prefixes is not None:
            self._prefixes.expire()
            due.append(self._prefixes.next_expiry)
        if self._persisted is not None:
            due.append(self._persisted.work())
        return min((each for each in due if each is not None), default=None)

    def close(self) -> None:
        """Wipe everything in memory. The shelf keeps its pages."""
        if self._persisted is not None:
            self._persisted.close(CLOSING_SECONDS)
        if self._prefixes is not None:
            self._prefixes.close()
