"""The most that the CPU can do, by kernels of our own: bytes read, 8-bit products summed; and the
distance of threads.

Kernels run on the engine's thread pool, compiled for the engine's target, in the same process as
the engine, so the limits are those of the very threads and pages that the engine has.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from appliance.kernels.compiler import jit, vector  # noqa: F401  jit fixes numba's CPU first
from appliance.kernels.compiler.atomic import load, store
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.lower import Loader
from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.compiler.vector import (
    get_i64,
    i32x16,
    load_i32,
    operation,
    prefetch,
    splat_i32,
    store_i32,
)
from appliance.kernels.runtime import targets
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.signature import CSignature
from appliance.kernels.runtime.threads import Pool

BUFFER = 1 << 30
"""Bytes read in one pass: far more than any cache."""

READERS = ((0, 0), (4096, 0), (8192, 0), (2048, 1), (8192, 1), (8192, 2))
"""Distances of software prefetch that are tried, without work, with some, and with twice as much on each line; the best
reader counts. Some CPUs that only read run so far ahead that they wait longer: an Intel Xeon reads a fifth more with
some work in between, and up to a third more with twice that."""

_ROUNDS = 1 << 18
_HANDS = 1 << 13
_CHAINS, _CHAINS_FEW = 12, 5  # sums: latency 4 or 5, two ports
_DOT_PRODUCTS = 16 * 4  # of one round and chain


@operation(i32x16, i32x16, i32x16, i32x16)
def dot7(code: Code, total: Val, unsigned: Val, signed: Val) -> Val:
    """Per lane: total + 4 products of bytes 0..127 with bytes -127..127."""
    return code.dot7(total, unsigned, signed)


def _reader(ahead: int, work: int) -> Any:
    def read(thread: int, threads: int, arguments: int) -> None:
        """Sum `nbytes` from `address`, each thread a contiguous share; arguments (i64): address,
        nbytes, out."""
        share = get_i64(arguments + 8) // threads // 256 * 256
        start = get_i64(arguments) + thread * share
        a = b = c = d = e = f = splat_i32(0)
        position = start
        while position < start + share:
            if work:
                line = load_i32(position)
                a, b, c, d, e, f = a + line, b ^ line, c - line, d & line, e | line, f + (line ^ a)
                if work > 1:
                    a, b, c, d, e, f = a ^ line, b + line, c ^ line, d + line, e - line, f ^ (line + a)
                prefetch(position + ahead)
                position += 64
                continue
            if ahead:
                prefetch(position + ahead)
                prefetch(position + ahead + 64)
                prefetch(position + ahead + 128)
                prefetch(position + ahead + 192)
            a = a + load_i32(position)
            b = b + load_i32(position + 64)
            c = c + load_i32(position + 128)
            d = d + load_i32(position + 192)
            position += 256
        store_i32(get_i64(arguments + 16) + thread * 64, a + b + c + d + e + f)
    return read


def _pieces(ahead: int) -> Any:
    def read(thread: int, threads: int, arguments: int) -> None:
        """Sum pieces of memory one after the other, of each a contiguous share; arguments (i64): a
        list of address and bytes of each, how many, out."""
        a = b = c = d = splat_i32(0)
        for piece in range(get_i64(arguments + 8)):
            place = get_i64(arguments) + 16 * piece
            share = get_i64(place + 8) // threads // 256 * 256
            start = get_i64(place) + thread * share
            for position in range(start, start + share, 256):
                if ahead:
                    prefetch(position + ahead)
                    prefetch(position + ahead + 64)
                    prefetch(position + ahead + 128)
                    prefetch(position + ahead + 192)
                a = a + load_i32(position)
                b = b + load_i32(position + 64)
                c = c + load_i32(position + 128)
                d = d + load_i32(position + 192)
        store_i32(get_i64(arguments + 16) + thread * 64, a + b + c + d)
    return read


def _dots(thread: int, threads: int, arguments: int) -> None:
    """`rounds` of 12 independent dot products of registers; arguments (i64): address, rounds, out.
    """
    x, y = load_i32(get_i64(arguments)), load_i32(get_i64(arguments) + 64)
    a = b = c = d = e = f = g = h = i = j = k = m = splat_i32(0)
    left = get_i64(arguments + 8)
    while left > 0:
        a, b, c, d = dot7(a, x, y), dot7(b, x, y), dot7(c, x, y), dot7(d, x, y)
        e, f, g, h = dot7(e, x, y), dot7(f, x, y), dot7(g, x, y), dot7(h, x, y)
        i, j, k, m = dot7(i, x, y), dot7(j, x, y), dot7(k, x, y), dot7(m, x, y)
        left -= 1
    store_i32(get_i64(arguments + 16) + thread * 64, a + b + c + d + e + f + g + h + i + j + k + m)


def _dots_few(thread: int, threads: int, arguments: int) -> None:
    """`_dots` with 5 sums, for targets that need two registers for each. Where a dot product is
    several instructions, those on operands that never change would be done once: here each sum is
    an operand of the next one."""
    y = load_i32(get_i64(arguments) + 64)
    a = b = c = d = e = load_i32(get_i64(arguments))
    left = get_i64(arguments + 8)
    while left > 0:
        a, b, c, d, e = dot7(a, b, y), dot7(b, c, y), dot7(c, d, y), dot7(d, e, y), dot7(e, a, y)
        left -= 1
    store_i32(get_i64(arguments + 16) + thread * 64, a + b + c + d + e)


def _hand(thread: int, threads: int, arguments: int) -> None:
    """Threads 0 and 1 hand a word to each other; arguments (i64): address of the word, how often,
    nothing."""
    word, turn, last = get_i64(arguments), thread, 2 * get_i64(arguments + 8)
    while thread < 2 and turn < last:
        while load(word) != turn:
            pass
        store(word, np.int32(turn + 1))
        turn += 2


class Hardware:
    """Measures the limits of a pool's threads."""

    _made: Hardware | None = None

    @classmethod
    def of(cls, pool: Pool) -> Hardware:
        """The measure of this process: kernels are compiled and the buffer is filled once."""
        if cls._made is None:
            cls._made = cls()
        cls._made._pool = pool
        cls._made._out = Memory(64 * pool.threads)
        return cls._made

    def __init__(self) -> None:
        self._pool: Any = None
        self._loader = Loader()
        signature = CSignature.parse("void(i8,i8,i8)")
        self._readers = [self._loader.load(Kernel(f"read_{ahead}_{work}", signature, _reader(ahead, work)))
                         for ahead, work in READERS]
        self._pieces = [self._loader.load(Kernel(f"pieces_{ahead}", signature, _pieces(ahead)))
                        for ahead in sorted({ahead for ahead, work in READERS if not work})]
        self._dots = {count: self._loader.load(Kernel(code.__name__, signature, code))
                      for count, code in ((_CHAINS, _dots), (_CHAINS_FEW, _dots_few))
                      if count == _CHAINS_FEW or targets.compiling().vectors == "avx512vnni"}
        self._hand = self._loader.load(Kernel("hand", signature, _hand))
        self._arguments = Memory(64)
        self._out = Memory(64)
        self._buffer: Memory | None = None

    def _run(self, kernel: int, address: int, count: int) -> float:
        self._arguments.view("i8")[:3] = (address, count, self._out.address)
        start = time.perf_counter()
        self._pool.run(kernel, self._arguments.address)
        return time.perf_counter() - start

    def bandwidth(self) -> float:
        """Bytes a second that the pool's threads read together over three passes, in the best way
        to read."""
        if self._buffer is None:
            self._buffer = Memory(BUFFER, huge=True)
            self._buffer.view("u1")[:] = 1  # every page is real
        buffer = self._buffer.address
        return 3 * BUFFER / min(sum(self._run(kernel, buffer, BUFFER) for _ in range(3)) for kernel in self._readers)

    def seconds(self, pieces: Sequence[tuple[int, int]]) -> float:
        """Seconds in which the pool's threads read pieces of memory, of so many bytes from an
        address on, in their order and in the best way to read. The threads do not wait for each
        other between pieces."""
        table = Memory(16 * len(pieces))
        table.view("i8").reshape(-1, 2)[:] = pieces
        return min(self._run(kernel, table.address, len(pieces)) for kernel in self._pieces)

    def line(self) -> float:
        """Seconds that a line of memory takes from one of two threads to the other, best of five.
        Cores of one die are some 50 ns from each other, those of two dies 200; where threads run is
        not for a guest to say, and the host may change it at any time."""
        word = Memory(64)
        best = float("inf")
        for _ in range(5):
            word.view("i4")[0] = 0
            best = min(best, self._run(self._hand, word.address, _HANDS) / (2 * _HANDS))
        return best

    def dot_peak(self) -> float:
        """8-bit multiply-and-add operations (two each) a second, all threads, best of five for each
        number of sums."""
        data = Memory(128)
        data.view("u1")[:] = 1
        best = max(chains / self._run(kernel, data.address, _ROUNDS) for chains, kernel in self._dots.items()
                   for _ in range(5))
        return 2 * _DOT_PRODUCTS * _ROUNDS * self._pool.threads * best
