"""Compile the image's own programs in C: compiler, assembler and linker of pinned packages, one
after the other.

    init   the initrd's first process: a static ELF program without a C library
    gate   what runs before the boot stub: bare code for one address of the EFI program
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from appliance.imaging.disk.toolchain import Toolchain

_COMPILER = "usr/libexec/gcc/x86_64-linux-gnu/14/cc1"
_ASSEMBLER, _LINKER = "usr/bin/x86_64-linux-gnu-as", "usr/bin/x86_64-linux-gnu-ld.bfd"
_FLAGS = ("-quiet", "-std=gnu17", "-ffreestanding", "-fno-builtin", "-fcf-protection=none",
          "-fstack-protector-explicit", "-mno-red-zone", "-mgeneral-regs-only", "-fno-asynchronous-unwind-tables",
          "-Wall", "-Wextra", "-Werror", "-nostdinc")


def compile_init(tools: Toolchain, source: Path) -> bytes:
    """Return a static ELF program without a C library. Raises ImageError with the compiler's
    words."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "init.c").write_bytes(source.read_bytes())
        includes = [word for name in ("usr/include", "usr/include/x86_64-linux-gnu")
                    for word in ("-isystem", str(tools.root / name))]
        tools.run(_COMPILER, *_FLAGS, "-O2", "-fno-pie", *includes, "init.c", "-o", "init.s", cwd=work)
        tools.run(_ASSEMBLER, "--noexecstack", "init.s", "-o", "init.o", cwd=work)
        tools.run(_LINKER, "-static", "-nostdlib", "--strip-all", "--build-id=none", "-z", "noexecstack", "-z", "relro",
                  "-z", "separate-code", "--fatal-warnings", "init.o", "-o", "init", cwd=work)
        return (work / "init").read_bytes()


@dataclass(frozen=True)
class Gate:
    """How a gate is made. Addresses are relative to the EFI program's, in bytes."""

    address: int  # of its first instruction
    boot_stub: int  # of the stub's, where it goes on
    tpm: bool  # whether the policy allows a TPM
    td: bool  # whether it allows a TD, whose processors are woken through a mailbox


def compile_gate(tools: Toolchain, folder: Path, gate: Gate) -> bytes:
    """Bare code, without writable data. `folder` holds gate.c. Raises ImageError with the
    compiler's words."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        for name in ("gate.c", "tables.h", "aml.h", "gate.ld"):
            (work / name).write_bytes((folder / name).read_bytes())
        tools.run(_COMPILER, *_FLAGS, "-Os", "-fpie", "-fvisibility=hidden", "-fno-jump-tables",
                  f"-DTPM_ALLOWED={gate.tpm:d}", f"-DTD_ALLOWED={gate.td:d}", "gate.c", "-o", "gate.s", cwd=work)
        tools.run(_ASSEMBLER, "--noexecstack", "gate.s", "-o", "gate.o", cwd=work)
        tools.run(_LINKER, "-static", "-nostdlib", "--build-id=none", "--fatal-warnings",
                  f"--defsym=address={gate.address:#x}", f"--defsym=boot_stub={gate.boot_stub:#x}", "-T", "gate.ld",
                  "--oformat=binary", "gate.o", "-o", "gate.bin", cwd=work)
        return (work / "gate.bin").read_bytes()
