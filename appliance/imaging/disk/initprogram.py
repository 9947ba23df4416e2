"""Compile the initrd's init: compiler, assembler and linker of pinned packages, one after the
other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from appliance.imaging.disk.toolchain import Toolchain

_COMPILER = "usr/libexec/gcc/x86_64-linux-gnu/14/cc1"
_ASSEMBLER, _LINKER = "usr/bin/x86_64-linux-gnu-as", "usr/bin/x86_64-linux-gnu-ld.bfd"
_FLAGS = ("-quiet", "-O2", "-std=gnu17", "-ffreestanding", "-fno-builtin", "-fno-pie", "-fcf-protection=none",
          "-fstack-protector-explicit", "-mno-red-zone", "-mgeneral-regs-only", "-fno-asynchronous-unwind-tables",
          "-Wall", "-Wextra", "-Werror", "-nostdinc")


def compile_init(tools: Toolchain, source: Path) -> bytes:
    """A static ELF program without a C library. ImageError with the compiler's words."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "init.c").write_bytes(source.read_bytes())
        includes = [word for name in ("usr/include", "usr/include/x86_64-linux-gnu")
                    for word in ("-isystem", str(tools.root / name))]
        tools.run(_COMPILER, *_FLAGS, *includes, "init.c", "-o", "init.s", cwd=work)
        tools.run(_ASSEMBLER, "--noexecstack", "init.s", "-o", "init.o", cwd=work)
        tools.run(_LINKER, "-static", "-nostdlib", "--strip-all", "--build-id=none", "-z", "noexecstack", "-z", "relro",
                  "-z", "separate-code", "--fatal-warnings", "init.o", "-o", "init", cwd=work)
        return (work / "init").read_bytes()
