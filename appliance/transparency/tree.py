"""The Merkle tree of a growing log (RFC 6962, section 2.1), kept in memory that grows as its
logarithm.

A `LeafRange` has the largest whole subtrees over consecutive leaves, and nothing below. That is
enough for the root, for the proof of the last leaf, and for a proof that the tree grew from an
earlier size. Proofs about other leaves need all leaf hashes: `proofs.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Self

HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()  # of a tree without leaves


def leaf_hash(data: bytes) -> bytes:
    """Hash of one leaf: SHA-256(0x00 || data)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node: SHA-256(0x01 || left || right)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def included(leaf: bytes, index: int, size: int, siblings: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether a leaf hash is number `index` of a tree of `size` leaves with this root (RFC 9162,
    section 2.1.3.2)."""
    if not 0 <= index < size or any(len(each) != HASH_BYTES for each in siblings):
        return False
    node, last, current = index, size - 1, leaf
    for sibling in siblings:
        if last == 0:
            return False
        if node & 1 or node == last:
            current = node_hash(sibling, current)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            current = node_hash(current, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and hmac.compare_digest(current, expected_root)


class LeafRange:
    """The leaves from `begin` up to, and without, `end`."""

    def __init__(self, begin: int = 0) -> None:
        self.begin = self.end = begin
        self.nodes: list[tuple[int, int, bytes]] = []  # (first leaf, leaves, hash), from left to right

    def append(self, leaf: bytes) -> None:
        """Add the hash of the next leaf. Two neighbours join where they are the halves of one
        subtree."""
        first, size = self.end, 1
        while self.nodes and self.nodes[-1][1] == size and not self.nodes[-1][0] & (2 * size - 1):
            first, _, left = self.nodes.pop()
            leaf, size = node_hash(left, leaf), 2 * size
        self.nodes.append((first, size, leaf))
        self.end += 1

    def copy(self) -> Self:
        """The same range, which grows on its own."""
        other = type(self)(self.begin)
        other.end, other.nodes = self.end, self.nodes[:]
        return other

    @property
    def root(self) -> bytes:
        """The root of the tree over all leaves (32 bytes), for a range that begins with leaf 0."""
        if self.begin:
            raise ValueError("a range that does not begin with leaf 0 has no root")
        return _joined([node for *_, node in self.nodes]) if self.nodes else EMPTY_ROOT

    @property
    def path(self) -> tuple[bytes, ...]:
        """The proof that the next leaf, once it is added, is the last one: siblings, lowest first.
        """
        return tuple(node for *_, node in reversed(self.nodes))

    def within(self, begin: int, end: int) -> list[bytes]:
        """Hashes of those whole subtrees that lie in these bounds."""
        return [node for first, size, node in self.nodes if begin <= first and first + size <= end]


def consistency(old: LeafRange, since: LeafRange) -> tuple[bytes, ...]:
    """The proof (RFC 6962, section 2.1.2) that the tree over both ranges grew from that over `old`.

    `since` begins where `old` ends. Empty where one of the two is.
    """
    if old.begin or old.end != since.begin:
        raise ValueError("the ranges do not follow each other from leaf 0 on")
    if not (old.nodes and since.nodes):
        return ()
    return tuple(_grown(old, since, 0, since.end, whole=True))


def _grown(old: LeafRange, since: LeafRange, begin: int, end: int, *, whole: bool) -> list[bytes]:
    """SUBPROOF of the leaves from `begin` to `end`; `whole`: the old tree began with this subtree.
    """
    if old.end == end:
        return [] if whole else [_joined(old.within(begin, end))]
    middle = begin + (1 << (end - begin - 1).bit_length() - 1)
    if old.end <= middle:
        return [*_grown(old, since, begin, middle, whole=whole), _joined(since.within(middle, end))]
    return [*_grown(old, since, middle, end, whole=False), _joined(old.within(begin, middle))]


def _joined(nodes: Sequence[bytes]) -> bytes:
    """The root over subtrees that follow each other from left to right."""
    *rest, found = nodes
    for node in reversed(rest):
        found = node_hash(node, found)
    return found
