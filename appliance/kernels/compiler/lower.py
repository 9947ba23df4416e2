"""From a registered kernel to the bytes of an object file; the JIT and the ahead-of-time build
share them.

numba compiles the kernel to an optimised LLVM module. Around its native entry (which returns a
status and takes places for result and exception) goes a function with the plain C signature.
Everything but that function becomes internal, and unused code is dropped. LLVM emits a
position-independent object. A process that loads that object (`table`) and a library linked from it
(`ahead`) run the same instructions.
"""

from __future__ import annotations

import struct
from typing import Any

import llvmlite.binding as llvm

from appliance.errors import EngineError
from appliance.kernels.compiler import jit
from appliance.kernels.compiler.registry import ALLOWED_SYMBOLS, Kernel
from appliance.kernels.runtime import targets
from appliance.kernels.runtime.ahead import PREFIX

_LLVM = {  # its names of the scalars of signatures
    "void": "void", "i1": "i8", "u1": "i8", "i2": "i16", "u2": "i16", "i4": "i32", "u4": "i32", "i8": "i64",
    "u8": "i64", "f4": "float", "f8": "double"}
_EXCEPTION = ".const.picklebuf"  # numba's name for the constant that describes a raised exception


def _entry(kernel: Kernel, native: str) -> str:
    """LLVM text of the C function: calls numba's native entry, ignores the status (kernels do not
    raise)."""
    kinds = [_LLVM[each] for each in kernel.signature.arguments]
    result = _LLVM[kernel.signature.result]
    place = "ptr" if result == "void" else result  # numba returns `None` through a pointer, too
    formal = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds))
    native_kinds = ", ".join(["ptr", "ptr", *kinds])
    actual = ", ".join(["ptr %result", "ptr %raised", *(f"{kind} %a{i}" for i, kind in enumerate(kinds))])
    finish = "ret void" if result == "void" else f"%value = load {result}, ptr %result\n  ret {result} %value"
    return f"""
declare i32 @{native}({native_kinds})
define {result} @{PREFIX}{kernel.name}({formal}) {{
  %result = alloca {place}
  %raised = alloca ptr
  %status = call i32 @{native}({actual})
  {finish}
}}
"""


def _module(kernel: Kernel) -> Any:
    """The kernel's LLVM module, reduced to the C function and what it uses."""
    text, native = jit.compile_native(kernel.function, str(kernel.signature))
    module = llvm.parse_assembly(text)
    entry = llvm.parse_assembly(_entry(kernel, f'"{native}"'))
    entry.triple, entry.data_layout = module.triple, module.data_layout
    module.link_in(entry)
    for item in (*module.functions, *module.global_variables):
        if not item.is_declaration and item.name != PREFIX + kernel.name:
            item.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    with _machine() as machine:
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2)))
    inner = [item for item in module.functions if item.linkage == llvm.Linkage.internal]
    for index, item in enumerate(inner):
        item.name = f"inner.{index}"  # numba's names count what this process has compiled before
    module.verify()
    return module


def _machine() -> Any:
    target = targets.compiling()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.llvm_cpu, features=target.llvm_features, opt=3, reloc="pic", codemodel="default")


def _undefined(data: bytes) -> set[str]:
    """Symbols that an object needs (ELF-64 symbol table entries: name, info, other, section, value,
    size)."""
    sections = {section.name(): section.data() for section in llvm.ObjectFileRef.from_data(data).sections()}
    names = sections[b".strtab"]
    entries = struct.iter_unpack("<IBBHQQ", sections[b".symtab"])
    starts = [name for name, _, _, where, _, _ in entries if where == 0 and name]
    return {names[start:names.index(0, start)].decode() for start in starts}


def lower(kernel: Kernel) -> bytes:
    """Compile one kernel to an object file that defines `PREFIX + name`; EngineError says what is
    not allowed."""
    module = _module(kernel)
    if any(item.name.startswith(_EXCEPTION) for item in module.global_variables):
        raise EngineError(
            f"kernel {kernel.name} can raise an exception, which nobody would see",
            hint="no raise; range() with a constant step; see registry.py", code="kernel-raises")
    with _machine() as machine:
        data = bytes(machine.emit_object(module))
    outside = _undefined(data) - ALLOWED_SYMBOLS
    if outside:
        raise EngineError(
            f"kernel {kernel.name} needs {', '.join(sorted(outside))} from outside",
            hint=f"allowed: {', '.join(sorted(ALLOWED_SYMBOLS))}", code="kernel-undefined-symbol")
    return data


class Loader:
    """Loads objects into this process (needs writable, then executable memory: development only).
    """

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        self._engines: list[Any] = []  # own the code

    def load(self, kernel: Kernel) -> int:
        """Compile and load one kernel; its address."""
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
        engine.add_object_file(llvm.ObjectFileRef.from_data(lower(kernel)))
        engine.finalize_object()
        self._engines.append(engine)
        address = int(engine.get_function_address(PREFIX + kernel.name))
        if not address:
            raise EngineError(f"kernel {kernel.name} has no code after loading", code="kernel-load")
        return address
