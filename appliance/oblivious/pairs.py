"""Merges as a table of pairs of symbols, placed so that each pair is in one known slot.

A pair's *least* is the least rank of any merge that can ever join what its two symbols become
part of. Pairs with a least but without a rank of their own stand in the table as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.errors import UnsupportedError
from appliance.kernels.layouts.blind import NARROW, NONE, SHIFTS_OF_PAGE, SYMBOL_BITS, entries_of_page
from appliance.oblivious.pages import in_units

_LOAD = 0.99  # of all slots
_TRIES = 32  # shifts that are tried at once
_BATCH = 256  # buckets whose first shifts are tried at once; shifts at once where none of these fits
_MOST = 1 << 20  # pairs
_LEFT, _RIGHT, _SHIFT = 0x9E3779B1, 0x85EBCA77, 0x85EBCA6B  # as `code/oblivious/sweep` has them
_FIRST, _SECOND, _LAST = 0x7FEB352D, 0x846CA68B, 0xC2B2AE35

Words = NDArray[np.uint32]
Place = tuple[int, NDArray[np.int64]]  # a shift, and slots


class PairTable(NamedTuple):
    """The merges, as `TextPass` has them."""

    shifts: NDArray[np.int32]  # whole pages
    pairs: NDArray[np.int32]  # whole pages of units: see `SYMBOL_BITS`
    buckets: int
    narrow: bool  # whether a pair has two numbers


def single_merges(ranks: Mapping[str, int]) -> dict[str, int]:
    """One merge for each text that merges make: the last one of the text by itself. No other one
    ever comes about: what merges within a text before it is whole does so in any word that has it.
    """
    makes: dict[str, list[str]] = {}
    for merge in ranks:
        makes.setdefault(merge.replace(" ", ""), []).append(merge)
    kept = {merges[0] if len(merges) == 1 else last_merge(text, ranks) for text, merges in makes.items()}
    return {merge: ranks[merge] for merge in kept if merge is not None}


def last_merge(text: str, ranks: Mapping[str, int], joiner: str = " ") -> str | None:
    """The merge that makes a text whole, as "left right"; None where none does."""
    parts, last, none = list(text), None, len(ranks)
    while len(parts) > 1:
        pairs = [ranks.get(f"{left}{joiner}{right}", none) for left, right in pairwise(parts)]
        best = min(pairs)
        if best == none:
            return None
        at = pairs.index(best)
        last = f"{parts[at]} {parts[at + 1]}"
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return last


def symbols_of(ranks: Mapping[str, int], letters: Mapping[str, int]) -> dict[str, int]:
    """The symbol of each text: a byte's letter, or 256 and the rank of the merge that makes it."""
    symbols = dict(letters)
    for merge, rank in sorted(ranks.items(), key=lambda item: item[1]):
        symbols.setdefault(merge.replace(" ", ""), 256 + rank)
    return symbols


def pair_table(ranks: Mapping[str, int], symbols: Mapping[str, int]) -> PairTable:
    """The table of all merges whose two parts can come about. UnsupportedError where they are too
    many."""
    parts: dict[int, tuple[int, int]] = {}
    for merge, rank in sorted(ranks.items(), key=lambda item: item[1]):
        left, _, right = merge.partition(" ")
        if left in symbols and right in symbols:
            parts[256 + rank] = symbols[left], symbols[right]
    least: dict[tuple[int, int], int] = {}
    for symbol, two in parts.items():  # by rising rank
        for pair in _borders(parts, *two):
            least.setdefault(pair, symbol - 256)
    if len(least) > _MOST or max(symbols.values()) >> SYMBOL_BITS:
        raise UnsupportedError(f"the model's {len(ranks)} merges make {len(least)} pairs; allowed: {_MOST}",
                               hint='use another model, or privacy.memory_access = "open"')
    own = {pair: symbol - 256 for symbol, pair in parts.items()}
    rows = np.array([(*pair, own.get(pair, NONE), low) for pair, low in least.items()], np.int32).reshape(-1, 4)
    return _placed(rows, max(symbols.values()) < NARROW)


def _borders(parts: Mapping[int, tuple[int, int]], left: int, right: int) -> Iterator[tuple[int, int]]:
    """The two symbols at the border of a merge, at each depth of both of its parts."""
    ends, starts = _spine(parts, left, 1), _spine(parts, right, 0)
    return ((end, start) for end in ends for start in starts)


def _spine(parts: Mapping[int, tuple[int, int]], symbol: int, side: int) -> list[int]:
    """A symbol, its last (1) or first (0) part, of that again, and so on."""
    found = [symbol]
    while symbol in parts:
        symbol = parts[symbol][side]
        found.append(symbol)
    return found


def _mixed(x: Words) -> Words:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(_FIRST)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(_SECOND)
    return x ^ (x >> np.uint32(16))


def _slots(hashes: Words, shifts: Words, count: int) -> NDArray[np.int64]:
    x = (hashes ^ (shifts * np.uint32(_SHIFT))) * np.uint32(_LAST)
    x = x ^ (x >> np.uint32(15))
    return ((x.astype(np.uint64) * np.uint64(count)) >> np.uint64(32)).astype(np.int64)


def _placed(rows: NDArray[np.int32], narrow: bool) -> PairTable:
    """The rows in slots that a shift of each bucket makes free of collisions, the fullest bucket
    first."""
    left, right = rows[:, 0].astype(np.uint32), rows[:, 1].astype(np.uint32)
    entries = _narrow(rows) if narrow else _entries(rows)
    of_page = entries_of_page(entries.shape[1])
    count = max(-(-int(len(rows) / _LOAD) // of_page), 1) * of_page
    buckets = max(1 << max(len(rows) // 4 - 1, 1).bit_length(), SHIFTS_OF_PAGE)
    bucket = _mixed(left * np.uint32(_LEFT) + right * np.uint32(_RIGHT)) & np.uint32(buckets - 1)
    hashes = _mixed(right * np.uint32(_LEFT) + left * np.uint32(_RIGHT) + np.uint32(1))
    order = np.argsort(bucket, kind="stable")
    sizes = np.bincount(bucket, minlength=buckets)
    starts = np.cumsum(sizes) - sizes
    shifts, free = np.zeros(buckets, np.int32), np.ones(count, np.bool_)
    pairs = np.full((count, entries.shape[1]), -2, np.int32)
    for size in range(int(sizes.max()), 0, -1):
        numbers = np.flatnonzero(sizes == size)
        for some in np.array_split(numbers, max(-(-numbers.size // _BATCH), 1)):
            members = order[starts[some, None] + np.arange(size)]
            for number, each, found in zip(some, members, _first(hashes[members], free), strict=True):
                if found is None or not free[found[1]].all():  # another bucket of the batch has the slot
                    found = _shift(hashes[each], free)
                shifts[number], slots = found
                free[slots], pairs[slots] = False, entries[each]
    return PairTable(shifts, in_units(pairs), buckets, narrow)


def _entries(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows (left, right, rank, least) as a sweep finds them (n, 3)."""
    left, right, rank, least = rows.astype(np.uint32).T
    low, high = rank & np.uint32((1 << 32 - SYMBOL_BITS) - 1), rank >> np.uint32(32 - SYMBOL_BITS)
    words = np.stack([left | low << np.uint32(SYMBOL_BITS), right | high << np.uint32(SYMBOL_BITS), least], 1)
    return words.view(np.int32)


def _narrow(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """The same in 16 bits each (n, 2); `NARROW` is the rank of a pair without one."""
    return np.minimum(rows, NARROW).astype(np.uint16).view(np.int32)


def _first(hashes: Words, free: NDArray[np.bool_], start: int = 0, tries: int = _TRIES) -> list[Place | None]:
    """For each bucket's hashes (n, pairs), the first of some shifts that brings all to free slots,
    and these. (While these are free, it stays the first one: no slot becomes free again.)"""
    slots = _slots(hashes[:, None], np.arange(start, start + tries, dtype=np.uint32)[:, None], free.size)
    ordered = np.sort(slots, 2)
    fits = free[slots].all(2) & (ordered[..., 1:] != ordered[..., :-1]).all(2)
    return [(start + at, each[at]) if fit[at] else None
            for at, each, fit in zip(fits.argmax(1).tolist(), slots, fits, strict=True)]


def _shift(hashes: Words, free: NDArray[np.bool_]) -> Place:
    """The first shift of all, and the slots, for the pairs of one bucket."""
    for start in range(0, 1 << 24, _BATCH):
        if (found := _first(hashes[None], free, start, _BATCH)[0]) is not None:
            return found
    raise UnsupportedError("the model's merges have no table without collisions",
                           hint='use another model, or privacy.memory_access = "open"')
