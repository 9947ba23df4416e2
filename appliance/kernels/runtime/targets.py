"""CPU targets of the compiled kernels, and which of them this CPU can run.

A target is a fixed LLVM CPU and feature list, the same on every build machine, so that what is
compiled never depends on the host that compiles it, which may be of another architecture. A process
compiles for one target only (numba's CPU settings are process-wide); any number of prebuilt
libraries for targets that this CPU supports can be loaded beside each other.

This module knows nothing of numba. CPU features come from /proc/cpuinfo, where the kernel lists
what CPUID reports *and* what the operating system has enabled (an AVX-512 CPU whose state is not
saved is not listed there).
"""

from __future__ import annotations

import ctypes
import functools
import platform
from dataclasses import dataclass, field
from pathlib import Path

from appliance.errors import EngineError

CPUINFO = Path("/proc/cpuinfo")

# x86-64 psABI levels in the names of /proc/cpuinfo (`pni` is SSE3, `abm` includes LZCNT).
_LEVEL_2 = frozenset({"cx16", "lahf_lm", "pni", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_LEVEL_3 = _LEVEL_2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_LEVEL_4 = _LEVEL_3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}

# The same levels in LLVM's names; spelled out although the CPU names imply them, for whoever looks
# at features only. PREFETCHW is no part of a level, but every 64-bit CPU takes it (at worst as
# NOP). Without it, asking for a line to write would fetch one to read, and the store would still
# wait for its owner.
_LLVM_3 = ("+avx,+avx2,+bmi,+bmi2,+cx16,+f16c,+fma,+lzcnt,+movbe,+popcnt,+sahf,+sse3,+sse4.1,+sse4.2,+ssse3,"
           "+prfchw,+xsave")
_LLVM_4 = _LLVM_3 + ",+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"


@dataclass(frozen=True)
class Target:
    """One instruction set to compile for: what LLVM is told, and what the CPU must have."""

    name: str
    machine: str  # platform.machine() of the CPUs that it is for
    llvm_cpu: str
    llvm_features: str
    required: frozenset[str] = field(default=frozenset(), repr=False)  # flags of /proc/cpuinfo
    amx: bool = False  # matrix registers, which a process has to ask the kernel for
    evenly: bool = False  # memory is asked for a line at a time, mostly each twice (`patch.Prefetch`)

    @property
    def vectors(self) -> str:
        """The target whose vector instructions it has."""
        return "avx512vnni" if "avx512_vnni" in self.required else self.name

    @property
    def triple(self) -> str:
        """LLVM's name of the machine and its system."""
        return f"{self.machine}-unknown-linux-gnu"

    @property
    def foreign(self) -> bool:
        """Whether it is for machines of another architecture: this one can build for it, and run
        nothing of it."""
        return self.machine != platform.machine()


# Best first. `portable` and `neon` use no target intrinsic: LLVM lowers generic vectors for the
# baseline.
_X86 = (
    Target("amx", "x86_64", "x86-64-v4", _LLVM_4 + ",+amx-int8,+amx-tile,+avx512vnni,-prefer-256-bit",
           _LEVEL_4 | {"amx_int8", "amx_tile", "avx512_vnni"}, amx=True, evenly=True),
    # The instructions of the next one, another use of memory; these features together are what
    # tells such a CPU.
    Target("zen5", "x86_64", "x86-64-v4", _LLVM_4 + ",+avx512vnni,-prefer-256-bit",
           _LEVEL_4 | {"avx512_vnni", "avx512_vp2intersect", "avx_vnni"}),
    Target("avx512vnni", "x86_64", "x86-64-v4", _LLVM_4 + ",+avx512vnni,-prefer-256-bit",
           _LEVEL_4 | {"avx512_vnni"}, evenly=True),
    Target("avx2", "x86_64", "x86-64-v3", _LLVM_3, _LEVEL_3),
    Target("portable", "x86_64", "x86-64", ""),
)
_ARM = (Target("neon", "aarch64", "generic", "+neon"),)
_ALL = {"x86_64": _X86, "aarch64": _ARM}

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18

_compiling: tuple[Target, bool] | None = None


def known(machine: str | None = None) -> tuple[Target, ...]:
    """Every target of an architecture (this machine's by default), best first."""
    return _ALL.get(machine or platform.machine(), ())


def cpu_flags(text: str | None = None) -> frozenset[str]:
    """Features of the first CPU in the text of /proc/cpuinfo (read when not given)."""
    if text is None:
        try:
            text = CPUINFO.read_text(encoding="ascii", errors="replace")  # the model's name is the host's
        except OSError:  # nothing is known of the CPU: only the portable target remains
            return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def supported(flags: frozenset[str] | None = None) -> tuple[Target, ...]:
    """Targets that a CPU with these flags (this CPU by default) can run, best first."""
    have = cpu_flags() if flags is None else flags
    return tuple(target for target in known() if target.required <= have and (not target.amx or amx_permitted()))


@functools.cache
def amx_permitted() -> bool:
    """Ask the kernel for AMX's tile registers, for all threads of this process; whether it grants
    them (Linux's Documentation/arch/x86/xstate.rst). The first use without that ends the process.
    """
    if platform.machine() != "x86_64":
        return False
    call = ctypes.CDLL(None).syscall
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 3
    return bool(call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def detect(flags: frozenset[str] | None = None) -> Target:
    """The best target of this CPU; EngineError on an architecture without any."""
    found = supported(flags)
    if not found:
        raise EngineError(f"no kernels for the architecture {platform.machine()}",
                          hint="the engine runs on x86_64 and aarch64", code="target-unknown")
    return found[0]


def by_name(name: str) -> Target:
    """The target with this name, of whatever architecture."""
    found = [target for machine in _ALL for target in known(machine)]
    for target in found:
        if target.name == name:
            return target
    names = ", ".join(f"{target.name} ({target.machine})" for target in found)
    raise EngineError(f"unknown kernel target {name!r}", hint=f"one of: {names}", code="target-unknown")


def runnable(name: str) -> Target:
    """The named target, refused when this CPU lacks one of its features (LLVM code would end the
    process)."""
    target = by_name(name)
    missing = sorted(target.required - cpu_flags())
    refused = not target.foreign and not missing and target.amx and not amx_permitted()
    if target.foreign or missing or refused:
        reason = (f"it is no {target.machine}" if target.foreign else f"it lacks {', '.join(missing)}" if missing else
                  "the kernel does not grant this process tile registers (ARCH_REQ_XCOMP_PERM)")
        raise EngineError(f"this CPU cannot run kernels for {name}: {reason}", hint=f"use {detect().name}",
                          code="target-unsupported")
    return target


def compile_for(name: str, *, debug: bool = False) -> Target:
    """Fix the target that this process compiles for; compiling for two targets in one process is
    refused."""
    global _compiling
    wanted = (by_name(name), debug)
    if _compiling is not None and _compiling != wanted:
        raise EngineError(
            f"this process already compiles kernels for {_compiling[0].name}, not for {name}",
            hint="compile for another target in a process of its own", code="target-fixed")
    _compiling = wanted
    return wanted[0]


def compiling() -> Target:
    """The target that this process compiles for: as fixed by `compile_for`, else the best of this
    CPU."""
    return compile_for(detect().name) if _compiling is None else _compiling[0]


def debugging() -> bool:
    """Whether kernels are compiled with checks inside (`compile_for(name, debug=True)`)."""
    return _compiling is not None and _compiling[1]
