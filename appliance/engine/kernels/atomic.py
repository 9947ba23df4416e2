"""Atomic words, the spin hint, and calls through an address, for kernels. Addresses are int64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from appliance.engine.kernels import jit  # noqa: F401  fixes numba's CPU before numba is used

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)

Emit = Callable[..., Any]


def _word(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(_I32))


def _declare(builder: Any, name: str, arguments: list[Any]) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), arguments), name)


@intrinsic
def load(typing: Any, address: types.Integer) -> tuple[Any, Emit]:
    """The int32 at an address, sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_word(builder, arguments[0]), "seq_cst", 4)
    return types.int32(types.int64), emit


@intrinsic
def store(typing: Any, address: types.Integer, value: types.Integer) -> tuple[Any, Emit]:
    """Store an int32 at an address, sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], _word(builder, arguments[0]), "seq_cst", 4)
        return context.get_dummy_value()
    return types.void(types.int64, types.int32), emit


@intrinsic
def add(typing: Any, address: types.Integer, value: types.Integer) -> tuple[Any, Emit]:
    """Add to the int32 at an address and give what was there before, sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, arguments[0]), arguments[1], "seq_cst")
    return types.int32(types.int64, types.int32), emit


@intrinsic
def load_long(typing: Any, address: types.Integer) -> tuple[Any, Emit]:
    """The int64 at an address, sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(arguments[0], ir.PointerType(_I64)), "seq_cst", 8)
    return types.int64(types.int64), emit


@intrinsic
def store_long(typing: Any, address: types.Integer, value: types.Integer) -> tuple[Any, Emit]:
    """Store an int64 at an address, sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(_I64)), "seq_cst", 8)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), emit


@intrinsic
def exchange_long(typing: Any, address: types.Integer, old: types.Integer, new: types.Integer) -> tuple[Any, Emit]:
    """Store `new` at an address if `old` is there; give what was there before. Sequentially consistent."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(_I64))
        return builder.extract_value(builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "seq_cst"), 0)
    return types.int64(types.int64, types.int64, types.int64), emit


@intrinsic
def pause(typing: Any) -> tuple[Any, Emit]:
    """Tell the CPU that this is a spin loop."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if builder.module.triple.startswith("x86"):
            builder.call(_declare(builder, "llvm.x86.sse2.pause", []), [])
        else:
            builder.call(_declare(builder, "llvm.aarch64.hint", [_I32]), [ir.Constant(_I32, 1)])  # 1: yield
        return context.get_dummy_value()
    return types.void(), emit


@intrinsic
def load_address(typing: Any, address: types.Integer) -> tuple[Any, Emit]:
    """The int64 at an address (not atomic)."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.PointerType(_I64)), align=8)
    return types.int64(types.int64), emit


@intrinsic
def store_address(typing: Any, address: types.Integer, value: types.Integer) -> tuple[Any, Emit]:
    """Store an int64 at an address (not atomic)."""
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(_I64)), align=8)
        return context.get_dummy_value()
    return types.void(types.int64, types.int64), emit


@intrinsic
def call_part(typing: Any, function: types.Integer, thread: types.Integer, threads: types.Integer,
              arguments: types.Integer) -> tuple[Any, Emit]:
    """Call `void function(i64 thread, i64 threads, i64 arguments)` by its address."""
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I64])
        builder.call(builder.inttoptr(values[0], ir.PointerType(kind)), list(values[1:]))
        return context.get_dummy_value()
    return types.void(*[types.int64] * 4), emit


@intrinsic
def call_syscall(typing: Any, function: types.Integer, number: types.Integer, first: types.Integer,
                 second: types.Integer, third: types.Integer) -> tuple[Any, Emit]:
    """Call libc's `syscall(number, first, second, third, NULL)` by its address; its result."""
    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I64], var_arg=True)
        pointer = builder.inttoptr(values[0], ir.PointerType(kind))
        return builder.call(pointer, [*values[1:], ir.Constant(_I64, 0)])
    return types.int64(*[types.int64] * 5), emit
