"""LLVM IR with Python operators: the only place where code differs between CPUs.

`Code` appends instructions to an llvmlite builder; `Val` is an IR value (a scalar or a vector of
any number of lanes) with Python operators. Every operation gives the same bits on every target; a
target only chooses how:

| operation | AVX-512 VNNI | AVX2 | NEON | portable |
|---|---|---|---|---|
| `dot7`, `dot8` | vpdpbusd | vpmaddubsw + vpmaddwd | 16-bit multiplies | 16-bit multiplies |
| `lookup` | vpshufb | vpshufb | tbl | choices by each bit |
| `fma` | vfmadd | vfmadd | fmla | binary64 with round-to-odd |
| `half_to_float`, `float_to_half` | F16C | F16C | fcvtl, fcvtn | integer arithmetic |

No fast-math flag is ever set, so LLVM may neither reorder nor fuse float operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from appliance.kernels.compiler import jit  # noqa: F401  fixes numba's CPU before numba is used
from appliance.kernels.runtime.targets import compiling

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def vector(element: Any, lanes: int) -> Any:
    """The IR type of `lanes` elements; the element itself for one lane."""
    return element if lanes == 1 else ir.VectorType(element, lanes)


class Val:
    """An IR value with operators. Python numbers stand for a constant in every lane.

    `+ - *` are float or wrapping integer operations by type, `/` is float; `>>` shifts in zeros,
    `sar` the sign.
    """

    __slots__ = ("code", "element", "ir", "lanes", "type")

    def __init__(self, code: Code, value: Any) -> None:
        self.code, self.ir, self.type = code, value, value.type
        is_vector = isinstance(self.type, ir.VectorType)
        self.lanes: int = self.type.count if is_vector else 1  # 1 for a scalar
        self.element: Any = self.type.element if is_vector else self.type  # IR type of a lane

    @property
    def is_float(self) -> bool:
        """Whether `+` is a float operation."""
        return isinstance(self.element, (ir.HalfType, ir.FloatType, ir.DoubleType))

    def _operate(self, integer: str, floating: str, other: Val | float) -> Val:
        right = other if isinstance(other, Val) else self.like(other)
        return Val(self.code, getattr(self.code.b, floating if self.is_float else integer)(self.ir, right.ir))

    def like(self, number: float) -> Val:
        """A constant of the same type."""
        return self.code.constant(self.type, number)

    def __add__(self, other: Val | float) -> Val:
        return self._operate("add", "fadd", other)

    def __sub__(self, other: Val | float) -> Val:
        return self._operate("sub", "fsub", other)

    def __mul__(self, other: Val | float) -> Val:
        return self._operate("mul", "fmul", other)

    def __truediv__(self, other: Val | float) -> Val:
        return self._operate("sdiv", "fdiv", other)

    def __and__(self, other: Val | int) -> Val:
        return self._operate("and_", "", other)

    def __or__(self, other: Val | int) -> Val:
        return self._operate("or_", "", other)

    def __xor__(self, other: Val | int) -> Val:
        return self._operate("xor", "", other)

    def __rshift__(self, other: Val | int) -> Val:
        return self if other == 0 else self._operate("lshr", "", other)

    def __lshift__(self, other: Val | int) -> Val:
        return self if other == 0 else self._operate("shl", "", other)

    def sar(self, other: Val | int) -> Val:
        """Arithmetic shift right."""
        return self if other == 0 else self._operate("ashr", "", other)

    def bits(self, element: Any) -> Val:
        """The same bits as lanes of `element`."""
        width = {I8: 8, I16: 16, I32: 32, I64: 64, F16: 16, F32: 32, F64: 64}
        lanes = self.lanes * width[self.element] // width[element]
        return Val(self.code, self.code.b.bitcast(self.ir, vector(element, lanes)))

    def convert(self, operation: str, element: Any) -> Val:
        """An LLVM conversion (sitofp, sext, zext, trunc, fpext, fptrunc) of each lane."""
        return Val(self.code, getattr(self.code.b, operation)(self.ir, vector(element, self.lanes)))

    def shuffle(self, lanes: list[int], other: Val | None = None) -> Val:
        """Chosen lanes, in that order; those of the `other` vector are counted after the own ones.
        """
        second = ir.Constant(self.type, ir.Undefined) if other is None else other.ir
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        return Val(self.code, self.code.b.shuffle_vector(self.ir, second, mask))

    def lane(self, index: int) -> Val:
        """One lane as a scalar."""
        return Val(self.code, self.code.b.extract_element(self.ir, ir.Constant(I32, index)))

    def compare(self, operator: str, other: Val | float) -> Val:
        """Lane by lane: signed for integers, ordered for floats (false if either is NaN)."""
        right = other if isinstance(other, Val) else self.like(other)
        method = self.code.b.fcmp_ordered if self.is_float else self.code.b.icmp_signed
        return Val(self.code, method(operator, self.ir, right.ir))

    def compare_unsigned(self, operator: str, other: Val) -> Val:
        """Lane by lane, for integers without a sign."""
        return Val(self.code, self.code.b.icmp_unsigned(operator, self.ir, other.ir))

    def select(self, yes: Val, no: Val) -> Val:
        """`yes` where this mask is set."""
        return Val(self.code, self.code.b.select(self.ir, yes.ir, no.ir))


class Code:
    """Appends operations to an IR builder. Addresses are 64-bit integers, in bytes."""

    def __init__(self, builder: Any) -> None:
        self.b = builder
        target = compiling()
        self.target = target.vectors
        self.amx, self.evenly = target.amx, target.evenly
        self.hardware_float = target.name != "portable"  # FMA and binary16 conversion: not in the x86-64 baseline

    def constant(self, type_: Any, number: float) -> Val:
        """`number` in every lane."""
        if isinstance(type_, ir.VectorType):
            return Val(self, ir.Constant(type_, [number] * type_.count))
        return Val(self, ir.Constant(type_, number))

    def call(self, name: str, result: Any, *args: Val) -> Val:
        """Call an LLVM intrinsic."""
        kind = ir.FunctionType(result, [arg.type for arg in args])
        return Val(self, self.b.call(cgutils.get_or_insert_function(self.b.module, kind, name),
                                     [arg.ir for arg in args]))

    def function(self, name: str, kinds: list[Any], emit: Callable[[Code, list[Val]], None]) -> Any:
        """The function `name` of this module, which returns nothing; emitted on first use."""
        module = self.b.module
        if name not in module.globals:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            function.attributes.add("nounwind")
            inner = Code(ir.IRBuilder(function.append_basic_block()))
            emit(inner, [Val(inner, arg) for arg in function.args])
            inner.b.ret_void()
        return module.globals[name]

    # --- memory -----------------------------------------------------------------------------------
    def pointer(self, address: Val, type_: Any) -> Any:
        """A raw pointer for llvmlite's own methods."""
        return self.b.inttoptr(address.ir, ir.PointerType(type_))

    def load(self, address: Val, element: Any, lanes: int = 1, align: int | None = None) -> Val:
        """Read `lanes` consecutive elements; `align` defaults to an element's size (at most 4)."""
        type_ = vector(element, lanes)
        size = {I8: 1, I16: 2, F16: 2}.get(element, 4)
        return Val(self, self.b.load(self.pointer(address, type_), align=align or size))

    def store(self, address: Val, value: Val) -> None:
        """Write every lane."""
        size = {I8: 1, I16: 2, F16: 2}.get(value.element, 4)
        self.b.store(value.ir, self.pointer(address, value.type), align=size)

    def splat(self, scalar: Val, lanes: int) -> Val:
        """A scalar in every lane."""
        if lanes == 1:
            return scalar
        type_ = ir.VectorType(scalar.type, lanes)
        first = self.b.insert_element(ir.Constant(type_, ir.Undefined), scalar.ir, ir.Constant(I32, 0))
        return Val(self, first).shuffle([0] * lanes)

    def broadcast(self, address: Val, element: Any, lanes: int) -> Val:
        """One element from memory in every lane; LLVM folds it into the operand of an AVX-512
        instruction."""
        return self.splat(self.load(address, element), lanes)

    def prefetch(self, address: Val, write: bool = False, near: bool = False) -> None:
        """Ask for the cache line of `address`; any address is allowed."""
        # Some CPUs read memory a tenth and more faster where lines of weights go to the
        # second-level cache first.
        locality = 2 if self.evenly and not write and not near else 3
        self.call("llvm.prefetch.p0", ir.VoidType(), Val(self, self.pointer(address, I8)),
                  *(self.constant(I32, number) for number in (int(write), locality, 1)))

    def align_frame(self) -> None:
        """Force a 64-byte aligned stack frame: LLVM otherwise spills 512-bit registers across cache
        lines."""
        with self.b.goto_entry_block():
            room = self.b.alloca(ir.VectorType(I32, 16))
            room.align = 64
            nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), [room.type]), "", "r", side_effect=True)
            self.b.call(nothing, [room])

    def frame(self, nbytes: int) -> Val:
        """The address of memory in this function's frame, in whole cache lines."""
        with self.b.goto_entry_block():
            room = self.b.alloca(ir.VectorType(I32, 16), size=nbytes // 64)
            room.align = 64
        return Val(self, self.b.ptrtoint(room, I64))

    def clear(self, address: Val, nbytes: int) -> None:
        """Zero memory of `frame`, for whoever comes upon this stack later."""
        zero = self.constant(vector(I32, 16), 0)
        self.loop(nbytes // 64, lambda index: self.store(address + index * 64, zero))
        self.keep(address)

    def keep(self, address: Val) -> None:
        """Have all stores done here that somebody who knows `address` could see; no instruction.
        LLVM would leave out what is stored in a frame at its end."""
        kind = ir.FunctionType(ir.VoidType(), [address.type])
        self.b.call(ir.InlineAsm(kind, "", "r,~{memory}", side_effect=True), [address.ir])

    def clear_vectors(self) -> None:
        """Zero every vector register: who comes next may save what is in them, as the dynamic
        loader does. (An empty instruction wants a zero in each.)"""
        name, count, lanes = {"avx512vnni": ("zmm", 32, 16), "avx2": ("ymm", 16, 8), "portable": ("xmm", 16, 4),
                              "neon": ("v", 32, 4)}[self.target]
        zero = self.constant(vector(I32, lanes), 0)
        kind = ir.FunctionType(ir.VoidType(), [zero.type] * count)
        places = ",".join(f"{{{name}{index}}}" for index in range(count))
        self.b.call(ir.InlineAsm(kind, "", places, side_effect=True), [zero.ir] * count)

    def pin(self, values: list[Val]) -> list[Val]:
        """Have all `values` in registers here, and move no load across this point; no instruction.

        LLVM would rather finish a sum late and merge equal loads, both of which keep too many
        registers alive.
        """
        register = {"avx512vnni": "v", "avx2": "x"}.get(self.target)
        if register is None or not values:
            nothing = ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True)
            self.b.call(nothing, [])
            return values
        types = [value.type for value in values]
        outputs = [f"={register}" for _ in values] + [str(index) for index in range(len(values))]
        result = types[0] if len(types) == 1 else ir.LiteralStructType(types)
        nothing = ir.InlineAsm(ir.FunctionType(result, types), "", ",".join([*outputs, "~{memory}"]),
                               side_effect=True)
        after = self.b.call(nothing, [value.ir for value in values])
        if len(types) == 1:
            return [Val(self, after)]
        return [Val(self, self.b.extract_value(after, index)) for index in range(len(types))]

    def loop(self, count: int | Val, body: Callable[[Val], None]) -> None:
        """Run `body(index)` for 0 <= index < count; no loop for the number 1."""
        if isinstance(count, int):
            if count == 1:
                body(self.constant(I64, 0))
                return
            count = self.constant(I64, count)
        with cgutils.for_range(self.b, count.ir, intp=I64) as loop:
            body(Val(self, loop.index))

    # --- float ------------------------------------------------------------------------------------
    def fma(self, x: Val, y: Val, z: Val) -> Val:
        """x * y + z, rounded once."""
        if self.hardware_float:
            suffix = "f32" if x.lanes == 1 else f"v{x.lanes}f32"
            return self.call(f"llvm.fma.{suffix}", x.type, x, y, z)
        # The product is exact in binary64. Rounding the sum to odd keeps what the last rounding
        # needs to know (Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
        product = x.convert("fpext", F64) * y.convert("fpext", F64)
        addend = z.convert("fpext", F64)
        total = product + addend
        back = total - product
        error = (product - (total - back)) + (addend - back)
        bits = total.bits(I64)
        same_sign = (error.bits(I64) ^ bits).compare(">=", 0)
        odd = bits + same_sign.select(bits.like(1), bits.like(-1))
        adjust = (bits & 1).compare("==", 0) & error.compare("!=", 0.0)
        return adjust.select(odd, bits).bits(F64).convert("fptrunc", F32)

    def scales(self, x: Val) -> bool:
        """Whether `scale` is an instruction for such floats."""
        return self.target == "avx512vnni" and x.lanes == 16

    def scale(self, x: Val, power: Val) -> Val:
        """x * 2**power of finite floats and integers, rounded once."""
        zero, every, nearest = x.like(0.0), self.constant(I16, -1), self.constant(I32, 4)  # 4: as the thread rounds
        return self.call("llvm.x86.avx512.mask.scalef.ps.512", x.type, x, power.convert("sitofp", F32), zero, every,
                         nearest)

    def larger(self, x: Val, y: Val) -> Val:
        """x > y ? x : y (so y where either is NaN)."""
        return x.compare(">", y).select(x, y)

    def smaller(self, x: Val, y: Val) -> Val:
        """x < y ? x : y (so y where either is NaN)."""
        return x.compare("<", y).select(x, y)

    def nearest(self, x: Val) -> Val:
        """float32 to int32, ties to even, exact for |x| <= 2**22; any other input gives some
        integer, no trap."""
        magic = x.like(12582912.0)
        return (x + magic).bits(I32) - magic.bits(I32)

    def half_to_float(self, halves: Val) -> Val:
        """int16 lanes holding IEEE binary16 to float32; signalling NaN becomes quiet."""
        if self.hardware_float:
            return halves.bits(F16).convert("fpext", F32)
        wide = halves.convert("zext", I32)
        magnitude = wide & 0x7FFF
        finite = ((magnitude << 13).bits(F32) * wide.like(0x77800000).bits(F32)).bits(I32)
        quiet = magnitude.compare(">", 0x7C00).select(wide.like(0x7FC00000), wide.like(0x7F800000))
        result = magnitude.compare(">", 0x7BFF).select(quiet | ((magnitude << 13) & 0x007FFFFF), finite)
        return (result | ((wide & 0x8000) << 16)).bits(F32)

    def float_to_half(self, x: Val) -> Val:
        """float32 to IEEE binary16 in int16 lanes, ties to even."""
        if self.hardware_float:
            return x.convert("fptrunc", F16).bits(I16)
        bits = x.bits(I32)
        size = bits & 0x7FFFFFFF
        normal = (size + (0x0FFF - (112 << 23)) + ((size >> 13) & 1)) >> 13
        tiny = (size.bits(F32) + 0.5).bits(I32) - 0x3F000000
        nan = ((size >> 13) & 0x03FF) | 0x7E00
        big = size.compare(">", 0x7F800000).select(nan, size.like(0x7C00))
        finite = size.compare("<", 0x38800000).select(tiny, normal)
        result = size.compare(">", 0x477FFFFF).select(big, finite)
        return (result | ((bits >> 16) & 0x8000)).convert("trunc", I16)

    def fold(self, vector_: Val, combine: Any) -> Val:
        """Combine lanes in the one fixed order: upper half onto lower half until one is left."""
        while vector_.lanes > 1:
            half = vector_.lanes // 2
            low, high = vector_.shuffle(list(range(half))), vector_.shuffle(list(range(half, 2 * half)))
            if half == 1:
                low, high = low.lane(0), high.lane(0)
            vector_ = combine(low, high)
        return vector_

    # --- bytes by a table ------------------------------------------------------------------------
    def lookup(self, nibbles: Val, table: tuple[int, ...], offset: int) -> Val:
        """Each byte 0..15 of int32 lanes replaced by that entry of `table` (16 signed bytes), plus
        `offset`."""
        index = nibbles.bits(I8)
        if offset == 128 and self.target != "avx512vnni":  # `dot8` takes it off: LLVM leaves out both
            return self.lookup(nibbles, table, 0) ^ -0x7F7F7F80
        entries = [number + offset for number in table]
        width = {"avx512vnni": 64, "avx2": 32, "neon": 16}.get(self.target)
        if width != index.lanes:
            return self._chosen(index, entries).bits(nibbles.element)
        values = Val(self, ir.Constant(index.type, [entries[lane % 16] for lane in range(width)]))
        name = {64: "x86.avx512.pshuf.b.512", 32: "x86.avx2.pshuf.b", 16: "aarch64.neon.tbl1.v16i8"}[width]
        return self.call(f"llvm.{name}", index.type, values, index).bits(nibbles.element)

    def _chosen(self, index: Val, table: list[int]) -> Val:
        """As `lookup`, by choices: bit by bit of the index, from the lowest."""
        found = [index.like(entry) for entry in table]
        for bit in range(4):
            odd = ((index >> bit) & 1).compare("!=", 0)
            found = [odd.select(high, low) for low, high in zip(found[::2], found[1::2], strict=True)]
        return found[0]

    # --- 8-bit dot products -----------------------------------------------------------------------
    def dot7(self, total: Val, unsigned: Val, signed: Val) -> Val:
        """Per 32-bit lane: total + sum of 4 products of bytes 0..127 and -127..127 (exact)."""
        if self.target == "avx512vnni":
            return self._vnni(total, unsigned, signed)
        return self.add_pairs(total, self.pairs7(unsigned, signed))

    def dot8(self, total: Val, offset: Val, signed: Val) -> Val:
        """Per lane: total + sum of 4 products (offset ^ 0x80 as a signed byte) * (byte -127..127).

        With VNNI this adds 128 times the sum of `signed` too: start from `start8(-128 * sum)`.
        """
        if self.target == "avx512vnni":
            return self._vnni(total, offset, signed)
        return self.add_pairs(total, self.pairs8(offset, signed))

    def start8(self, minus128sum: Val) -> Val:
        """The start of a chain of `dot8`."""
        return minus128sum if self.target == "avx512vnni" else minus128sum.like(0)

    def pairs_limit(self, largest: int) -> int:
        """How many `pairs7` of weights up to `largest` fit into 16 bits when added; 0 where sums of
        4 products are one instruction and pairs are no gain."""
        return 0 if self.target == "avx512vnni" else 32767 // (2 * 127 * largest)

    def pairs7(self, unsigned: Val, signed: Val) -> Val:
        """Sums of 2 neighbouring products, as int16."""
        if self.target == "avx2":
            return self._pieces(self._madd, unsigned, signed)
        return self._portable(unsigned, signed)

    def pairs8(self, offset: Val, signed: Val) -> Val:
        """`pairs7` for `offset` as in `dot8`: at most 2 * 128 * 127 = 32512, so 16 bits hold them.
        """
        plain = offset ^ -0x7F7F7F80
        if self.target == "avx2":
            return self._pieces(self._signed_madd, plain, signed)
        return self._portable(plain, signed)

    def add_pairs(self, total: Val, pairs: Val) -> Val:
        """total + the two int16 of each lane."""
        if self.target == "avx2":
            return total + self._pieces(self._madd_pairs, pairs, pairs.like(1))
        wide = pairs.bits(I32)
        return total + (wide << 16).sar(16) + wide.sar(16)

    def sum7(self, total: Val, terms: list[tuple[Val, Val]], largest: int) -> Val:
        """A chain of `dot7` over (unsigned, signed) with unsigned bytes up to `largest`."""
        limit = self.pairs_limit(largest)
        for first in range(0, len(terms), limit or 1):
            if not limit:
                total = self.dot7(total, *terms[first])
                continue
            pairs = self.pairs7(*terms[first])
            for term in terms[first + 1:first + limit]:
                pairs = pairs + self.pairs7(*term)
            total = self.add_pairs(total, pairs)
        return total

    def _vnni(self, total: Val, unsigned: Val, signed: Val) -> Val:
        bits = 32 * total.lanes
        return self.call(f"llvm.x86.avx512.vpdpbusd.{bits}", total.type, total, unsigned.bits(I8), signed.bits(I8))

    def _pieces(self, operation: Callable[[Val, Val], Val], x: Val, y: Val) -> Val:
        """An operation on 256 bits, for 256 or 512 bits."""
        element = I16 if x.element is I16 else I8
        x, y = x.bits(element), y.bits(element)
        half = x.lanes // 2
        if half * element.width == 128:
            return operation(x, y)
        low, high = list(range(half)), list(range(half, 2 * half))
        first, second = operation(x.shuffle(low), y.shuffle(low)), operation(x.shuffle(high), y.shuffle(high))
        return first.shuffle(list(range(2 * first.lanes)), second)

    def _madd(self, unsigned: Val, signed: Val) -> Val:
        return self.call("llvm.x86.avx2.pmadd.ub.sw", vector(I16, 16), unsigned, signed)

    def _madd_pairs(self, pairs: Val, ones: Val) -> Val:
        return self.call("llvm.x86.avx2.pmadd.wd", vector(I32, 8), pairs, ones)

    def _signed_madd(self, weight: Val, signed: Val) -> Val:
        """|w| * sign(s, w); |-128| is 128 as an unsigned byte."""
        negative = weight.compare("<", 0)
        size = negative.select(weight.like(0) - weight, weight)
        flipped = self.call("llvm.x86.avx2.psign.b", signed.type, signed, weight)
        return self._madd(size, flipped)

    def _portable(self, weight: Val, signed: Val) -> Val:
        """Signed bytes, the even and odd ones of 16-bit pairs."""
        x, y = weight.bits(I16), signed.bits(I16)
        return (x << 8).sar(8) * (y << 8).sar(8) + x.sar(8) * y.sar(8)


class Locals:
    """Local variables of one type, by index; LLVM keeps them in registers where every index is a
    constant."""

    def __init__(self, code: Code, kind: Any, count: int) -> None:
        self.code, self.kind = code, kind
        with code.b.goto_entry_block():
            self.places = code.b.alloca(kind, size=count)
            self.places.align = 64

    def _slot(self, index: Val | int) -> Any:
        place = index.ir if isinstance(index, Val) else ir.Constant(I64, index)
        return self.code.b.gep(self.places, [place], source_etype=self.kind)

    def get(self, index: Val | int) -> Val:
        """The value of a variable."""
        return Val(self.code, self.code.b.load(self._slot(index), typ=self.kind))

    def set(self, index: Val | int, value: Val) -> None:
        """Give a variable a value."""
        self.code.b.store(value.ir, self._slot(index))
