"""The list of kernels: a name, a C signature and the Python function that is lowered when it is
first needed.

    @kernel("scale_f32", "void(i8,i8,f4)")
    def scale_f32(x, n, factor): ...

Nothing is compiled here, and numba is not imported: a definition module (one listed in
`DEFINITIONS`) imports numba itself, through `jit`, and is imported only by whoever compiles. A
factory registers many kernels in a loop; what differs between them are closure variables, which
numba freezes to constants when it compiles.

Rules for a kernel (checked when it is lowered ahead of time):
- arguments and result are the scalars of `signature.CTYPES`; memory is passed as an int64 address;
- no `raise`, no Python object, no allocation: an error inside a kernel would be lost;
- no call of the C library beyond the few functions of ALLOWED_SYMBOLS, so that results
  never depend on it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance.kernels.runtime.signature import CSignature

PACKAGE = "appliance.kernels"

# Modules that define kernels, below `code`. They import numba; nothing needs them when a library is
# prebuilt.
DEFINITIONS: tuple[str, ...] = (
    "step.lockstep", "rows.quantise", "rows.weights", "product.product", "product.gather", "attention.attention",
    "product.pack", "step.fetch", "step.step", "search.search", "oblivious.merge",
    "oblivious.choice", "oblivious.order", "oblivious.stop", "oblivious.read",
    "oblivious.write")

# C functions whose result is defined to the last bit, so that any C library will do.
ALLOWED_SYMBOLS = frozenset({
    "memcpy", "memmove", "memset",
    "ceil", "ceilf", "floor", "floorf", "fma", "fmaf", "nearbyint", "nearbyintf", "rint", "rintf",
    "roundeven", "roundevenf", "sqrt", "sqrtf", "trunc", "truncf",
})

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Kernel:
    """One registered kernel."""

    name: str
    signature: CSignature
    function: Callable[..., Any]


_kernels: dict[str, Kernel] = {}


def kernel(name: str, signature: str) -> Callable[[_F], _F]:
    """Register the decorated function under a name that is unique among all kernels; returns it
    unchanged."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"kernel name {name!r}: lower-case letters, digits and _ only")

    def register(function: _F) -> _F:
        if name in _kernels:
            raise ValueError(f"kernel {name!r} is registered twice")
        _kernels[name] = Kernel(name, CSignature.parse(signature), function)
        return function

    return register


def definitions() -> dict[str, Kernel]:
    """All kernels by name, sorted; imports every definition module (and with them numba)."""
    for module in DEFINITIONS:
        importlib.import_module(f"{PACKAGE}.code.{module}")
    return dict(sorted(_kernels.items()))
