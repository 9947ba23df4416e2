"""Pages of earlier texts, kept so that a text with the same beginning need not be read again.

Keys and values depend on their tokens and positions alone, so a page that is found here has the
bits that reading would give. Each tenant has a tree of its own, with a fixed share of pages, and
finds nothing of another's. A node is a page; its path from the root is the text up to its end.
Token ids are compared one by one, never by a hash.

    full      the page of the tenant that was used longest ago goes; no other tenant's does
    expired   pages go that were not used for `lifetime` seconds of the monotonic clock
    gone      whoever lets the last reference to a page go wipes it; its token ids are wiped at once

Not safe to use from two threads at once.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.engine.forward.kvcache import KVCache
from appliance.engine.kernels.layouts.attention import PAGE
from appliance.engine.kernels.runtime.memory import Memory
from appliance.secure import locked

TOKENS_NBYTES = 4 * PAGE  # of a page's token ids

Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class _Node:
    """One page of a text; the root has none."""

    page: int
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)
    used: float = 0.0  # when it was last, on the monotonic clock


@dataclass(slots=True)
class _Tree:
    """The texts of one tenant. `order`: all nodes but the root, used longest ago first; a node
    always stands before its parent, so the first one is a leaf."""

    root: _Node = field(default_factory=lambda: _Node(-1, None))
    order: OrderedDict[int, _Node] = field(default_factory=OrderedDict)  # by page


def _oldest(tree: _Tree) -> _Node:
    return next(iter(tree.order.values()))


class Prefixes:
    """The pages that are kept, out of those that the cache has set aside."""

    def __init__(self, cache: KVCache, tenants: Collection[str], pages: int, lifetime: float,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`pages` are divided equally among `tenants`; `lifetime` in seconds. CapacityError where
        the pages are not there."""
        self.share = pages // max(len(tenants), 1)
        cache.set_aside(self.share * len(tenants))
        self._cache, self._lifetime, self._clock = cache, lifetime, clock
        self._trees = {tenant: _Tree() for tenant in tenants}
        self._memory = Memory(TOKENS_NBYTES * cache.pages, apart=True)
        locked.protect(self._memory.address, self._memory.nbytes, "token ids", own=self._memory.own)
        self._tokens: Ids = self._memory.view(np.int32).reshape(cache.pages, PAGE)
        self._due = math.inf  # nothing expires before

    @property
    def held(self) -> int:
        """Pages that are kept, for all tenants."""
        return sum(len(tree.order) for tree in self._trees.values())

    def find(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """The pages of the longest beginning of `tokens` that is kept for a tenant, in order. They
        count as used now."""
        tree = self._trees.get(tenant)
        self.expire()
        if tree is None or not tree.order:
            return []
        ids, node, path = np.array(tokens, np.int32), tree.root, list[_Node]()
        for first in range(0, ids.size - PAGE + 1, PAGE):
            child = self._child(node, ids[first:first + PAGE])
            if child is None:
                break
            node = child
            path.append(node)
        self._touch(tree, path)
        ids[:] = 0
        return [each.page for each in path]

    def keep(self, tenant: str, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the pages of a tenant's text, of which `tokens` are the first: as many as its share
        has. Pages of the same text that it keeps already stay."""
        tree = self._trees.get(tenant)
        self.expire()
        if tree is None:
            return
        ids, node, path = np.array(tokens, np.int32), tree.root, list[_Node]()
        for index, page in enumerate(pages[:self.share]):
            chunk = ids[index * PAGE:(index + 1) * PAGE]
            node = self._child(node, chunk) or self._add(tree, node, page, chunk)
            tree.order.move_to_end(node.page)
            path.append(node)
        self._touch(tree, path)
        ids[:] = 0

    def expire(self) -> None:
        """Let go of what was not used for its lifetime."""
        now = self._clock()
        if now < self._due:
            return
        self._due = math.inf
        for tree in self._trees.values():
            while tree.order and _oldest(tree).used + self._lifetime <= now:
                self._evict(tree)
            if tree.order:
                self._due = min(self._due, _oldest(tree).used + self._lifetime)

    @property
    def next_expiry(self) -> float | None:
        """Seconds until something may expire; None where nothing is kept."""
        return None if math.isinf(self._due) else max(0.0, self._due - self._clock())

    def close(self) -> None:
        """Let go of everything, and of the room."""
        for tree in self._trees.values():
            while tree.order:
                self._evict(tree)
        self._memory.wipe()
        self._cache.set_aside(-self.share * len(self._trees))
        self._trees = {}

    def _child(self, node: _Node, chunk: Ids) -> _Node | None:
        """The child of a node with just these tokens."""
        pages = [each.page for each in node.children]
        same = np.flatnonzero((self._tokens[pages] == chunk).all(axis=1))
        return node.children[int(same[0])] if same.size else None

    def _add(self, tree: _Tree, parent: _Node, page: int, chunk: Ids) -> _Node:
        """A new node, in the place of the one used longest ago where the share is full."""
        if len(tree.order) >= self.share:
            self._evict(tree)
        node = _Node(page, parent)
        self._tokens[page] = chunk
        self._cache.hold(page)
        parent.children.append(node)
        tree.order[page] = node
        return node

    def _touch(self, tree: _Tree, path: Sequence[_Node]) -> None:
        """Use the nodes of a path now, the last one first: so each stands before its parent."""
        now = self._clock()
        if path:
            self._due = min(self._due, now + self._lifetime)
        for node in reversed(path):
            node.used = now
            tree.order.move_to_end(node.page)

    def _evict(self, tree: _Tree) -> None:
        """Let the leaf go that was used longest ago."""
        page, node = tree.order.popitem(last=False)
        if node.parent is not None:
            node.parent.children.remove(node)
        self._tokens[page] = 0
        self._cache.let_go(page)
