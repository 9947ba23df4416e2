"""Sweeps over tables: each page is read for every 16 entries, and the right one's value stays.

All lanes load from the page at hand. A lane whose entry lies elsewhere loads the page's first
entry, which is dropped. So the order of pages is the same for all contents. Which line of a page
is read does depend on them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.kernels.compiler.emit import I32, I64, Code, Val, vector
from appliance.kernels.compiler.vector import LANES, i32, i32x16, i64, operation

I1 = ir.IntType(1)
_LEFT, _RIGHT, _SHIFT = -1640531535, -2048144777, -2048144789  # odd numbers with mixed bits
_FIRST, _SECOND, _LAST = 2146121005, -2073254261, -1028477387


def _gather(code: Code, base: Val, offsets: Val, element: Any) -> Val:
    """Emit a load of each lane, from `base` and an offset in bytes."""
    lanes, bits = offsets.lanes, element.width
    places = code.splat(base, lanes) + offsets.convert("zext", I64)
    pointers = ir.VectorType(ir.PointerType(element), lanes)
    kind = vector(element, lanes)
    every, nothing = code.constant(vector(I1, lanes), 1), code.constant(kind, 0)
    return code.call(f"llvm.masked.gather.v{lanes}i{bits}.v{lanes}p0", kind,
                     Val(code, code.b.inttoptr(places.ir, pointers)), code.constant(I32, 4), every, nothing)


def _mixed(x: Val) -> Val:
    """Emit a mix of the bits of each lane."""
    x = (x ^ (x >> 16)) * _FIRST
    x = (x ^ (x >> 15)) * _SECOND
    return x ^ (x >> 16)


def _load(code: Code, address: Val) -> Val:
    return code.load(address, I32, LANES)


@operation(types.void, i64, i64, i64, i64, i64)
def hash_pairs(code: Code, left: Val, right: Val, buckets: Val, bucket: Val, to: Val) -> None:
    """The bucket of 16 pairs, of so many (a power of two), and a second hash."""
    a, b = _load(code, left), _load(code, right)
    mask = code.splat(buckets.convert("trunc", I32), LANES) - 1
    code.store(bucket, _mixed(a * _LEFT + b * _RIGHT) & mask)
    code.store(to, _mixed(b * _LEFT + a * _RIGHT + 1))


@operation(types.void, i64, i64, i64, i64)
def place_pairs(code: Code, hashes: Val, shift: Val, slots: Val, to: Val) -> None:
    """The slot of 16 pairs, of so many, by hash and by what their bucket is shifted."""
    x = (_load(code, hashes) ^ (_load(code, shift) * _SHIFT)) * _LAST
    x = x ^ (x >> 15)
    wide = x.convert("zext", I64) * code.splat(slots, LANES)
    code.store(to, (wide >> 32).convert("trunc", I32))


def _inside(code: Code, index: Val, page: Val, bits: int) -> tuple[Val, Val]:
    """Emit the mask of indices on a page of 2^`bits` entries, and their places there, else 0."""
    here = (index >> bits).compare("==", code.splat(page.convert("trunc", I32), LANES))
    return here, here.select(index & ((1 << bits) - 1), index.like(0))


def _nothing(code: Code, table: Val, lanes: int) -> Val:
    """Emit zeros of which the compiler knows nothing: the place of a table in its page. Without
    them, lanes that keep what was there make a masked store, which touches no page where none of
    them changes."""
    return code.splat((table & 4095).convert("trunc", I32), lanes)


@operation(types.void, i64, i64, i64, i64)
def sweep_numbers(code: Code, table: Val, page: Val, index: Val, to: Val) -> None:
    """One page of int32 for 16 indices."""
    here, place = _inside(code, _load(code, index), page, 10)
    found = _gather(code, table + (page << 12), place << 2, I32)
    code.store(to, here.select(found, _load(code, to) + _nothing(code, table, LANES)))


@operation(types.void, i64, i64, i64, i64, i64, i64, i64)
def sweep_pairs(code: Code, table: Val, page: Val, slot: Val, left: Val, right: Val, rank: Val, least: Val) -> None:
    """One page of pairs for 16 slots."""
    here, place = _inside(code, _load(code, slot), page, 8)
    for half in range(2):
        lanes = list(range(8 * half, 8 * half + 8))
        offsets, base = place.shuffle(lanes) << 4, table + (page << 12)
        at = 32 * half
        a, b = (code.load(side + at, I32, 8).convert("zext", I64) for side in (left, right))
        same = _gather(code, base, offsets, I64).compare("==", a | (b << 32))
        hit = Val(code, code.b.and_(same.ir, here.shuffle(lanes).ir))
        values = _gather(code, base + 8, offsets, I64)
        for to, value in ((rank + at, values), (least + at, values >> 32)):
            before = code.load(to, I32, 8) + _nothing(code, table, 8)
            code.store(to, hit.select(value.convert("trunc", I32), before))


@operation(i32x16, i32x16, i32, i32, i32x16)
def from_on(code: Code, points: Val, first: Val, value: Val, before: Val) -> Val:
    """`value` in the lanes that are `first` or more, else what was before."""
    return points.compare(">=", code.splat(first, LANES)).select(code.splat(value, LANES), before)
