"""Kernel runtime: targets, signatures, registration, lowering, memory, CPU quota."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import EngineError
from appliance.kernels.compiler import lower, registry
from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.runtime import ahead, memory, quota, table, targets
from appliance.kernels.runtime.signature import CSignature

MILAN = "fpu cx16 lahf_lm popcnt pni ssse3 sse4_1 sse4_2 abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
SKYLAKE_X = f"{MILAN} avx512f avx512bw avx512cd avx512dq avx512vl"
GENOA = f"{SKYLAKE_X} avx512_vnni"
TURIN = f"{GENOA} avx512_vp2intersect avx_vnni"
SAPPHIRE_RAPIDS = f"{GENOA} avx_vnni amx_bf16 amx_int8 amx_tile"


@pytest.mark.parametrize(("flags", "names"), [
    (SAPPHIRE_RAPIDS, [*(["amx"] if targets.amx_permitted() else []), "avx512vnni", "avx2", "portable"]),
    (SAPPHIRE_RAPIDS.replace("amx_int8", ""), ["avx512vnni", "avx2", "portable"]),
    (GENOA, ["avx512vnni", "avx2", "portable"]),
    (TURIN, ["zen5", "avx512vnni", "avx2", "portable"]),
    (SKYLAKE_X, ["avx2", "portable"]),
    (GENOA.replace("avx512vl", ""), ["avx2", "portable"]),
    (MILAN, ["avx2", "portable"]),
    (MILAN.replace("f16c", ""), ["portable"]),
    (MILAN.replace("avx2", ""), ["portable"]),
    ("fpu sse2", ["portable"]),
])
def test_target_needs_every_feature(flags, names, monkeypatch):
    """A target is offered only with all of its features, best first."""
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    assert names == [target.name for target in targets.supported(frozenset(flags.split()))]


def test_cpu_flags_of_both_architectures():
    """Flags are read from the first CPU, under either of the kernel's two headings."""
    assert frozenset({"fpu", "avx2"}) == targets.cpu_flags("processor\t: 0\nflags\t\t: fpu avx2\nflags : other\n")
    assert frozenset({"fp", "asimd"}) == targets.cpu_flags("processor : 0\nFeatures : fp asimd\n")
    assert frozenset() == targets.cpu_flags("nothing")


def test_unreadable_cpuinfo_leaves_the_portable_target(tmp_path, monkeypatch):
    """Where nothing is known of the CPU, no special instruction is used."""
    monkeypatch.setattr(targets, "CPUINFO", tmp_path / "none")
    assert "portable" == targets.detect().name


def test_other_architectures(monkeypatch):
    """Aarch64 runs what LLVM lowers for its baseline, whatever /proc/cpuinfo says; an unknown one runs nothing."""
    assert ["neon"] == [target.name for target in targets.known("aarch64")]
    assert targets.known("riscv64") == ()
    monkeypatch.setattr(targets.platform, "machine", lambda: "aarch64")
    for flags in ("", "fp asimd", GENOA):
        assert "neon" == targets.detect(frozenset(flags.split())).name
    with pytest.raises(EngineError, match="cannot run kernels for avx2: it is no x86_64"):
        targets.runnable("avx2")
    monkeypatch.setattr(targets.platform, "machine", lambda: "riscv64")
    with pytest.raises(EngineError, match="no kernels for the architecture riscv64"):
        targets.detect()


def test_names_are_unique():
    """A name says the architecture, too: libraries for several lie in one folder."""
    every = [*targets.known("x86_64"), *targets.known("aarch64")]
    assert every == [targets.by_name(target.name) for target in every]


def test_kernels_for_missing_features_are_never_loaded(tmp_path, monkeypatch):
    """A CPU without AVX2 is refused AVX2 kernels before any library is opened, whichever path asks for them."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fpu sse2\n")
    monkeypatch.setattr(targets, "CPUINFO", cpuinfo)
    for library in (None, tmp_path / "kernels-avx2.so"):
        with pytest.raises(EngineError, match=r"lacks .*avx2") as caught:
            table.load("avx2", library)
        assert caught.value.code == "target-unsupported"
    assert targets.detect().name == "portable"


@pytest.mark.skipif("amx_int8" not in targets.cpu_flags(), reason="this CPU has no AMX")
def test_without_the_kernels_leave_amx_is_never_used():
    """Linux grants no tile registers to a process with a signal stack too small for them: the next target is used."""
    program = (
        "import ctypes\n"
        "stack = ctypes.create_string_buffer(4096)\n"
        "class Stack(ctypes.Structure):\n"
        "    _fields_ = [('sp', ctypes.c_void_p), ('flags', ctypes.c_int), ('size', ctypes.c_size_t)]\n"
        "assert ctypes.CDLL(None).sigaltstack(ctypes.byref(Stack(ctypes.addressof(stack), 0, 4096)), None) == 0\n"
        "from appliance.kernels.runtime import targets\n"
        "print(targets.detect().name)\n"
        "targets.runnable('amx')\n")
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert "avx512vnni" == done.stdout.strip()
    assert "the kernel does not grant this process tile registers" in done.stderr


def test_one_process_compiles_for_one_target():
    """A second target in one process is refused; the same one again is not."""
    now = targets.compiling()
    other = next(target for target in targets.known() if target != now)
    assert now == targets.compile_for(now.name)
    with pytest.raises(EngineError, match="already compiles") as caught:
        targets.compile_for(other.name)
    assert caught.value.code == "target-fixed"
    with pytest.raises(EngineError, match="unknown kernel target 'mmx'") as caught:
        targets.by_name("mmx")
    assert "neon (aarch64)" in str(caught.value.hint)


@pytest.mark.parametrize("text", ["void(i8,i4,f4)", "i8()", "f4(f4)", "u1(u2,u4,u8,i1,i2,f8)"])
def test_signature_round_trip(text):
    """A signature prints as it was written."""
    assert text == str(CSignature.parse(text))


@pytest.mark.parametrize("text", ["", "void", "void(", "void(void)", "void(i8,)", "void(f2)", "array(i8)", "i8(i8)x"])
def test_signature_refusals(text):
    """What is no scalar of the C boundary is refused."""
    with pytest.raises(ValueError, match="signature"):
        CSignature.parse(text)


def test_registration_refusals():
    """Names are unique and plain."""
    with pytest.raises(ValueError, match="lower-case"):
        registry.kernel("No-Name", "void()")
    registry.definitions()
    with pytest.raises(ValueError, match="twice"):
        registry.kernel("lockstep_run", "void()")(lambda: None)


@pytest.fixture(scope="module")
def loader():
    """Loads kernels that are compiled here."""
    targets.compiling()
    return lower.Loader()


def make(loader, name, signature, function):
    """A ctypes function of a kernel that is not in the registry."""
    kernel = Kernel(name, CSignature.parse(signature), function)
    return kernel.signature.prototype(loader.load(kernel))


def test_a_factory_makes_different_kernels(loader):
    """Closure variables become constants of each kernel."""
    def factory(factor):
        def scale(x):
            return x * factor
        return scale

    functions = [make(loader, f"scale_{factor}", "i8(i8)", factory(factor)) for factor in (2, 3, 5)]
    assert [14, 21, 35] == [function(7) for function in functions]


@pytest.mark.parametrize(("signature", "arguments", "expected"), [
    ("i8(i8,i8)", (1 << 40, -1), (1 << 40) - 1), ("i4(i4,i4)", (-5, 3), -2), ("f4(f4,f4)", (0.5, 0.25), 0.75),
    ("f8(f8,f8)", (0.1, 0.2), 0.1 + 0.2), ("u1(u1,u1)", (200, 55), 255), ("i2(i2,i2)", (-300, 1), -299),
])
def test_scalars_cross_the_boundary(loader, signature, arguments, expected):
    """Each scalar type goes in and comes out."""
    def plus(a, b):
        return a + b

    name = "plus_" + signature[:2]
    assert expected == make(loader, name, signature, plus)(*arguments)


def test_multiply_and_add_are_not_fused(loader):
    """LLVM neither contracts nor reassociates: a float32 loop gives the bits of the operations as written."""
    from numba import carray, float32, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    @intrinsic
    def pointer(typing, address):
        def emit(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], cgutils.voidptr_t.__class__(context.get_value_type(types.float32)))
        return types.CPointer(types.float32)(types.int64), emit

    def chain(a, b, n, out):
        x, y, z = carray(pointer(a), n), carray(pointer(b), n), carray(pointer(out), 1)
        total = float32(0)
        for i in range(n):
            total = total + x[i] * y[i]
        z[0] = total

    random = np.random.default_rng(1)
    a, b = random.standard_normal((2, 1000)).astype(np.float32)
    out, expected = np.zeros(1, np.float32), np.float32(0)
    for x, y in zip(a, b, strict=True):
        expected += x * y
    make(loader, "chain", "void(i8,i8,i8,i8)", chain)(a.ctypes.data, b.ctypes.data, 1000, out.ctypes.data)
    assert expected.tobytes() == out.tobytes()
    exact = math.fsum(x * y for x, y in zip(a.astype(float), b.astype(float), strict=True))
    assert expected == pytest.approx(exact, rel=1e-4)


def test_a_kernel_that_raises_is_refused():
    """An exception would be lost, so a kernel that can raise is not lowered."""
    def fails(x):
        if x > 3:
            raise ValueError("too large")
        return x

    with pytest.raises(EngineError, match="can raise") as caught:
        lower.lower(Kernel("fails", CSignature.parse("i8(i8)"), fails))
    assert caught.value.code == "kernel-raises"


def test_a_kernel_that_calls_libm_is_refused():
    """The C library's exp differs between versions, so a kernel must not call it."""
    with pytest.raises(EngineError, match=r"needs .*exp") as caught:
        lower.lower(Kernel("calls", CSignature.parse("f8(f8)"), lambda x: math.exp(x)))
    assert caught.value.code == "kernel-undefined-symbol"


def test_lowering_is_reproducible():
    """The same kernel gives the same object bytes again: nothing in it depends on addresses or counters."""
    kernel = registry.definitions()["lockstep_probe"]
    assert lower.lower(kernel) == lower.lower(kernel)


def test_unknown_kernel():
    """A name that does not exist is an error that names it."""
    with pytest.raises(EngineError, match="no kernel 'nothing'"):
        table.load().address("nothing")


@pytest.mark.parametrize(("nbytes", "huge"), [(0, False), (1, False), (100, False), (1 << 20, False), (5 << 20, True)])
def test_blocks_are_aligned_zeroed_and_writable(nbytes, huge):
    """A block starts where it should, is zero, and its address is that of its views."""
    block = memory.Memory(nbytes, huge=huge)
    view = block.view("u1")
    assert 0 == block.address % (2 << 20 if huge else 64)
    assert block.address == view.ctypes.data or nbytes == 0
    assert nbytes == len(view)
    assert not view.any()
    view[:] = 7
    block.wipe()
    assert not view.any()


def test_views_stay_inside():
    """A view past the end, before the start, or of less than nothing, is refused."""
    block = memory.Memory(100)
    assert 25 == len(block.view("f4"))
    for offset, count in ((0, 26), (-4, 1), (100, 1), (4, 25), (0, -1)):
        with pytest.raises(ValueError, match="view of"):
            block.view("f4", offset=offset, count=count)


def test_memory_that_does_not_exist():
    """A block larger than the address space is an EngineError, not a crash."""
    with pytest.raises(EngineError, match="no memory"):
        memory.Memory(1 << 60)


def group(root: Path, name: str, **files: str) -> None:
    """A control group's folder."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for key, text in files.items():
        (folder / key.replace("__", ".")).write_text(text + "\n")


@pytest.mark.parametrize(("groups", "files", "expected"), [
    ("0::/\n", {}, None),
    ("0::/a/b\n", {"a/b": {"cpu__max": "max 100000"}, "a": {"cpu__max": "150000 100000"}}, 1.5),
    ("0::/a\n", {"a": {"cpu__max": "400000 100000"}, "": {"cpu__max": "200000 100000"}}, 2.0),
    ("0::/a\n", {"a": {"cpu__max": "garbage"}}, None),
    ("4:cpu,cpuacct:/j\n", {"cpu,cpuacct/j": {"cpu__cfs_quota_us": "50000", "cpu__cfs_period_us": "100000"}}, 0.5),
    ("4:cpu,cpuacct:/j\n", {"cpu/j": {"cpu__cfs_quota_us": "-1", "cpu__cfs_period_us": "100000"}}, None),
    ("3:memory:/j\n", {"memory/j": {"cpu__max": "100000 100000"}}, None),
    ("0::/../x\n", {"x": {"cpu__max": "300000 100000"}}, 3.0),
])
def test_quota_of_control_groups(groups, files, expected, tmp_path):
    """The tightest limit of this group and those above counts, in both versions."""
    for name, contents in files.items():
        group(tmp_path, name, **contents)
    assert expected == quota.quota(groups, tmp_path)


def test_threads_by_default_fit_the_machine():
    """At least one, at most the affinity."""
    import os

    assert 1 <= quota.cpus() <= len(os.sched_getaffinity(0))


def test_definitions_are_lazy_and_numba_free():
    """What the service imports does not import numba."""
    import subprocess
    import sys

    code = ("import sys\n"
            "from appliance.kernels.compiler import registry\n"
            "from appliance.kernels.runtime import ahead, memory, table, targets, threads\n"
            "print([m for m in sys.modules if m.split('.')[0] in ('numba', 'llvmlite')])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert ahead.PREFIX == "kernel_"


def test_more_processors_than_a_pool_may_have(monkeypatch):
    """A machine of more than 1024 processors runs as many threads as are allowed, and does not refuse to."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(3000)))
    assert 1 <= quota.cpus() <= 1024


def test_a_processor_whose_name_is_no_text(tmp_path, monkeypatch):
    """The host chooses a virtual CPU's name; its features are read all the same."""
    (tmp_path / "cpuinfo").write_bytes(b"model name\t: \xff\xfe CPU\nflags\t\t: avx2 fma\n")
    monkeypatch.setattr(targets, "CPUINFO", tmp_path / "cpuinfo")
    assert {"avx2", "fma"} == targets.cpu_flags()
