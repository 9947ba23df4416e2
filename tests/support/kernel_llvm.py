"""`python -m tests.support.kernel_llvm TARGET KERNEL...`: the optimised LLVM code of kernels for a target."""

from __future__ import annotations

import sys

from appliance.kernels.runtime import targets


def main(target: str, *names: str) -> None:
    """Compile; a process compiles for one target."""
    targets.compile_for(target)
    from appliance.kernels.compiler import jit, registry

    for name in names:
        kernel = registry.definitions()[name]
        print(jit.compile_native(kernel.function, str(kernel.signature))[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
