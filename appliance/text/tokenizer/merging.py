"""Merge neighbouring symbols, best pair first: the heart of both tokenizers.

A pair's rank comes from a table keyed by `left + joiner + right`; a smaller rank merges earlier,
and of equal ranks the leftmost. A heap holds the candidates, so that a word of n symbols takes O(n
log n).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from itertools import pairwise

SHORT = 24  # symbols; up to here a scan for the best pair beats the heap
NONE = 1 << 62  # rank of a pair that does not merge
_POSITION_BITS = 40  # heap entries are rank << 40 | position


def merge(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """The symbols after all merges. Ranks are at least 0 and below 2^22 or so (a table's index)."""
    if len(symbols) < 2:
        return symbols
    if len(symbols) <= SHORT:
        return _merge_short(symbols, ranks, joiner)
    return _merge_long(symbols, ranks, joiner)


def _merge_short(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    parts = list(symbols)
    get = ranks.get
    pairs = [get(left + joiner + right, NONE) for left, right in pairwise(parts)]
    while pairs:
        best = min(pairs)
        if best == NONE:
            break
        at = pairs.index(best)
        parts[at] += parts.pop(at + 1)
        pairs.pop(at)
        if at < len(pairs):
            pairs[at] = get(parts[at] + joiner + parts[at + 1], NONE)
        if at:
            pairs[at - 1] = get(parts[at - 1] + joiner + parts[at], NONE)
    return parts


def _merge_long(symbols: list[str], ranks: Mapping[str, int], joiner: str) -> list[str]:
    """A doubly linked list of parts by position; `pairs[i]` is the rank of part i with the part
    after it now, so that an entry of the heap is stale unless it says the same."""
    get = ranks.get
    count = len(symbols)
    parts: list[str] = list(symbols)
    after, before = array("i", range(1, count + 1)), array("i", range(-1, count - 1))
    pairs = array("q", (get(left + joiner + right, NONE) for left, right in pairwise(parts)))
    pairs.append(NONE)
    heap = [rank << _POSITION_BITS | at for at, rank in enumerate(pairs) if rank != NONE]
    heapify(heap)
    mask = (1 << _POSITION_BITS) - 1
    while heap:
        entry = heappop(heap)
        at = entry & mask
        if pairs[at] != entry >> _POSITION_BITS:
            continue
        gone = after[at]
        part = parts[at] = parts[at] + parts[gone]
        parts[gone] = ""
        pairs[gone] = NONE
        right = after[at] = after[gone]
        if right < count:
            before[right] = at
            rank = pairs[at] = get(part + joiner + parts[right], NONE)
            if rank != NONE:
                heappush(heap, rank << _POSITION_BITS | at)
        else:
            pairs[at] = NONE
        left = before[at]
        if left >= 0:
            rank = pairs[left] = get(parts[left] + joiner + part, NONE)
            if rank != NONE:
                heappush(heap, rank << _POSITION_BITS | left)
    return [part for part in parts if part]
