"""Merkle trees over nonces, so that many clients share one hardware report.

The hashing is RFC 6962's (section 2.1) with SHA-256: a leaf and a node are hashed under different
first bytes, so no node can be passed off as a nonce. Proofs are checked by the algorithm of RFC
9162, section 2.1.3.2. The number of leaves goes into the statement beside the root: without it a
proof could be read against another tree's shape. This module does not know what a nonce is for.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.transparency import tree
from appliance.transparency.tree import leaf_hash, node_hash

MAX_LEAVES = 1 << 16


class HashTree:
    """A tree over 1 to MAX_LEAVES leaves, hashed once. Raises ValueError for another number of
    them."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        if not 1 <= len(leaves) <= MAX_LEAVES:
            raise ValueError(f"a tree has 1 to {MAX_LEAVES} leaves, not {len(leaves)}")
        self._levels = [[leaf_hash(leaf) for leaf in leaves]]
        while len(below := self._levels[-1]) > 1:
            # A node without a right sibling moves up as it is: the same tree as RFC 6962's
            # recursion.
            pairs = [node_hash(below[i], below[i + 1]) for i in range(0, len(below) - 1, 2)]
            self._levels.append(pairs + below[len(below) & ~1:])

    @property
    def size(self) -> int:
        """Number of leaves."""
        return len(self._levels[0])

    @property
    def root(self) -> bytes:
        """The root hash (32 bytes)."""
        return self._levels[-1][0]

    def proof(self, index: int) -> tuple[bytes, ...]:
        """Sibling hashes on the way from the leaf at `index` to the root, lowest first."""
        if not 0 <= index < self.size:
            raise ValueError(f"no leaf {index} in a tree of {self.size}")
        path = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                path.append(level[index ^ 1])
            index >>= 1
        return tuple(path)


def included(leaf: bytes, index: int, size: int, path: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether `leaf` is number `index` of a tree of `size` leaves with this root."""
    return size <= MAX_LEAVES and tree.included(leaf_hash(leaf), index, size, path, expected_root)
