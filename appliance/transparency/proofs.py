"""Proofs about any leaf and any size of a log whose leaf hashes are all there, and their checks.

The check of growth is the algorithm of RFC 9162, section 2.1.4.2; `tree` has that of one leaf.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from appliance.transparency.tree import EMPTY_ROOT, HASH_BYTES, LeafRange, consistency, node_hash


def over(leaves: Sequence[bytes], begin: int = 0, end: int | None = None) -> LeafRange:
    """The range over some of these leaf hashes."""
    found = LeafRange(begin)
    for leaf in leaves[begin:end]:
        found.append(leaf)
    return found


def root(leaves: Sequence[bytes]) -> bytes:
    """The root over leaf hashes."""
    return over(leaves).root


def grown(leaves: Sequence[bytes], old: int) -> tuple[bytes, ...]:
    """The proof that the tree over all leaf hashes grew from that over the first `old`."""
    if not 0 <= old <= len(leaves):
        raise ValueError(f"no tree of {old} leaves in one of {len(leaves)}")
    return consistency(over(leaves, 0, old), over(leaves, old))


def path(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The proof that leaf `index` is in the tree over these leaf hashes: siblings, lowest first."""
    if not 0 <= index < len(leaves):
        raise ValueError(f"no leaf {index} in a tree of {len(leaves)}")
    found, begin, end = [], 0, len(leaves)
    while end - begin > 1:
        middle = begin + (1 << (end - begin - 1).bit_length() - 1)
        if index < middle:
            found.append(root(leaves[middle:end]))
            end = middle
        else:
            found.append(root(leaves[begin:middle]))
            begin = middle
    return tuple(reversed(found))


def follows(old: int, old_root: bytes, size: int, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a tree of `size` leaves with root `new_root` grew from one of `old` leaves with root
    `old_root`."""
    if not 0 <= old <= size or any(len(each) != HASH_BYTES for each in proof):
        return False
    if old == 0 or old == size:
        same = old_root == (EMPTY_ROOT if old == 0 else new_root)
        return not proof and same
    hashes = list(proof) if old & (old - 1) else [old_root, *proof]
    node, last = old - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    if not hashes:
        return False
    first = second = hashes[0]
    for each in hashes[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            first, second = node_hash(each, first), node_hash(each, second)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            second = node_hash(second, each)
        node, last = node >> 1, last >> 1
    return last == 0 and hmac.compare_digest(first, old_root) and hmac.compare_digest(second, new_root)
