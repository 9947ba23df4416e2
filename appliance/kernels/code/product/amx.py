"""Intel's AMX (Intel 64 manual, volume 1, chapter 18): its instructions, and what products by it
have in common.

The rows of a group are the columns of a matrix B. A record already holds them as TDPBSSD wants
them: 64 bytes with 4 neighbouring weights of each of 16 rows are one row of B. So a run of blocks
is unpacked into bytes in scratch memory, once for many tokens, and 16 tokens (or fewer:
`configure`) are the rows of a matrix A, straight from the activations. A product of registers is
exact, and all that follows are the float operations of `patch.py` in the same order, so every bit
is the same. `amx_blocks` does that for formats without sub-blocks, `amx_superblocks` for the
others.

Registers 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 weights. They and the scratch memory held
plaintext: `release` clears both.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.kernels.code.product.formats import FORMATS, Format, Super
from appliance.kernels.compiler.emit import I8, I32, I64, Code, Val, vector
from appliance.kernels.compiler.vector import i64, operation
from appliance.kernels.layouts.shapes import GROUP_ROWS

TOKENS = 16
"""Of a register."""

LANES = GROUP_ROWS
ROW = 64
"""Bytes of a row of a register."""

SUMS, ACTIVATIONS_IN, WEIGHTS_IN = (0, 1, 2, 3), (4, 5), (6, 7)
"""Matrix registers; Intel calls them tiles."""

BUFFER_NBYTES = TOKENS * ROW
"""Of a place in scratch memory for sums on their way to vector registers."""

BUFFERS, SUPER_BUFFERS = 8, 16
"""Such places in formats without sub-blocks, and with them."""

_LEAST = {"Q3_K": 3, "Q6_K": 3}
"""Tokens from which on unpacking is worth it, as measured: where they differ from 2."""

RUN = 8
"""Blocks that are unpacked at a time in formats without sub-blocks."""


def unpacked(fmt: Format) -> int:
    """Where in scratch memory unpacked weights begin."""
    return (SUPER_BUFFERS if isinstance(fmt, Super) else BUFFERS) * BUFFER_NBYTES


def most_tokens(format_name: str) -> int:
    """Tokens that unpacked weights are multiplied with before the next."""
    return 256 if isinstance(FORMATS[format_name], Super) else 128


def planes(fmt: Format) -> int:
    """Bytes of an unpacked weight, in units. (One byte has room for a product of -128 to 127; where
    weights have an offset, and products are -127 to 128, for its negative.)"""
    return 1 if fmt.most_scaled // fmt.unit <= (128 if fmt.offset else 127) else 2


def block_nbytes(fmt: Format) -> int:
    """Of an unpacked block."""
    return GROUP_ROWS * fmt.shape.elements * planes(fmt)


def _scratch_nbytes(format_name: str) -> int:
    fmt = FORMATS[format_name]
    return unpacked(fmt) + (2 if isinstance(fmt, Super) else RUN) * block_nbytes(fmt)


def least_tokens(format_name: str) -> int:
    """Tokens from which on a product takes this way."""
    return _LEAST.get(format_name, 2) if isinstance(FORMATS[format_name], Super) else TOKENS


class Registers:
    """The instructions, by registers' numbers."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def _call(self, name: str, *args: Val | int) -> None:
        self.code.call(f"llvm.x86.{name}", ir.VoidType(), *(
            self.code.constant(I8, arg) if isinstance(arg, int) else arg for arg in args))

    def _pointer(self, address: Val) -> Val:
        return Val(self.code, self.code.pointer(address, I8))

    def configure(self, address: Val) -> None:
        """LDTILECFG: shapes of all registers, from 64 bytes."""
        self._call("ldtilecfg", self._pointer(address))

    def release(self) -> None:
        """TILERELEASE: all registers are zero, and nothing of them is kept for a context switch."""
        self._call("tilerelease")

    def load(self, register: int, address: Val, stride: Val | int) -> None:
        """TILELOADD: rows `stride` bytes apart."""
        self._call("tileloadd64", register, self._pointer(address), self._long(stride))

    def store(self, register: int, address: Val) -> None:
        """TILESTORED: rows of 64 bytes, one after the other."""
        self._call("tilestored64", register, self._pointer(address), self._long(ROW))

    def clear(self, register: int) -> None:
        """TILEZERO."""
        self._call("tilezero", register)

    def product(self, sums: int, left: int, right: int, *, unsigned: bool = False) -> None:
        """TDPBSSD: sums += left x right, both of signed bytes; TDPBSUD, where those at the right
        are `unsigned`."""
        self._call("tdpbsud" if unsigned else "tdpbssd", sums, left, right)

    def _long(self, number: Val | int) -> Val:
        return self.code.constant(I64, number) if isinstance(number, int) else number


def scratch(format_name: str) -> Any:
    """The numba function `() -> address` of scratch memory in the caller's frame."""
    def take(code: Code) -> Val:
        return code.frame(_scratch_nbytes(format_name))
    return operation(i64)(take)


def configure(format_name: str) -> Any:
    """The numba function `(scratch, tokens)` that sets the registers' shapes, for at most TOKENS
    tokens."""
    fmt = FORMATS[format_name]
    columns = ROW if isinstance(fmt, Super) else 4 * fmt.chunks
    widths = [ROW] * len(SUMS) + [columns] * len(ACTIVATIONS_IN) + [ROW] * len(WEIGHTS_IN)
    table = bytearray(64)  # palette, start row, 14 reserved; bytes of a row (16 bits each); rows
    table[0] = 1
    for register, nbytes in enumerate(widths):
        table[16 + 2 * register] = nbytes
    weights = (columns // 4) * 0x0101 << 48

    def emit(code: Code, address: Val, tokens: Val) -> None:
        words = [int.from_bytes(table[at:at + 4], "little") for at in range(0, 64, 4)]
        code.store(address, Val(code, ir.Constant(vector(I32, 16), words)))
        code.store(address + 48, tokens * 0x010101010101 + weights)  # of registers 0 to 5, and of 6 and 7
        Registers(code).configure(address)
    return operation(types.void, i64, i64)(emit)


def release(format_name: str) -> Any:
    """The numba function `(scratch)` that clears registers and scratch memory."""
    def emit(code: Code, address: Val) -> None:
        Registers(code).release()
        code.clear(address, _scratch_nbytes(format_name))
    return operation(types.void, i64)(emit)
