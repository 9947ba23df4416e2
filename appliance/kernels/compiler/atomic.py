"""Atomic words, the spin hint, and calls through an address, for kernels. Addresses are int64.

Every access here is sequentially consistent, which says nothing of plain loads before it: see
`loads_before`.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from appliance.kernels.compiler.emit import I32, I64, Code, Val
from appliance.kernels.compiler.vector import i32, i64, operation, pointer_call

call_part = pointer_call("void(i8,i8,i8)")
"""Call `void function(i64 thread, i64 threads, i64 arguments)` by its address."""


@operation(i32, i64)
def load(code: Code, address: Val) -> Val:
    """The int32 at an address."""
    return Val(code, code.b.load_atomic(code.pointer(address, I32), "seq_cst", 4))


@operation(types.void, i64, i32)
def store(code: Code, address: Val, value: Val) -> None:
    """Store an int32 at an address."""
    code.b.store_atomic(value.ir, code.pointer(address, I32), "seq_cst", 4)


@operation(i32, i64, i32)
def add(code: Code, address: Val, value: Val) -> Val:
    """Add to the int32 at an address and give what was there before."""
    return Val(code, code.b.atomic_rmw("add", code.pointer(address, I32), value.ir, "seq_cst"))


@operation(i64, i64)
def load_long(code: Code, address: Val) -> Val:
    """The int64 at an address."""
    return Val(code, code.b.load_atomic(code.pointer(address, I64), "seq_cst", 8))


@operation(types.void, i64, i64)
def store_long(code: Code, address: Val, value: Val) -> None:
    """Store an int64 at an address."""
    code.b.store_atomic(value.ir, code.pointer(address, I64), "seq_cst", 8)


@operation(i64, i64, i64, i64)
def exchange_long(code: Code, address: Val, old: Val, new: Val) -> Val:
    """Store `new` at an address if `old` is there; give what was there before."""
    both = code.b.cmpxchg(code.pointer(address, I64), old.ir, new.ir, "seq_cst", "seq_cst")
    return Val(code, code.b.extract_value(both, 0))


@operation(types.void)
def loads_before(code: Code) -> None:
    """Loads before this are done before any load or store after it. (x86 does that anyway.)"""
    code.b.fence("acquire")


@operation(types.void)
def pause(code: Code) -> None:
    """Tell the CPU that this is a spin loop."""
    if code.target == "neon":
        code.call("llvm.aarch64.hint", ir.VoidType(), code.constant(I32, 1))  # yield
    else:
        code.call("llvm.x86.sse2.pause", ir.VoidType())


@operation(i64, i64, i64, i64, i64, i64)
def call_syscall(code: Code, function: Val, number: Val, first: Val, second: Val, third: Val) -> Val:
    """Call libc's `syscall(number, first, second, third, NULL)` by its address; its result."""
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    words = [number, first, second, third, code.constant(I64, 0)]
    return Val(code, code.b.call(code.pointer(function, kind), [word.ir for word in words]))
