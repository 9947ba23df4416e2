"""Vector types for numba and the operations on them: 16 lanes of int32 or float32, whatever the CPU
has.

Compiled code receives memory as 64-bit addresses in bytes; nothing here checks them (`boundary.py`
does, before a kernel is called). `i32x16` and `f32x16` are values: they live in registers, can be
passed to and returned from device functions, and have the operators `+ - * /` (float) and `+ - * &
| ^` (int). Each operation gives the same bits on every target (see `emit.py`); horizontal
operations combine the upper half of the lanes with the lower half until one is left. Atomics are in
`atomic.py`.

Names: `load_*`/`store_*` move 16 lanes, `get_*`/`set_*` one scalar.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.sigutils import normalize_signature
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from appliance.kernels.compiler import fields  # noqa: F401  lets kernels read tables
from appliance.kernels.compiler.emit import F32, I32, I64, Code, Val, vector

LANES = 16


class VectorType(types.Type):
    """A numba type that is one LLVM vector."""

    def __init__(self, name: str, ir_type: Any) -> None:
        self.ir_type = ir_type
        super().__init__(name=name)


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: VectorType) -> None:
        super().__init__(manager, kind, kind.ir_type)


i32x16 = VectorType("i32x16", vector(I32, LANES))
f32x16 = VectorType("f32x16", vector(F32, LANES))
i32, i64, f32 = types.int32, types.int64, types.float32


def operation(result: Any, *args: Any) -> Callable[[Callable[..., Val | None]], Any]:
    """Make a numba function of fixed signature from `emit(code, *values) -> value` (None for a void
    result)."""

    def decorate(emit: Callable[..., Val | None]) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            code = Code(builder)
            value = emit(code, *(Val(code, item) for item in values))
            return context.get_dummy_value() if value is None else value.ir

        def define(typing_context: Any, *given: Any) -> Any:
            fits = all(a is b or not (isinstance(a, VectorType) or isinstance(b, VectorType))
                       for a, b in zip(args, given, strict=True))
            return (result(*args), generate) if fits else None

        names = ["typing_context", *(f"a{index}" for index in range(len(args)))]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        define.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
        define.__name__ = define.__qualname__ = emit.__name__
        define.__module__, define.__doc__ = emit.__module__, emit.__doc__
        return intrinsic(define)

    return decorate


def calling(name: str, emit: Callable[[Code, list[Val]], None], *args: Any) -> Any:
    """A numba function of no result that calls the function `name` of its module, which `emit`
    makes on first use."""
    def call(code: Code, *values: Val) -> None:
        function = code.function(name, [value.type for value in values], emit)
        code.b.call(function, [value.ir for value in values])
    return operation(types.void, *args)(call)


def pointer_call(signature: str) -> Any:
    """A function `(address, *args)` that calls the C function at `address`, e.g.
    `pointer_call("void(i8,i4)")`."""
    args, result = normalize_signature(signature)

    def call_address(code: Code, address: Val, *values: Val) -> Val | None:
        returns = ir.VoidType() if result == types.void else _IR[result]
        kind = ir.FunctionType(returns, [value.type for value in values])
        function = code.b.inttoptr(address.ir, ir.PointerType(kind))
        value = code.b.call(function, [item.ir for item in values])
        return None if result == types.void else Val(code, value)

    return operation(result, i64, *args)(call_address)


_IR = {i32: I32, i64: I64, f32: F32}


# --- from and to memory ---------------------------------------------------------------------------
def _getter(result: Any, element: Any, name: str, lanes: int = 1) -> Any:
    def get(code: Code, address: Val) -> Val:
        return code.load(address, element, lanes)
    get.__name__, get.__doc__ = name, f"The {result} at an address."
    return operation(result, i64)(get)


def _setter(argument: Any, name: str, narrow: Callable[[Code, Val], Val] | None = None) -> Any:
    def put(code: Code, address: Val, value: Val) -> None:
        code.store(address, value if narrow is None else narrow(code, value))
    put.__name__, put.__doc__ = name, f"Store a {argument} at an address."
    return operation(types.void, i64, argument)(put)


load_i32 = _getter(i32x16, I32, "load_i32", LANES)
load_f32 = _getter(f32x16, F32, "load_f32", LANES)
store_i32 = _setter(i32x16, "store_i32")
store_f32 = _setter(f32x16, "store_f32")
get_i64 = _getter(i64, I64, "get_i64")
get_i32 = _getter(i32, I32, "get_i32")
get_f32 = _getter(f32, F32, "get_f32")
set_i64 = _setter(i64, "set_i64")
set_i32 = _setter(i32, "set_i32")
set_f32 = _setter(f32, "set_f32")
set_f16 = _setter(f32, "set_f16", lambda code, x: code.float_to_half(x))


def _splat(code: Code, value: Val) -> Val:
    """A scalar in every lane."""
    return code.splat(value, LANES)


splat_i32, splat_f32 = operation(i32x16, i32)(_splat), operation(f32x16, f32)(_splat)


@operation(f32, f32)
def round_f16(code: Code, value: Val) -> Val:
    """float32 rounded to binary16 and back."""
    return code.half_to_float(code.float_to_half(value))


# --- arithmetic -----------------------------------------------------------------------------------
def _operator(kind: Any, symbol: Any) -> None:
    """`symbol` between two values of `kind` in numba code."""
    class Template(ConcreteTemplate):
        cases = [signature(kind, kind, kind)]  # noqa: RUF012 (numba reads a class attribute)
    infer_global(symbol)(Template)

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        left, right = (Val(Code(builder), item) for item in values)
        return symbol(left, right).ir
    lower_builtin(symbol, kind, kind)(generate)


for _symbol in (operator.add, operator.sub, operator.mul, operator.truediv):
    _operator(f32x16, _symbol)
for _symbol in (operator.add, operator.sub, operator.mul, operator.and_, operator.or_, operator.xor):
    _operator(i32x16, _symbol)


def _larger(code: Code, x: Val, y: Val) -> Val:
    """x > y ? x : y of each lane."""
    return code.larger(x, y)


def _smaller(code: Code, x: Val, y: Val) -> Val:
    """x < y ? x : y of each lane."""
    return code.smaller(x, y)


max_f32, min_f32 = operation(f32x16, f32x16, f32x16)(_larger), operation(f32x16, f32x16, f32x16)(_smaller)
max_i32, min_i32 = operation(i32x16, i32x16, i32x16)(_larger), operation(i32x16, i32x16, i32x16)(_smaller)


@operation(f32x16, f32x16, f32x16, f32x16)
def fma_f32(code: Code, x: Val, y: Val, z: Val) -> Val:
    """x * y + z, rounded once."""
    return code.fma(x, y, z)


@operation(f32x16, f32x16)
def abs_f32(code: Code, value: Val) -> Val:
    """Absolute value."""
    return (value.bits(I32) & 0x7FFFFFFF).bits(F32)


@operation(i32x16, f32x16)
def magnitude_i32(code: Code, value: Val) -> Val:
    """The bits of the absolute value: as integers in the order of the numbers, with NaN above all
    of them."""
    return value.bits(I32) & 0x7FFFFFFF


@operation(f32, i32x16)
def largest_magnitude(code: Code, magnitudes: Val) -> Val:
    """The largest of such magnitudes as a float; NaN if one of them is."""
    return code.fold(magnitudes, code.larger).bits(F32)


@operation(i32x16, i32x16, i32)
def shift_left(code: Code, value: Val, count: Val) -> Val:
    """Shift by 0..31 bits."""
    return value << code.splat(count, LANES)


@operation(i32x16, f32x16)
def nearest_i32(code: Code, value: Val) -> Val:
    """float32 to int32, ties to even; exact for |x| <= 2**22, else some integer."""
    return code.nearest(value)


def _sum(code: Code, value: Val) -> Val:
    """Sum of the lanes in the fixed order."""
    return code.fold(value, operator.add)


sum_i32, sum_f32 = operation(i32, i32x16)(_sum), operation(f32, f32x16)(_sum)


@operation(f32, f32x16)
def largest_f32(code: Code, value: Val) -> Val:
    """Largest lane."""
    return code.fold(value, code.larger)


@operation(f32, f32x16)
def smallest_f32(code: Code, value: Val) -> Val:
    """Smallest lane."""
    return code.fold(value, code.smaller)


# --- the machine ----------------------------------------------------------------------------------
@operation(types.void, i64)
def prefetch(code: Code, address: Val) -> None:
    """Ask for a cache line, to read."""
    code.prefetch(address)


@operation(types.void, i64)
def prefetch_write(code: Code, address: Val) -> None:
    """Ask for a cache line, to write."""
    code.prefetch(address, write=True)


@operation(types.void)
def clear_vectors(code: Code) -> None:
    """Zero every vector register."""
    code.clear_vectors()


@operation(types.void)
def align_frame(code: Code) -> None:
    """Give this function a 64-byte aligned stack frame (worth it where vectors spill)."""
    code.align_frame()
