"""How each block format turns into integer dot products: the one description that product kernels
are emitted from.

A record holds one block of 16 rows (`appliance.models.file.layout` gives its order). A format cuts
it into rounds of a few sub-blocks; a sub-block is a few chunks, a chunk 4 neighbouring weights of
each row as bytes in 32-bit lanes. For every sub-block the emitter (`patch.py`) computes

    integer = start + sum over chunks of dot(chunk, activations)          exact
and for the block

    total = float(sum over sub-blocks of integer * scale)                 exact until it is rounded once, here

(no scale in formats without sub-blocks; at most 256 * 127 * 4096 in magnitude), which `finish` adds
to the row's result. Its order never varies, so bits never do. Floats add as exactly as integers up
to 2^24, and faster on some CPUs. It is done so (`chains`) where a block has no more than that, or
each half of it, whose sum is then rounded once. `Rows` reads one record; offsets are bytes of a
record of 16 rows, as in the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from appliance.kernels.compiler.emit import F32, I8, I16, I32, Code, Locals, Val, vector
from appliance.kernels.layouts import shapes
from appliance.kernels.layouts.shapes import SHAPES

NIBBLES, PAIRS, BYTE = 0x0F0F0F0F, 0x03030303, 0xFF

# Weights by their nibbles: of IQ4_NL and IQ4_XS (`kvalues_iq4nl` of ggml), and twice the numbers of
# E2M1 (OCP Microscaling Formats 1.0), of MXFP4.
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Rows:
    """A record of 16 rows, or `lanes` of them."""

    def __init__(self, code: Code, record: Val, first_row: Val, lanes: int) -> None:
        """`record` is its address, `first_row` the row of lane 0."""
        self.code, self.record, self.first_row, self.lanes = code, record, first_row, lanes
        self.saved: Any = None  # what a format prepared for the rounds of a block

    def moved(self, offset: Val) -> Rows:
        """The same rows, `offset` bytes further on in the record."""
        rows = Rows(self.code, self.record + offset, self.first_row, self.lanes)
        rows.saved = self.saved
        return rows

    def _address(self, offset: int, unit: int) -> Val:
        return self.record + self.first_row * unit + offset

    def words(self, offset: int) -> Val:
        """4 bytes of each row as int32."""
        return self.code.load(self._address(offset, 4), I32, self.lanes)

    def halves(self, offset: int) -> Val:
        """A binary16 of each row as float32."""
        return self.code.half_to_float(self.code.load(self._address(offset, 2), I16, self.lanes))

    def shorts(self, offset: int) -> Val:
        """2 bytes of each row as int32, without a sign."""
        return self.code.load(self._address(offset, 2), I16, self.lanes).convert("zext", I32)

    def bytes(self, offset: int) -> Val:
        """A byte of each row as int32, without a sign."""
        return self.code.load(self._address(offset, 1), I8, self.lanes).convert("zext", I32)

    def powers(self, offset: int) -> Val:
        """A byte e of each row as the float32 2^(e - 128)."""
        e = self.bytes(offset)
        # 2^-128 and 2^-127 are subnormal: there, and only there, the second number is larger.
        return self.code.larger((e - 1) << 23, (e + 1) << 21).bits(F32)

    def brains(self, offset: int) -> Val:
        """A bfloat16 of each row as float32."""
        return (self.code.load(self._address(offset, 2), I16, self.lanes).convert("zext", I32) << 16).bits(F32)

    def floats(self, offset: int) -> Val:
        """A float32 of each row."""
        return self.code.load(self._address(offset, 4), F32, self.lanes)


class Tokens:
    """A block of activations of one patch of `tokens` tokens, `apart` bytes from one to the next.
    """

    def __init__(self, code: Code, block: Val, apart: Val | int, tokens: int, lanes: int) -> None:
        self.code, self.block, self.apart, self.tokens, self.lanes = code, block, apart, tokens, lanes

    def moved(self, fields: Val | int) -> Tokens:
        """The same tokens, some fields further on."""
        return Tokens(self.code, self.block + fields * 4, self.apart, self.tokens, self.lanes)

    def integer(self, field: int, token: int) -> Val:
        """A field in every lane, as int32 or 4 bytes."""
        return self.code.broadcast(self._address(field, token), I32, self.lanes)

    def float(self, field: int, token: int) -> Val:
        """A field in every lane, as float32."""
        return self.code.broadcast(self._address(field, token), F32, self.lanes)

    def _address(self, field: int, token: int) -> Val:
        return self.block + self.apart * token + 4 * field


def bit_to(words: Val, bit: int, place: int) -> Val:
    """One bit of every byte, moved to another place; the other bits are 0."""
    moved = words << (place - bit) if bit < place else words >> (bit - place)
    return moved & ((1 << place) * 0x01010101)


class Format:
    """One block format: `rounds` times `subblocks` sub-blocks of `chunks` chunks. The rounds are a
    loop in the kernel (code that outgrows the cache of decoded instructions runs at half the
    speed); the rest is unrolled.

    Weights are bytes 0..127, or signed bytes xor 0x80 where `wide`, and by `offset` more than the
    signed ones meant.
    """

    rounds = 1
    subblocks = 1
    chunks = 8
    wide = False
    offset = 0
    largest = 15  # weight, in magnitude
    unit = 1  # weights are multiples of it
    most_scaled = 127  # weight less offset times scale, in magnitude
    again = True  # lines of weights are asked for a second time with AMX (`patch.Prefetch`)
    in_order = True  # the lines of a block are read in the order of memory (`product._whole_rows`)
    pairs_ask = False  # two tokens ask for lines far ahead all the same (as there)
    sums = 1  # fields of sums of activations for a sub-block
    chains = 1  # equal parts of a block that floats add up exactly, at most two; 0: integers add up

    def __init__(self, name: str) -> None:
        self.shape = SHAPES[name]

    def begin(self, rows: Rows) -> None:
        """Prepare what all rounds of a block need (`rows.saved`)."""

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """The rows as round `number` sees them; offsets below are from there on."""
        return rows

    def first_field(self, number: Any) -> Any:
        """Number of the sub-block, in column order, that sub-block 0 of a round is: a `Val`, or an
        int for one."""
        return number * self.subblocks

    def field(self, j: int, c: int) -> int:
        """The activation field with the columns of chunk c of sub-block j, counted from the round's
        first."""
        return j * self.chunks + c

    def start_field(self, j: int) -> int | None:
        """The activation field that the integer of sub-block j starts from, counted likewise; None
        for 0."""
        return None

    def start_value(self, tokens: Tokens, j: int, token: int) -> Val | None:
        """The number that the integer of sub-block j starts from; None for 0. `tokens` begin at the
        round's first field of sums."""
        field = self.start_field(j)
        return None if field is None else tokens.integer(field, token)

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Chunk c of sub-block j of the round: 4 weights of each row."""
        raise NotImplementedError

    def factor(self, rows: Rows) -> Val:
        """The scale of a block (float32)."""
        return rows.halves(0)

    def scaled(self, rows: Rows, total: Val, tokens: int) -> Val:
        """A total times the factor, one of those of so many tokens."""
        return self.factor(rows) * total

    def scale(self, rows: Rows, j: int) -> Val | None:
        """The integer scale of sub-block j of the round; None where there is none."""
        return None

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """Add a block's total (float32) to the result: result + d * total * activation scale."""
        scaled = self.scaled(rows, total, tokens.tokens)
        return rows.code.fma(scaled, tokens.float(shapes.Q32_SCALE, token), result)


class Small(Format):
    """Blocks of 32: a scale d at the start, Q4_1 and Q5_1 with a minimum m after it; `quants` is
    where quants lie."""

    def __init__(self, name: str, quants: int, start: int | None, minimum: bool = False, high: int | None = None,
                 bits: int = 4) -> None:
        super().__init__(name)
        self.quants, self.start, self.minimum, self.high, self.wide = quants, start, minimum, high, bits == 8
        self.offset = {None: 0, shapes.Q32_MINUS8: 8, shapes.Q32_MINUS16: 16, shapes.Q32_MINUS128: 128}[start]
        self.largest = 128 if self.wide else 15 if high is None else 31

    def start_field(self, j: int) -> int | None:
        """A multiple of the sum of activations, for weights with an offset."""
        return self.start

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Low nibbles are weights 0..15, high nibbles 16..31; fifth bits come as planes; 8-bit
        weights are whole."""
        if self.wide:
            return rows.words(self.quants + 64 * c)
        nibbles = (rows.words(self.quants + 64 * (c % 4)) >> (4 * (c // 4))) & NIBBLES
        if self.high is None:
            return nibbles
        return nibbles | bit_to(rows.words(self.high), c, 4)

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """result + d * total * scale (+ m * sum)."""
        result = super().finish(rows, tokens, token, total, result)
        if not self.minimum:
            return result
        return rows.code.fma(rows.halves(32), tokens.float(shapes.Q32_SUM, token), result)


class Looked(Small):
    """Blocks of 32 whose nibbles are numbers of a table: of signed bytes (`wide`), or of small
    ones, which get 16 more."""

    def __init__(self, name: str, quants: int, table: tuple[int, ...], *, wide: bool, power: bool = False) -> None:
        """`power`: the scale is a power of two, in a byte."""
        super().__init__(name, quants, shapes.Q32_MINUS128 if wide else shapes.Q32_MINUS16, bits=8 if wide else 4)
        self.table, self.power = table, power
        self.largest = 128 if wide else max(table) + self.offset
        self.pairs_ask = power  # as measured, with the rows of 2,880 columns that files in MXFP4 have

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """The entries of low nibbles, then those of high nibbles."""
        nibbles = (rows.words(self.quants + 64 * (c % 4)) >> (4 * (c // 4))) & NIBBLES
        return rows.code.lookup(nibbles, self.table, self.offset)

    def factor(self, rows: Rows) -> Val:
        """A power of two, or d."""
        return rows.powers(0) if self.power else rows.halves(0)

    def scaled(self, rows: Rows, total: Val, tokens: int) -> Val:
        """The same product, without the power itself where few tokens share it."""
        if self.power and tokens <= 2 and rows.code.scales(total):
            return rows.code.scale(total, rows.bytes(0) - 128)
        return super().scaled(rows, total, tokens)


class Super(Format):
    """Blocks of 256 with sub-block scales."""

    largest_minimum = 63
    in_order = False

    def minima(self, rows: Rows) -> tuple[list[Val], int, int] | None:
        """Words of 4 minima each, and the activation fields of high and low sums; None without
        minima."""
        return None

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """result + scale * (d * total - dmin * sum of minima times activation sums)."""
        code, scaled = rows.code, rows.halves(0) * total
        found = self.minima(rows)
        if found is not None:
            words, high, low = found
            highs = [(word, tokens.integer(high + index, token)) for index, word in enumerate(words)]
            lows = [(word, tokens.integer(low + index, token)) for index, word in enumerate(words)]
            integer = code.sum7(words[0].like(0), highs, self.largest_minimum) << 7
            integer = code.sum7(integer, lows, self.largest_minimum)
            scaled = scaled - rows.halves(32) * integer.convert("sitofp", F32)
        return code.fma(scaled, tokens.float(shapes.Q256_SCALE, token), result)


class Q2K(Super):
    """16 sub-blocks of 16, scale and minimum in a nibble each; a round is half a block."""

    rounds, subblocks, chunks, largest, most_scaled = 2, 8, 4, 3, 3 * 15
    largest_minimum = 15

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """Quants, from 320 on; saves the rows from where the round's scales are at 64."""
        moved = rows.moved(number * 512)
        moved.saved = rows.moved(number * 128)
        return moved

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Sub-block j = 2 i + h takes bit pair i of bytes 16 h on."""
        return (rows.words(320 + 64 * (4 * (j % 2) + c)) >> (2 * (j // 2))) & PAIRS

    def scale(self, rows: Rows, j: int) -> Val:
        """Low nibble of scale byte j."""
        return (rows.saved.words(64 + 64 * (j // 4)) >> (8 * (j % 4))) & 15

    def minima(self, rows: Rows) -> tuple[list[Val], int, int]:
        """High nibbles of the scale bytes."""
        return [(rows.words(64 + 64 * i) >> 4) & NIBBLES for i in range(4)], shapes.Q256_HIGH16, shapes.Q256_LOW16


class Q3K(Super):
    """16 sub-blocks of 16, two rounds as in Q2_K; weights 0..7 stand for -4..3. They are kept in
    bits 3 to 5, so that the start is -32 times the activation sum as in Q6_K, and the scale is
    divided by 8."""

    rounds, subblocks, chunks, largest, offset, unit, most_scaled = 2, 8, 4, 0x38, 32, 8, 8 * 4 * 32

    def begin(self, rows: Rows) -> None:
        """Unpack the scales to bytes: sub-block j is byte j % 4 of word j / 4; a nibble, and above
        it two bits."""
        rows.saved = Locals(rows.code, vector(I32, rows.lanes), 4)
        for word in range(4):
            nibbles = (rows.words(32 + 64 * (word % 2)) >> (4 * (word // 2))) & NIBBLES
            pairs = (rows.words(160) >> (2 * word)) & PAIRS
            rows.saved.set(word, nibbles | (pairs << 4))

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """Quants from 736 on; saves the round's scales, and the rows from where its high bits are
        at 224."""
        moved = rows.moved(number * 512)
        moved.saved = ([rows.saved.get(number * 2), rows.saved.get(number * 2 + 1)], rows.moved(number * 256))
        return moved

    def start_field(self, j: int) -> int:
        """-32 times the sum of the sub-block's activations."""
        return shapes.Q256_MINUS32 + j

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Low bit pairs as in Q2_K; the high bits of chunks 2 m and 2 m + 1 share a word."""
        _, planes = rows.saved
        i, h = j // 2, j % 2
        low = rows.words(736 + 64 * (4 * h + c))
        low = low << (3 - 2 * i) if i < 2 else low >> (2 * i - 3)
        return (low & 0x18181818) | bit_to(planes.words(224 + 64 * (2 * h + c // 2)), 4 * (c % 2) + i, 5)

    def scale(self, rows: Rows, j: int) -> Val:
        """Byte j of the round's scales, less 32."""
        scales, _ = rows.saved
        return ((scales[j // 4] >> (8 * (j % 4))) & BYTE) - 32

    def finish(self, rows: Rows, tokens: Tokens, token: int, total: Val, result: Val) -> Val:
        """As Q6_K, with an eighth of d."""
        return rows.code.fma(rows.halves(0) * 0.125 * total, tokens.float(shapes.Q256_SCALE, token), result)


class Q4K(Super):
    """8 sub-blocks of 32, 6-bit scales and minima in three words; Q5_K adds a plane of fifth bits.
    A round is two sub-blocks: the low and high nibbles of 32 bytes."""

    rounds, subblocks, chunks = 4, 2, 8

    def __init__(self, name: str, high: int | None = None, quants: int = 256) -> None:
        super().__init__(name)
        self.high, self.quants, self.largest = high, quants, 15 if high is None else 31
        self.most_scaled, self.chains = self.largest * 63, 2 if high is None else 0
        self.again = high is not None  # as measured: Q4_K is 2% slower by it, Q5_K 9% faster
        self.in_order = high is None

    def begin(self, rows: Rows) -> None:
        """Unpack the scales to bytes: sub-blocks 0..3, then 4..7."""
        first, third = rows.words(64), rows.words(192)
        rows.saved = Locals(rows.code, first.type, 2)
        rows.saved.set(0, first & 0x3F3F3F3F)
        rows.saved.set(1, (third & NIBBLES) | ((first >> 2) & 0x30303030))

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """Quants of the round; saves its two scales, and the rows from where its fifth bits are at
        `high`."""
        code, moved = rows.code, rows.moved(number * 512)
        scales = rows.saved.get(number >> 1) >> code.splat(((number & 1) * 16).convert("trunc", I32), rows.lanes)
        moved.saved = (scales, rows.moved(number * 128))
        return moved

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Nibbles, and the fifth bit."""
        nibbles = (rows.words(self.quants + 64 * c) >> (4 * j)) & NIBBLES
        if self.high is None:
            return nibbles
        _, planes = rows.saved
        return nibbles | bit_to(planes.words(self.high + 64 * (c // 4)), 4 * j + c % 4, 4)

    def scale(self, rows: Rows, j: int) -> Val:
        """Byte j of the round's scales."""
        return (rows.saved[0] >> (8 * j)) & BYTE

    def minima(self, rows: Rows) -> tuple[list[Val], int, int]:
        """Packed as the scales, in the second word and the high nibbles of the third."""
        second, third = rows.words(128), rows.words(192)
        words = [second & 0x3F3F3F3F, ((third >> 4) & NIBBLES) | ((second >> 2) & 0x30303030)]
        return words, shapes.Q256_HIGH32, shapes.Q256_LOW32


class Q6K(Super):
    """16 sub-blocks of 16 in four quarters of 64 weights, a round each; weights 0..63 stand for
    -32..31, scales are signed bytes. Quarter q = 2 n + h holds sub-blocks 8 n + h + 0, 2, 4, 6 in
    column order."""

    rounds, subblocks, chunks, largest, offset, most_scaled, chains = 4, 4, 4, 63, 32, 32 * 128, 0

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """A quarter is 832 bytes."""
        return rows.moved(number * 832)

    def first_field(self, number: Any) -> Any:
        """Sub-block 8 n + h."""
        return (number >> 1) * 8 + (number & 1)

    def field(self, j: int, c: int) -> int:
        """Every other sub-block."""
        return 8 * j + c

    def start_field(self, j: int) -> int:
        """-32 times the sum of the sub-block's activations."""
        return shapes.Q256_MINUS32 + 2 * j

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """Nibble word set j % 2, nibble half j / 2, bit pair j of the high bits."""
        high, low = rows.words(96 + 64 * c), rows.words(352 + 256 * (j % 2) + 64 * c)
        high = high << (4 - 2 * j) if j < 2 else high >> (2 * j - 4)
        return ((low >> (4 * (j // 2))) & NIBBLES) | (high & 0x30303030)

    def scale(self, rows: Rows, j: int) -> Val:
        """Signed byte j of the quarter's scale word."""
        return (rows.words(32) << (24 - 8 * j)).sar(24)


class IQ4XS(Super):
    """8 sub-blocks of 32, nibbles of IQ4_NL; scales are 6 bits less 32, low nibbles in a word and
    pairs of high bits in a half. A round is two sub-blocks."""

    rounds, subblocks, chunks, sums, wide, in_order, offset, largest = 4, 2, 8, 2, True, True, 128, 128
    most_scaled, chains = 127 * 32, 0

    def rows_of(self, rows: Rows, number: Val) -> Rows:
        """Quants of the round; saves the words with its scales' low nibbles and high bits lowest.
        """
        code, moved = rows.code, rows.moved(number * 512)
        low, high = (code.splat((number * bits).convert("trunc", I32), rows.lanes) for bits in (8, 4))
        moved.saved = rows.words(64) >> low, rows.shorts(32) >> high
        return moved

    def start_value(self, tokens: Tokens, j: int, token: int) -> Val:
        """-128 times the sum of the sub-block's activations: of each 16 there is -32 times the sum.
        """
        first, second = (tokens.integer(shapes.Q256_MINUS32 + 2 * j + half, token) for half in range(2))
        return (first + second) << 2

    def chunk(self, rows: Rows, j: int, c: int) -> Val:
        """As in IQ4_NL."""
        words = rows.words(128 + 256 * j + 64 * (c % 4))
        return rows.code.lookup((words >> (4 * (c // 4))) & NIBBLES, IQ4, self.offset)

    def scale(self, rows: Rows, j: int) -> Val:
        """Nibble j, and pair j above it."""
        low, high = rows.saved
        return (((low >> (4 * j)) & 15) | (((high >> (2 * j)) & 3) << 4)) - 32


FORMATS: Mapping[str, Format] = MappingProxyType({fmt.shape.name: fmt for fmt in (
    Small("Q4_0", 32, shapes.Q32_MINUS8),
    Small("Q4_1", 64, None, minimum=True),
    Small("Q5_0", 96, shapes.Q32_MINUS16, high=32),
    Small("Q5_1", 128, None, minimum=True, high=64),
    Small("Q8_0", 32, shapes.Q32_MINUS128, bits=8),
    Small("Q8_1", 64, shapes.Q32_MINUS128, bits=8),
    Q2K("Q2_K"), Q3K("Q3_K"), Q4K("Q4_K"), Q4K("Q5_K", high=256, quants=768), Q6K("Q6_K"),
    Looked("IQ4_NL", 32, IQ4, wide=True), Looked("MXFP4", 16, E2M1, wide=False, power=True), IQ4XS("IQ4_XS"),
)})
