"""Which basic blocks of product kernels run: `python -m tests.support.kernel_blocks TARGET FORMAT...`.

Compiles the products of some formats with a store of 1 at the start of each block of LLVM's, and prints as JSON, for
each format, the functions with blocks that the self-test does not run and products of other sizes do. On a CPU without
AMX, its instructions are emulated.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm

from appliance.boot.selftest import inputs as kernel_inputs
from appliance.boot.selftest import kernels as kernel_answers
from appliance.kernels.compiler import registry
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table, targets
from appliance.kernels.runtime.memory import Memory
from tests.support import matrix_registers

targets.compile_for(sys.argv[1])

from appliance.kernels.compiler import lower  # noqa: E402  fixes what numba compiles for

TOKENS = (1, 2, 3, 5, 6, 7, 11, 12, 13, 16, 17, 18, 24, 29, 30, 31, 32, 33, 40, 45, 47, 48, 63, 64, 68, 70, 81, 100,
          210)
BLOCKS = (1, 2, 3, 4, 7, 9, 40)  # of a row, or 16 columns
_FUNCTION, _LABEL = re.compile(r'@("[^"]*"|[\w.$]+)\('), re.compile(r'("[^"]*"|[\w.$-]+):')


def marked(text: str) -> tuple[str, list[str]]:
    """A module that says in `@blocks` which of its blocks ran, and the function of each."""
    lines: list[str] = []
    functions: list[str] = []
    name, fresh = "", False
    for line in text.splitlines():
        if line.startswith("define "):
            found = _FUNCTION.search(line)
            name, fresh = found[1] if found else "?", True
        elif name and _LABEL.match(line):
            fresh = True
        elif line == "}":
            name = ""
        elif name and fresh and line.startswith("  ") and " = phi " not in line:
            lines.append(f"  store i8 1, ptr getelementptr (i8, ptr @blocks, i64 {len(functions)})")
            functions.append(name)
            fresh = False
        lines.append(line)
    return "\n".join([*lines, f"@blocks = global [{len(functions)} x i8] zeroinitializer"]), functions


class Loader(lower.Loader):
    """Loads kernels that are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[str] = []
        self.ran: Any = None

    def load(self, kernel: registry.Kernel) -> int:
        """As of any loader."""
        if not kernel.name.startswith("product_"):
            return super().load(kernel)
        text, self.functions = marked(str(lower._module(kernel)))
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), lower._machine())
        with lower._machine() as machine:
            data = bytes(machine.emit_object(llvm.parse_assembly(text)))
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        self._engines.append(engine)
        self.ran = (ctypes.c_uint8 * len(self.functions)).from_address(engine.get_global_value_address("blocks"))
        return int(engine.get_function_address(lower.PREFIX + kernel.name))


def multiply(kernels: table.KernelTable, name: str) -> None:
    """Products of many sizes."""
    kind, rows = shapes.activation_kind(name), kernel_inputs.ROWS
    for columns in (shapes.column_multiple(name) * count for count in BLOCKS):
        weights = kernel_inputs.packed(name, kernel_inputs.weights(name, rows, columns), rows, columns)
        for tokens in TOKENS:
            activations, out = Memory(shapes.activation_nbytes(kind, columns, tokens)), Memory(4 * rows * tokens)
            for accumulate in (0, 1):
                kernels.function(f"product_{shapes.SHAPES[name].suffix}")(
                    weights.address, columns, activations.address, tokens, out.address, 4 * rows, accumulate, 0,
                    rows // shapes.GROUP_ROWS)


def main(target: str, formats: Sequence[str]) -> None:
    """Print the functions of each format."""
    loader, defined, found = Loader(), registry.definitions(), {}
    emulated = target == "amx" and not targets.cpu_flags() >= targets.by_name(target).required
    emulator = matrix_registers.Emulator() if emulated else None  # held while kernels run
    kernels = table.KernelTable(matrix_registers.AMX if emulator else targets.runnable(target), "jit", {
        name: kernel.signature for name, kernel in defined.items()}, lambda name: loader.load(defined[name]))
    for name in formats:
        kernel_answers.output(kernels, f"product_{shapes.SHAPES[name].suffix}")
        tested = bytes(loader.ran)
        multiply(kernels, name)
        found[name] = sorted({function for function, before, after in zip(
            loader.functions, tested, bytes(loader.ran), strict=True) if after > before})
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
