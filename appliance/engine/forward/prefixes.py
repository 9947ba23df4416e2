"""Pages of earlier texts, kept so that a text with the same beginning need not be read again.

Keys and values depend on their tokens and positions alone, so a page that is found here has the
bits that reading would give. Each tenant has a tree of its own, with a fixed share of pages, and
finds nothing of another's (`trees`).

    full      the page of the tenant that was used longest ago goes; no other tenant's does
    expired   pages go that were not used for `lifetime` seconds of the monotonic clock
    gone      whoever lets the last reference to a page go wipes it; its token ids are wiped at once

Not safe to use from two threads at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.states import KeptStates
from appliance.engine.forward.trees import Ids, Node, Trees, shares
from appliance.kernels.layouts.attention import PAGE


class Prefixes:
    """The pages that are kept, out of those set aside by the cache."""

    def __init__(self, cache: KVCache, tenants: Collection[str], pages: int, lifetime: float,
                 clock: Callable[[], float] = time.monotonic, weights: Mapping[str, int] | None = None) -> None:
        """`pages` are divided among `tenants` by their weights; `lifetime` in seconds.
        CapacityError where the pages are not there."""
        divided, self._pages = shares(pages, tenants, weights or {}), pages
        self._set_aside = sum(divided.values())
        cache.set_aside(self._set_aside)
        self._cache, self._lifetime, self._clock = cache, lifetime, clock
        self.snapshots = KeptStates(cache.states, tenants, weights or {}) if cache.states.rooms else None
        """The states at the ends of pages; None where no layer has one."""
        self.trees = Trees(divided, cache.pages, self._let_go)
        self._due = math.inf  # nothing expires before

    def tokens(self, page: int) -> Ids:
        """(PAGE,): the token ids of a page that is kept, not copied."""
        return self.trees.ids(page)

    @property
    def page_count(self) -> int:
        """Pages that are kept, for all tenants."""
        return len(self.trees)

    def find(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """The pages of the longest beginning of `tokens` that is kept for a tenant, in order. They
        count as used now."""
        self.expire()
        now = self._clock()
        path = self.trees.find(tenant, tokens, now)
        if path:
            self._due = min(self._due, now + self._lifetime)
        return [each.number for each in path]

    def keep(self, tenant: str, tokens: Sequence[int], pages: Sequence[int], slot: int) -> Node | None:
        """Keep the pages of a tenant's text, of which `tokens` are the first: as many as its share
        has, with the state that is marked in its slot. Pages of the same text that it keeps already
        stay. The last node of the text; None where there is none."""
        tree = self.trees.of(tenant)
        self.expire()
        if tree is None:
            return None
        ids, node, path = np.array(tokens, np.int32), tree.root, list[Node]()
        for index, page in enumerate(pages[:tree.share]):
            chunk = ids[index * PAGE:(index + 1) * PAGE]
            child = self.trees.child(node, chunk)
            if child is None:
                self.trees.make_room(tree)
                child = self.trees.add(tree, node, page, chunk)
                self._cache.hold(page)
            node = child
            tree.order.move_to_end(node.number)
            path.append(node)
        now = self._clock()
        self.trees.touch(tree, path, now)
        if path:
            self._due = min(self._due, now + self._lifetime)
        ids[:] = 0
        marked = self._cache.states.marked(slot) // PAGE
        if self.snapshots is not None and 0 < marked <= len(path):
            self.snapshots.keep(tenant, path[marked - 1].number, slot)
        return path[-1] if path else None

    def _let_go(self, node: Node) -> None:
        """Let a page go, with its state."""
        if self.snapshots is not None:
            self.snapshots.drop(node.number)
        self._cache.let_go(node.number)

    def divide(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let `tenants` share the room by their weights from now on. The texts of others go."""
        room = min(self._pages, self._set_aside + self._cache.unclaimed)
        divided = shares(room, tenants, weights)
        self.trees.divide(divided)
        if self.snapshots is not None:
            self.snapshots.divide(tenants, weights)
        before, self._set_aside = self._set_aside, sum(divided.values())
        self._cache.set_aside(self._set_aside - before)

    def expire(self) -> None:
        """Let go of what was not used for its lifetime."""
        now = self._clock()
        if now < self._due:
            return
        self._due = math.inf
        for tree in self.trees:
            while tree.order and tree.oldest.used + self._lifetime <= now:
                self.trees.evict(tree)
            if tree.order:
                self._due = min(self._due, tree.oldest.used + self._lifetime)

    @property
    def next_expiry(self) -> float | None:
        """Seconds until something may expire; None where nothing is kept."""
        return None if math.isinf(self._due) else max(0.0, self._due - self._clock())

    def close(self) -> None:
        """Let go of everything, and of the room."""
        self.trees.clear()
        self._cache.set_aside(-self._set_aside)
        self._set_aside = 0
