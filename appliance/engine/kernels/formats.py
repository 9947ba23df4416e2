"""How each block format turns into integer dot products: the one description that product kernels are emitted from.

A record holds one block of 16 rows (`appliance.models.layout` gives its order). A format cuts it into sub-blocks;
a sub-block is a few chunks, a chunk 4 neighbouring weights of each row as bytes in 32-bit lanes. For every sub-block
the emitter (`tile.py`) computes

    integer = start + sum over chunks of dot(chunk, activations)          exact
    total   = integer                    in formats with one sub-block
    total   = fma(float(integer), float(scale of the sub-block), total)   in sub-block order

and at the end of the block `finish` adds it to the row's result. This order never varies, so bits never do.
`Rows` reads one record; offsets are bytes of a record of 16 rows, as in the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from appliance.engine.kernels.emit import F32, I16, I32, Code, Val
from appliance.engine.kernels.shapes import (
    Q32_MINUS8,
    Q32_MINUS16,
    Q32_MINUS128,
    Q32_SCALE,
    Q32_SUM,
    Q256_HIGH16,
    Q256_HIGH32,
    Q256_LOW16,
    Q256_LOW32,
    Q256_MINUS32,
    Q256_SCALE,
    SHAPES,
)

NIBBLES, PAIRS, BYTE = 0x0F0F0F0F, 0x03030303, 0xFF


class Rows:
    """A record of 16 rows, or `lanes` of them."""

    def __init__(self, code: Code, record: Val, first_row: Val | int, lanes: int, ahead: int = 0) -> None:
        """`record` is its address, `first_row` the row of lane 0; each line read is prefetched `ahead` bytes on."""
        self.code, self.record, self.lanes, self.ahead = code, record, lanes, ahead
        self._first = first_row if isinstance(first_row, Val) else code.constant(record.type, first_row)
        self._lines: set[int] = set()

    def _address(self, offset: int, unit: int) -> Val:
        for line in range(offset // 64, (offset + 16 * unit - 1) // 64 + 1):
            if self.ahead and line not in self._lines:
                self._lines.add(line)
                self.code.prefetch(self.record + (64 * line + self.ahead))
        return self.record + self._first * unit + offset

    def words(self, offset: int) -> Val:
        """4 bytes of each row as int32."""
        return self.code.load(self._address(offset, 4), I32, self.lanes)

    def halves(self, offset: int) -> Val:
        """A binary16 of each row as float32."""
        return self.code.half_to_float(self.code.load(self._address(offset, 2), I16, self.lanes))

    def brains(self, offset: int) -> Val:
        """A bfloat16 of each row as float32."""
        return (self.code.load(self._address(offset, 2), I16, self.lanes).convert("zext", I32) << 16).bits(F32)

    def floats(self, offset: int) -> Val:
        """A float32 of each row."""
        return self.code.load(self._address(offset, 4), F32, self.lanes)


class Tokens:
    """A block of activations of one tile of tokens."""

    def __init__(self, code: Code, block: Val, tokens: int, lanes: int) -> None:
        self.code, self.block, self.tokens, self.lanes = code, block, tokens, lanes

    def integer(self, field: int, token: int) -> Val:
        """A field in every lane, as int32 or 4 bytes."""
        return self.code.broadcast(self.block + 4 * (field * self.tokens + token), I32, self.lanes)

    def float(self, field: int, token: int) -> Val:
        """A field in every lane, as float32."""
        return self.code.broadcast(self.block + 4 * (field * self.tokens + token), F32, self.lanes)


def byte(words: Val, index: int) -> Val:
    """Byte `index` of each lane as 0..255."""
    shifted = words >> (8 * index)
    return shifted if index == 3 else shifted & BYTE


def signed_byte(words: Val, index: int) -> Val:
    """Byte `index` of each lane as -128..127."""
    return (words << (24 - 8 * index)).sar(24)


class Format:
    """One block format: `subblocks` of `chunks` chunks; weights 0..127, or signed bytes xor 0x80 where `wide`."""

    subblocks = 1
    chunks = 8
    wide = False
    start: int | None = None  # activation field that an integer starts from (one per sub-block from there on)

    def __init__(self, name: str) -> None:
        self.shape = SHAPES[name]

    def field(self, j: int, c: int) -> int:
        """The activation field with the 4 columns of chunk c of sub-block j."""
        return j * self.chunks + c

    def start_field(self, j: int) -> int | None:
        """The activation field that the integer of sub-block j starts from; None for 0."""
        return self.start

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Chunk c of sub-block j: 4 weights of each row."""
        raise NotImplementedError

    def scale(self, rows: Rows, j: int) -> Val | None:
        """The integer scale of sub-block j; None where there is none."""
        return None

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """Add a block's total (float32) to the result: result + d * total * activation scale."""
        scaled = rows.halves(0) * total
        return rows.code.fma(scaled, tokens.float(Q32_SCALE, token), result)


class Small(Format):
    """Blocks of 32: a scale d at the start, Q4_1 and Q5_1 with a minimum m after it; `quants` is where quants lie."""

    def __init__(self, name: str, quants: int, start: int | None, minimum: bool = False, high: int | None = None,
                 bits: int = 4) -> None:
        super().__init__(name)
        self.quants, self.start, self.minimum, self.high, self.wide = quants, start, minimum, high, bits == 8

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Low nibbles are weights 0..15, high nibbles 16..31; fifth bits come as planes; 8-bit weights are whole."""
        if self.wide:
            return rows.words(self.quants + 64 * c)
        nibbles = (rows.words(self.quants + 64 * (c % 4)) >> (4 * (c // 4))) & NIBBLES
        if self.high is None:
            return nibbles
        planes = rows.words(self.high)
        fifth = planes << (4 - c) if c < 4 else planes >> (c - 4)
        return nibbles | (fifth & 0x10101010)

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """result + d * total * scale (+ m * sum)."""
        result = super().finish(rows, tokens, token, total, result)
        if not self.minimum:
            return result
        return rows.code.fma(rows.halves(32), tokens.float(Q32_SUM, token), result)


class Super(Format):
    """Blocks of 256 with sub-block scales."""

    def minima(self, rows: Rows) -> tuple[list[Val], int, int] | None:
        """Words of 4 minima each, and the activation fields of high and low sums; None without minima."""
        return None

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """result + scale * (d * total - dmin * sum of minima times activation sums)."""
        code, scaled = rows.code, rows.halves(0) * total
        found = self.minima(rows)
        if found is not None:
            words, high, low = found
            integer = words[0].like(0)
            for index, word in enumerate(words):
                integer = code.dot7(integer, word, tokens.integer(high + index, token))
            integer = integer << 7
            for index, word in enumerate(words):
                integer = code.dot7(integer, word, tokens.integer(low + index, token))
            scaled = scaled - rows.halves(32) * integer.convert("sitofp", F32)
        return code.fma(scaled, tokens.float(Q256_SCALE, token), result)


class Q2K(Super):
    """16 sub-blocks of 16, scale and minimum in a nibble each."""

    subblocks, chunks = 16, 4

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Sub-block j = 8 n + 2 i + h takes bit pair i of bytes 32 n + 16 h on."""
        n, i, h = j // 8, j // 2 % 4, j % 2
        return (rows.words(320 + 64 * (8 * n + 4 * h + c)) >> (2 * i)) & PAIRS

    def scale(self, rows: Rows, j: int) -> Val:
        """Low nibble of scale byte j."""
        return (rows.words(64 + 64 * (j // 4)) >> (8 * (j % 4))) & 15

    def minima(self, rows: Rows) -> tuple[list[Val], int, int]:
        """High nibbles of the scale bytes."""
        return [(rows.words(64 + 64 * i) >> 4) & NIBBLES for i in range(4)], Q256_HIGH16, Q256_LOW16


class Q3K(Super):
    """16 sub-blocks of 16; weights 0..7 stand for -4..3. They are kept in bits 3 to 5, so that the start is -32 times
    the activation sum as in Q6_K, and the scale is divided by 8."""

    subblocks, chunks = 16, 4

    def start_field(self, j: int) -> int:
        """-32 times the sum of the sub-block's activations."""
        return Q256_MINUS32 + j

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Low bit pairs as in Q2_K; the high bit is bit j / 2 of the mask."""
        n, i, h = j // 8, j // 2 % 4, j % 2
        low, high = rows.words(736 + 64 * (8 * n + 4 * h + c)), rows.words(224 + 64 * (4 * h + c))
        low = low << (3 - 2 * i) if i < 2 else low >> (2 * i - 3)
        bit = 4 * n + i
        high = high << (5 - bit) if bit < 5 else high >> (bit - 5)
        return (low & 0x18181818) | (high & 0x20202020)

    def scale(self, rows: Rows, j: int) -> Val:
        """6 bits less 32: the low nibble in byte j % 8, its upper half for j >= 8; the high pair in the last word."""
        nibble = (rows.words(32 + 64 * (j // 4 % 2)) >> (8 * (j % 4) + 4 * (j // 8))) & 15
        pair = (rows.words(160) >> (8 * (j % 4) + 2 * (j // 4))) & 3
        return (nibble | (pair << 4)) - 32

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """As Q6_K, with an eighth of d."""
        return rows.code.fma(rows.halves(0) * 0.125 * total, tokens.float(Q256_SCALE, token), result)


class Q4K(Super):
    """8 sub-blocks of 32, 6-bit scales and minima in three words; Q5_K adds a plane of fifth bits."""

    subblocks, chunks = 8, 8

    def __init__(self, name: str, high: int | None = None, quants: int = 256) -> None:
        super().__init__(name)
        self.high, self.quants = high, quants

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Sub-blocks come in pairs: low and high nibbles of 32 bytes; fifth bit j."""
        nibbles = (rows.words(self.quants + 64 * (8 * (j // 2) + c)) >> (4 * (j % 2))) & NIBBLES
        if self.high is None:
            return nibbles
        mask = rows.words(self.high + 64 * c)
        fifth = mask << (4 - j) if j < 4 else mask >> (j - 4)
        return nibbles | (fifth & 0x10101010)

    def scale(self, rows: Rows, j: int) -> Val:
        """6 bits of byte j; from 4 on a low nibble of the third word and the top bits of byte j - 4."""
        if j < 4:
            return (rows.words(64) >> (8 * j)) & 63
        low, top = rows.words(192) >> (8 * (j - 4)), rows.words(64) >> (8 * (j - 4) + 2)
        return (low & 15) | (top & 48)

    def minima(self, rows: Rows) -> tuple[list[Val], int, int]:
        """As the scales, from the second word and the high nibbles of the third."""
        second, third = rows.words(128), rows.words(192)
        words = [second & 0x3F3F3F3F, ((third >> 4) & NIBBLES) | ((second >> 2) & 0x30303030)]
        return words, Q256_HIGH32, Q256_LOW32


class Q6K(Super):
    """16 sub-blocks of 16 in four quarters of 64 weights; weights 0..63 stand for -32..31, scales are signed bytes."""

    subblocks, chunks = 16, 4

    def natural(self, j: int) -> int:
        """Sub-block j in the order of columns: quarter q = 2 n + h holds sub-blocks 8 n + h + 0, 2, 4, 6."""
        quarter, i = j // 4, j % 4
        return 8 * (quarter // 2) + quarter % 2 + 2 * i

    def field(self, j: int, c: int) -> int:
        """Chunks in column order of the sub-block."""
        return 4 * self.natural(j) + c

    def start_field(self, j: int) -> int:
        """-32 times the sum of the sub-block's activations."""
        return Q256_MINUS32 + self.natural(j)

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Part i of a quarter: nibble word set i % 2, nibble half i / 2, bit pair i of the high bits."""
        base, i = 32 + 832 * (j // 4), j % 4
        high, low = rows.words(base + 64 + 64 * c), rows.words(base + 320 + 256 * (i % 2) + 64 * c)
        high = high << (4 - 2 * i) if i < 2 else high >> (2 * i - 4)
        return ((low >> (4 * (i // 2))) & NIBBLES) | (high & 0x30303030)

    def scale(self, rows: Rows, j: int) -> Val:
        """Signed byte i of the quarter's scale word."""
        return signed_byte(rows.words(32 + 832 * (j // 4)), j % 4)


FORMATS: Mapping[str, Format] = MappingProxyType({fmt.shape.name: fmt for fmt in (
    Small("Q4_0", 32, Q32_MINUS8),
    Small("Q4_1", 64, None, minimum=True),
    Small("Q5_0", 96, Q32_MINUS16, high=32),
    Small("Q5_1", 128, None, minimum=True, high=64),
    Small("Q8_0", 32, Q32_MINUS128, bits=8),
    Small("Q8_1", 64, Q32_MINUS128, bits=8),
    Q2K("Q2_K"), Q3K("Q3_K"), Q4K("Q4_K"), Q4K("Q5_K", high=256, quants=768), Q6K("Q6_K"),
)})
