"""Trees of texts by pages: one tree for each tenant, with a fixed share of the pages, by its
weight.

A node is a numbered page of 64 positions; its path from the root is the text up to its end. Token
ids are compared one by one, never by a hash. The pages themselves are somebody else's: the arena's
(`prefixes`), or a disk's (`persistence`).

    full    the node of the tenant that was used longest ago goes; no other tenant's does
    gone    its token ids are wiped at once

Not safe to use from two threads at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.layouts.attention import PAGE
from appliance.kernels.runtime.memory import Memory
from appliance.secure import locked

TOKENS_NBYTES = 4 * PAGE  # of a page's token ids
GONE = -1  # the number of a node that went, and of a root

Ids = NDArray[np.int32]


@dataclass(slots=True, eq=False)
class Node:
    """One page of a text; the root has none."""

    number: int
    parent: Node | None
    children: list[Node] = field(default_factory=list)
    used: float = 0.0  # when it was last, on the monotonic clock

    @property
    def path(self) -> list[Node]:
        """All nodes from the first one of its text on; none for a root."""
        path, node = list[Node](), self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]


def shares(places: int, tenants: Collection[str], weights: Mapping[str, int]) -> dict[str, int]:
    """Divide places among tenants by their weights, each share rounded down. A tenant without an
    entry has weight 1."""
    whole = sum(weights.get(tenant, 1) for tenant in tenants)
    return {tenant: places * weights.get(tenant, 1) // whole for tenant in tenants}


@dataclass(slots=True)
class TextTree:
    """The texts of one tenant, of `share` nodes at most. `order`: all nodes but the root, used
    longest ago first; a node always stands before its parent, so the first one is a leaf."""

    share: int
    root: Node = field(default_factory=lambda: Node(GONE, None))
    order: OrderedDict[int, Node] = field(default_factory=OrderedDict)  # by number

    @property
    def oldest(self) -> Node:
        """The node that goes next. There must be one."""
        return next(iter(self.order.values()))


class Trees:
    """The trees of all tenants, and the token ids of their nodes."""

    def __init__(self, tenants: Mapping[str, int], numbers: int, let_go: Callable[[Node], None]) -> None:
        """`tenants`: most nodes of each; `numbers`: numbers of nodes are below. `let_go` gets each
        node that goes, while it still has its number. EngineError where there is no memory."""
        self._let_go = let_go
        self._trees = {tenant: TextTree(share) for tenant, share in tenants.items()}
        self._memory = Memory(TOKENS_NBYTES * numbers, apart=True)
        locked.protect(self._memory.address, self._memory.nbytes, "token ids", own=self._memory.own)
        self._tokens: Ids = self._memory.view(np.int32).reshape(numbers, PAGE)

    def __len__(self) -> int:
        return sum(len(tree.order) for tree in self._trees.values())

    def __iter__(self) -> Iterator[TextTree]:
        return iter(self._trees.values())

    @property
    def blank(self) -> bool:
        """Whether the memory of token ids is all zeros."""
        return not self._tokens.any()

    def divide(self, tenants: Mapping[str, int]) -> None:
        """Let these be the tenants, with so many nodes at most. The nodes of others go, and those
        beyond a tenant's share that were used longest ago."""
        for tenant, tree in self._trees.items():
            tree.share = tenants.get(tenant, 0)
            while len(tree.order) > tree.share:
                self.evict(tree)
        self._trees = {tenant: self._trees.get(tenant) or TextTree(share) for tenant, share in tenants.items()}

    def of(self, tenant: str) -> TextTree | None:
        """The tree of a tenant; None where it has none."""
        return self._trees.get(tenant)

    def share_of(self, tenant: str) -> int:
        """Nodes that a tenant may have."""
        tree = self.of(tenant)
        return 0 if tree is None else tree.share

    def ids(self, number: int) -> Ids:
        """(PAGE,): the token ids of a node by its number, not copied."""
        ids: Ids = self._tokens[number]
        return ids

    def child(self, node: Node, chunk: Ids) -> Node | None:
        """The child of a node with just these tokens."""
        numbers = [each.number for each in node.children]
        same = np.flatnonzero((self._tokens[numbers] == chunk).all(axis=1))
        return node.children[int(same[0])] if same.size else None

    def find(self, tenant: str, tokens: Sequence[int], now: float) -> list[Node]:
        """The nodes of the longest beginning of a tenant's text that is there, in order. They are
        used now."""
        tree, path = self.of(tenant), list[Node]()
        if tree is None or not tree.order:
            return path
        node, ids = tree.root, np.array(tokens, np.int32)
        for first in range(0, ids.size - PAGE + 1, PAGE):
            child = self.child(node, ids[first:first + PAGE])
            if child is None:
                break
            node = child
            path.append(node)
        self.touch(tree, path, now)
        ids[:] = 0
        return path

    def add(self, tree: TextTree, parent: Node, number: int, chunk: Ids) -> Node:
        """A new node. The tree must have room for it: see `make_room`."""
        node = Node(number, parent)
        self._tokens[number] = chunk
        parent.children.append(node)
        tree.order[number] = node
        return node

    def make_room(self, tree: TextTree) -> None:
        """Let the node used longest ago go where the tenant's share is full."""
        if len(tree.order) >= tree.share:
            self.evict(tree)

    def touch(self, tree: TextTree, path: Sequence[Node], now: float) -> None:
        """Use the nodes of a path now, the last one first: so each stands before its parent."""
        for node in reversed(path):
            node.used = now
            tree.order.move_to_end(node.number)

    def evict(self, tree: TextTree) -> None:
        """Let the leaf go that was used longest ago."""
        self._remove(tree, tree.oldest)

    def drop(self, tree: TextTree, node: Node) -> None:
        """Let a node go, and all that continues it."""
        below = [node]
        for each in below:
            below += each.children
        for each in reversed(below):
            self._remove(tree, each)

    def clear(self) -> None:
        """Let everything go, and the room."""
        for tree in self._trees.values():
            while tree.order:
                self.evict(tree)
        self._memory.wipe()
        self._trees = {}

    def _remove(self, tree: TextTree, node: Node) -> None:
        del tree.order[node.number]
        if node.parent is not None:
            node.parent.children.remove(node)
        self._tokens[node.number] = 0
        self._let_go(node)
        node.number = GONE
