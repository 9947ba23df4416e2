"""Runs the vector operations that differ between CPUs: `python -m tests.support.vector_bits TARGET` prints digests.

`... vector_bits TARGET OBJECT` writes an object file instead, for a machine of another architecture; there
`... vector_bits - LIBRARY` runs the library that it was linked to.

The inputs are chosen where the ways to compute differ: every binary16, sums that nearly cancel, subnormals, ties.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from appliance.kernels.runtime import targets
from appliance.kernels.runtime.signature import CSignature

COUNT = 1 << 16
SIGNATURE = CSignature.parse("void(i8,i8,i8,i8,i8,i8,i8,i8)")


def inputs() -> dict[str, np.ndarray]:
    """Arrays of 65536: `half` (every bit pattern), `x`, `y`, `z` float32, `u` and `s` int32 of 4 bytes each."""
    random = np.random.default_rng(11)
    x, y = (random.integers(0, 1 << 32, COUNT, dtype=np.uint32).view(np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        x, y = (np.where(np.isfinite(v) & (np.abs(v) < 1e18), v, np.float32(3.5)) for v in (x, y))
        z = -(x * y)  # x y + z is the rounding error of x y
        z[1::4] = random.standard_normal(COUNT // 4).astype(np.float32)
        z[2::4] *= np.float32(1 + 2.0 ** -20)
    unsigned = random.integers(0, 128, (COUNT, 4)).astype(np.uint8)
    signed = random.integers(-127, 128, (COUNT, 4)).astype(np.int8)
    unsigned[:64], signed[:32], signed[32:64] = 127, 127, -127
    return {"half": np.arange(COUNT, dtype=np.uint16), "x": x, "y": y, "z": z,
            "u": unsigned.view(np.int32)[:, 0].copy(), "s": signed.view(np.int32)[:, 0].copy()}


def _kernels() -> Any:
    from numba.core import types

    from appliance.kernels.compiler.emit import I16, Code, Val
    from appliance.kernels.compiler.vector import (
        f32x16,
        fma_f32,
        get_f32,
        i32x16,
        i64,
        largest_f32,
        load_f32,
        load_i32,
        nearest_i32,
        operation,
        round_f16,
        set_f32,
        splat_i32,
        store_f32,
        store_i32,
        sum_f32,
    )

    @operation(f32x16, i64)
    def load_f16(code: Code, address: Val) -> Val:
        return code.half_to_float(code.load(address, I16, 16))

    @operation(types.void, i64, f32x16)
    def store_f16(code: Code, address: Val, value: Val) -> None:
        code.store(address, code.float_to_half(value))

    @operation(i32x16, i32x16, i32x16, i32x16)
    def dot7(code: Code, total: Val, unsigned: Val, signed: Val) -> Val:
        return code.dot7(total, unsigned, signed)

    def run(half: int, x: int, y: int, z: int, u: int, s: int, out: int, count: int) -> None:
        for i in range(count // 16):
            at, to = 64 * i, out + 64 * i
            store_f32(to, load_f16(half + 32 * i))
            store_f16(to + 4 * count, load_f32(z + at))
            store_f32(to + 8 * count, fma_f32(load_f32(x + at), load_f32(y + at), load_f32(z + at)))
            store_i32(to + 12 * count, dot7(splat_i32(7), load_i32(u + at), load_i32(s + at)))
            store_i32(to + 16 * count, nearest_i32(load_f32(z + at)))
            set_f32(to + 20 * count, sum_f32(load_f32(z + at)))
            set_f32(to + 20 * count + 4, largest_f32(load_f32(z + at)))
            set_f32(to + 20 * count + 8, round_f16(get_f32(z + at)))
    return run


def kernel() -> Any:
    """All operations as one kernel."""
    from appliance.kernels.compiler.registry import Kernel
    return Kernel("vector_bits", SIGNATURE, _kernels())


def outputs(address: int | None = None) -> dict[str, np.ndarray]:
    """Return the result of the kernel at an address on `inputs`; by default one compiled here, for
    this process's target."""
    if address is None:
        from appliance.kernels.compiler.lower import Loader
        loader = Loader()
        address = loader.load(kernel())
    given, out = inputs(), np.zeros((6, COUNT), np.uint32)
    SIGNATURE.prototype(address)(*(ctypes.c_int64(array.ctypes.data) for array in given.values()),
                                 out.ctypes.data, COUNT)
    halves = out[1].view(np.uint16).reshape(-1, 32)[:, :16].ravel()
    scalars = out[5].view(np.float32).reshape(-1, 16)[:, :3]
    return {"widened": out[0].view(np.float32), "halves": halves, "fma": out[2].view(np.float32),
            "dot": out[3].view(np.int32), "nearest": out[4].view(np.int32), "scalars": scalars.copy()}


def digests(found: dict[str, np.ndarray]) -> dict[str, str]:
    """SHA-256 of each output."""
    return {name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for name, array in found.items()}


def main(target: str, *file: str) -> None:
    """Print digests, or write an object file."""
    if target != "-":
        targets.compile_for(target)
    if not file:
        print(json.dumps(digests(outputs())))
    elif target == "-":
        library = ctypes.CDLL(file[0])
        print(json.dumps(digests(outputs(ctypes.cast(library.kernel_vector_bits, ctypes.c_void_p).value))))
    else:
        from appliance.kernels.compiler.lower import lower
        Path(file[0]).write_bytes(lower(kernel()))


if __name__ == "__main__":
    main(*sys.argv[1:])
