"""Sweeps over tables: each page is read for every 16 places, and the right entry's numbers stay.

With AVX-512, all lines of a page are read, whatever is looked for: registers hold a unit of the
table, and a shuffle takes an entry out of them. Else all lanes load from the page at hand. A lane
whose entry lies elsewhere loads the page's first entry, which is dropped: which line of a page is
read depends on the entries then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.kernels.compiler.emit import I32, I64, Code, Val, vector
from appliance.kernels.compiler.vector import LANES, calling, i32, i32x16, i64, operation
from appliance.kernels.layouts.blind import NARROW, NONE, SYMBOL_BITS, UNIT, entries_of_page

I1 = ir.IntType(1)
PAGE, LINE = 4096, 64
_LEFT, _RIGHT, _SHIFT = -1640531535, -2048144777, -2048144789  # odd numbers with mixed bits
_FIRST, _SECOND, _LAST = 2146121005, -2073254261, -1028477387
_TOGETHER = 4  # vectors of places that a unit is read for


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


def loaded(code: Code, *values: Val) -> list[Val]:
    """Emit that loads take place. With AVX-512, a number that counts in some lanes only would be
    loaded under their mask, which touches no page where there are none."""
    return code.pin(list(values)) if code.target == "avx512vnni" else list(values)


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


def _nothing(code: Code, table: Val) -> Val:
    """Emit zeros of which the compiler knows nothing: the place of a table in its page. Without
    them, lanes that keep what was there make a masked store, which touches no page where none of
    them changes."""
    return code.splat((table & (PAGE - 1)).convert("trunc", I32), LANES)


def _shuffled(code: Code, base: Val, planes: int, places: Sequence[Val], found: list[list[Val]]) -> None:
    """Emit a page, unit by unit."""
    numbers = [place >> (UNIT.bit_length() - 1) for place in places]
    for unit in range(entries_of_page(planes) // UNIT):
        for plane in range(planes):
            at = base + 4 * UNIT * (unit * planes + plane)
            low, high = code.load(at, I32, LANES), code.load(at + LINE, I32, LANES)
            for number, place, rows in zip(numbers, places, found, strict=True):
                entry = code.call("llvm.x86.avx512.vpermi2var.d.512", low.type, low, place, high)
                rows[plane] = number.compare("==", unit).select(entry, rows[plane])
        kept = iter(code.pin([value for rows in found for value in rows]))  # else all shuffles come first
        for rows in found:
            rows[:] = [next(kept) for _ in rows]


def _gathered(code: Code, base: Val, planes: int, places: Sequence[Val], found: list[list[Val]]) -> None:
    """Emit a page by loads of each lane."""
    for place, rows in zip(places, found, strict=True):
        here = place.compare_unsigned("<", place.like(entries_of_page(planes)))
        offset = (place >> (UNIT.bit_length() - 1)) * (4 * UNIT * planes) + ((place & (UNIT - 1)) << 2)
        for plane in range(planes):
            entry = _gather(code, base + 4 * UNIT * plane, here.select(offset, offset.like(0)), I32)
            rows[plane] = here.select(entry, rows[plane])


def _sweep(planes: int, name: str) -> Any:
    """A sweep for so many numbers of an entry: `(table, pages, indices, bytes of these, *to)`."""
    def sweep(code: Code, values: list[Val]) -> None:
        table, pages, index, nbytes, *to = values
        page_of = _shuffled if code.target == "avx512vnni" else _gathered

        def group(page: Val, at: Val) -> None:
            lines = [at + LINE * number for number in range(_TOGETHER)]
            first = code.splat((page * entries_of_page(planes)).convert("trunc", I32), LANES)
            places = [code.load(index + line, I32, LANES) - first for line in lines]
            found = [[each + _nothing(code, table) for each in loaded(
                code, *(code.load(row + line, I32, LANES) for row in to))] for line in lines]
            page_of(code, table + page * PAGE, planes, places, found)
            for line, rows in zip(lines, found, strict=True):
                for row, value in zip(to, rows, strict=True):
                    code.store(row + line, value)

        step = LINE * _TOGETHER
        code.loop(pages, lambda page: code.loop(Val(code, code.b.udiv(nbytes.ir, nbytes.like(step).ir)),
                                                lambda number: group(page, number * step)))

    return calling(name, sweep, *[i64] * (4 + planes))


sweep_numbers, sweep_narrow, sweep_pairs = (
    _sweep(planes, name) for planes, name in ((1, "sweep_numbers"), (2, "sweep_narrow"), (3, "sweep_pairs")))


@operation(types.void, i64, i64, i64, i64, i64)
def match_pairs(code: Code, left: Val, right: Val, first: Val, second: Val, least: Val) -> None:
    """Rank and least of 16 pairs in the place of what their slots have (see `PairTable`): NONE
    where this is another pair."""
    a, b, reach, one, other = loaded(code, *(_load(code, row) for row in (first, second, least, left, right)))
    symbols = (1 << SYMBOL_BITS) - 1
    hit = Val(code, code.b.and_((a & symbols).compare("==", one).ir, (b & symbols).compare("==", other).ir))
    rank = (a >> SYMBOL_BITS) | ((b >> SYMBOL_BITS) << (32 - SYMBOL_BITS))
    code.store(first, hit.select(rank, rank.like(NONE)))
    code.store(least, hit.select(reach, reach.like(NONE)))


@operation(types.void, i64, i64, i64, i64)
def match_narrow(code: Code, left: Val, right: Val, first: Val, least: Val) -> None:
    """The same of pairs in two numbers: the symbols become the rank."""
    both, last, one, other = loaded(code, *(_load(code, row) for row in (first, least, left, right)))
    hit, rank = both.compare("==", (one & NARROW) | (other << 16)), last & NARROW
    ranked = Val(code, code.b.and_(hit.ir, rank.compare("!=", rank.like(NARROW)).ir))
    code.store(first, ranked.select(rank, rank.like(NONE)))
    code.store(least, hit.select(last >> 16, last.like(NONE)))


@operation(i32x16, i32x16, i32, i32, i32x16)
def from_on(code: Code, points: Val, first: Val, value: Val, before: Val) -> Val:
    """`value` in the lanes that are `first` or more, else what was before."""
    return points.compare(">=", code.splat(first, LANES)).select(code.splat(value, LANES), before)


@operation(i64, types.boolean, i64, i64)
def pick(code: Code, condition: Val, yes: Val, no: Val) -> Val:
    """`yes` where a condition holds, else `no`, without a jump: a mask takes it, of whose bits LLVM
    knows nothing."""
    kind = ir.FunctionType(I64, [I64])
    mask = code.b.call(ir.InlineAsm(kind, "", "=r,0"), [code.b.neg(condition.convert("zext", I64).ir)])
    return no ^ ((yes ^ no) & Val(code, mask))
