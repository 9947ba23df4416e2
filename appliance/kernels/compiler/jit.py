"""The one place where numba is set up: CPU and features from the target, and the compile flags of
every kernel.

Importing this module fixes numba's CPU for the process, so a definition module imports it before
any use of numba.

Flags: no `fastmath` (no reassociation, no contraction: the bits of a result are those of the
operations as written, `fma` only where it is written), C division (`error_model="numpy"`), no
bounds checks (arguments are raw addresses).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numba
from numba.core import config, sigutils, typing

from appliance.kernels.runtime import targets

DEBUG = targets.debugging()
"""Kernels compile checks in when this is true; it is a constant to numba, so a false branch costs nothing."""

FLAGS: dict[str, Any] = {
    "nogil": True, "error_model": "numpy", "fastmath": False, "boundscheck": False,
    "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
}


def _fix_cpu() -> None:
    target = targets.compiling()
    config.CPU_NAME = target.llvm_cpu
    config.CPU_FEATURES = target.llvm_features
    config.DISABLE_INTEL_SVML = True
    if target.foreign:  # numba compiles for the process's triple; nothing that it compiles is called here
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        llvm.get_process_triple = lambda: target.triple


_fix_cpu()


def device(function: Callable[..., Any] | None = None, *, inline: bool = True) -> Any:
    """A helper that kernels call with values (also vector values); inlined by LLVM unless
    `inline=False`."""
    if function is None:
        return lambda inner: device(inner, inline=inline)
    return numba.njit(forceinline=inline, **FLAGS)(function)


def compile_native(function: Callable[..., Any], signature: str) -> tuple[str, str]:
    """Compile one kernel; its optimised LLVM module as text, and the symbol of its native entry in
    it."""
    arguments, result = sigutils.normalize_signature(signature)
    dispatcher = numba.njit(**FLAGS)(function)
    dispatcher.compile(typing.signature(result, *arguments))
    compiled = dispatcher.overloads[arguments]
    return compiled.library.get_llvm_str(), compiled.fndesc.llvm_func_name
