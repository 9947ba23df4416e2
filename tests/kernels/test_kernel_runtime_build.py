"""Kernel libraries built ahead: reproducible, checked, refused when stale, usable without a compiler."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.errors import EngineError, FormatError
from appliance.kernelbuild import build as kernels
from appliance.kernelbuild import sharedobject
from appliance.kernels.compiler import lower, registry
from appliance.kernels.runtime import ahead, table, targets
from tests.support.environment import unmeasured
from tests.support.expected import ROOT
from tests.support.extent import WHOLE
from tests.support.require import absent

NAMES = ("lockstep_run", "lockstep_work", "lockstep_stop", "lockstep_spin", "lockstep_probe")


TARGETS = [each for each in targets.known() if WHOLE or each.name in (targets.detect().name, "avx2", "portable")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The lock-step kernels, built for targets of this architecture."""
    folder = tmp_path_factory.mktemp("kernels")
    for target in TARGETS:
        kernels.build(target, folder, names=NAMES, jobs=2 if target == targets.detect() else 1)
    return folder


@dataclass(frozen=True)
class Again:
    """A library that was built once more, over one that was there, and the folder's files before."""

    library: Path
    before: set[Path]
    victim: Path


@pytest.fixture(scope="module")
def again(folder, tmp_path_factory):
    """By one process instead of two, in another order and folder, with numba's variables set, and with links laid where
    a new library might be written first."""
    library = Path(shutil.copytree(folder, tmp_path_factory.mktemp("again") / "copy")
                   ) / f"kernels-{targets.detect().name}.so"
    victim = library.parent / "victim"
    victim.write_bytes(b"as it was")
    for suffix in (".so.new", ".json.new"):
        library.with_suffix(suffix).symlink_to(victim)
    for suffix in (".so", ".json"):
        library.with_suffix(suffix).write_bytes(b"another")
    before = set(library.parent.iterdir())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CPU_NAME", "x86-64")
        patch.setenv("NUMBA_OPT", "0")
        kernels.build(targets.detect(), library.parent, names=sorted(NAMES), jobs=1)
    return Again(library, before, victim)


@pytest.fixture
def copy(folder, tmp_path):
    """A library and manifest of this CPU's target, to spoil."""
    return Path(shutil.copytree(folder, tmp_path / "copy")) / f"kernels-{targets.detect().name}.so"


def run(code: str, *words: object) -> str:
    """Run Python code in a process of its own; what it prints."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.guests  # kernels of another build
def test_builds_are_reproducible(folder, again):
    """Another folder, one process instead of two, another order, and variables of numba's, which do not reach a build:
    the same bytes."""
    for suffix in (".so", ".json"):
        name = again.library.with_suffix(suffix)
        assert (folder / name.name).read_bytes() == name.read_bytes()


@pytest.mark.parametrize(("words", "named"), [
    (["-o", "file"], "file cannot be written"), (["-o", "file/below"], "below cannot be written")])
def test_a_build_that_cannot_begin_says_why(words, named, tmp_path, monkeypatch, capsys):
    """No folder to write to: one error, before anything is compiled."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert 2 == main(["kernels", "build", *words])
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("jobs", [0, -1])
def test_a_build_by_nobody_says_so(jobs, tmp_path):
    """No process to compile with: an error, before anything is compiled."""
    with pytest.raises(EngineError, match=f"^{jobs} compiling processes") as caught:
        kernels.build(targets.detect(), tmp_path, jobs=jobs)
    assert "kernel-jobs" == caught.value.code


def test_manifest_says_what_the_bytes_depend_on(folder):
    """The compilers' versions, and that of CPython, whose bytecode numba compiles."""
    document = json.loads((folder / f"kernels-{targets.detect().name}.json").read_text())
    assert {"numba", "llvmlite"} == set(document["compilers"])
    assert ".".join(map(str, sys.version_info[:2])) == document["python"]


def test_library_holds_the_kernels_and_nothing_else(folder):
    """Only kernels are exported, nothing is needed, nothing is writable and executable, all is bound at load."""
    for target in TARGETS:
        found = sharedobject.parse((folder / f"kernels-{target.name}.so").read_bytes())
        assert {ahead.PREFIX + name for name in NAMES} == found.defined
        assert frozenset() == found.undefined - registry.ALLOWED_SYMBOLS
        assert (False, False, False, True) == (
            found.writable_code, found.runs_at_load, found.needs_libraries, found.binds_now)


@pytest.mark.guests  # kernels of another build
def test_ahead_and_jit_are_the_same_instructions(tmp_path):
    """A worker process emits the very objects that this process loads, whatever either compiled before."""
    worker = kernels._Worker(targets.compiling().name, tmp_path)
    names = ("lockstep_probe", "gather_q4_0", "quantise_q8_32", "product_q8_0")
    try:
        for name in names:
            worker.ask(name)
    finally:
        worker.close()
    for name in reversed(names):
        assert lower.lower(registry.definitions()[name]) == (tmp_path / f"{name}.o").read_bytes()


PROBE = """
import ctypes, sys
from pathlib import Path
from appliance.kernels.runtime import table, threads
if len(sys.argv) > 3:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(65, 1, 0, 0, 0) != 0:  # PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN
        print("none"); sys.exit()
found = table.load(sys.argv[2], Path(sys.argv[1]))
for count in (1, 2, 3):
    with threads.Pool(found, count) as pool:
        pool.check()
print(found.origin, [m for m in sys.modules if m.split(".")[0] in ("numba", "llvmlite")])
"""


def test_every_runnable_library_works_without_numba(folder):
    """The libraries of all targets of this CPU run in processes that never load numba."""
    for target in [each for each in targets.supported() if each in TARGETS]:
        assert "ahead []\n" == run(PROBE, folder / f"kernels-{target.name}.so", target.name)


def test_library_works_when_memory_cannot_become_executable(folder):
    """Under PR_SET_MDWE the library loads and runs."""
    target = targets.detect()
    found = run(PROBE, folder / f"kernels-{target.name}.so", target.name, "mdwe")
    if found == "none\n":
        pytest.skip("this Linux has no PR_SET_MDWE")
    assert "ahead []\n" == found


def spoil(path: Path, **changes: object) -> None:
    """Change fields of a manifest; None removes one."""
    manifest = path.with_suffix(".json")
    document = {**json.loads(manifest.read_text()), **changes}
    manifest.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


@pytest.mark.parametrize(("changes", "message"), [
    ({"schema": 99}, "schema is 99"), ({"target": "other"}, "target is 'other'"),
    ({"llvm_features": "+x"}, "llvm_features"), ({"sources": {}}, "other sources"),
    ({"sources": {"lockstep.py": "00"}}, r"other sources \(lockstep.py\)"),
    ({"sources": {"../engine.py": ""}}, r"other sources"), ({"sources": {"gone.py": "00"}}, r"other sources"),
    ({"compilers": {"numba": "0.1", "llvmlite": "0.1"}}, "built with"), ({"sha256": "00"}, "not the library"),
    ({"kernels": {"a": "what"}}, "not a kernel manifest"), ({"kernels": None}, "not a kernel manifest"),
    ({"kernels": {}}, "not a kernel manifest"),
    ({"sources": None}, "not a kernel manifest"), ({"sources": []}, "other sources"),
])
def test_manifest_that_does_not_fit(changes, message, copy):
    """A library from other sources, compilers or targets is refused with the reason, when it is asked for by path."""
    spoil(copy, **changes)
    with pytest.raises(EngineError, match=message) as caught:
        table.load(library=copy)
    damaged = message.startswith(("not the library", "not a kernel"))
    assert ("kernel-damaged" if damaged else "kernel-stale") == caught.value.code


def test_manifest_that_names_more(copy):
    """A kernel that its manifest names and the library lacks is refused as it is opened, by name."""
    named = json.loads(copy.with_suffix(".json").read_text())["kernels"]
    spoil(copy, kernels={**named, "step_more": named["lockstep_run"]})
    with pytest.raises(EngineError, match="lacks step_more, which its manifest names") as caught:
        table.load(library=copy)
    assert "kernel-damaged" == caught.value.code


def test_damaged_files(copy):
    """A changed library or a manifest that is no JSON is refused."""
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    with pytest.raises(EngineError, match="not the library"):
        table.load(library=copy)
    for text in ("[", "[" * 100_000, '{"a":' * 100_000):
        copy.with_suffix(".json").write_text(text)
        with pytest.raises(EngineError, match="not a kernel manifest"):
            table.load(library=copy)
    copy.with_suffix(".json").unlink()
    with pytest.raises(EngineError, match="is missing, but"):
        table.load(library=copy)
    copy.unlink()
    with pytest.raises(EngineError, match="no prebuilt kernels"):
        table.load(library=copy)


def _flip(library: Path) -> None:
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)


@pytest.mark.parametrize("damage", [
    _flip, lambda library: library.write_bytes(library.read_bytes()[:1000]), Path.unlink,
    lambda library: library.write_bytes(b""), lambda library: library.with_suffix(".json").unlink(),
    lambda library: library.with_suffix(".json").write_text("{"),
    lambda library: (library.write_bytes(b"ELF"), spoil(library, sha256=hashlib.sha256(b"ELF").hexdigest())),
], ids=["flipped", "cut", "missing", "empty", "no manifest", "cut manifest", "no library"])
def test_a_damaged_library_is_never_replaced_by_compiling(damage, copy, monkeypatch):
    """Where a library was built, one that is not what was built is an error, also where numba could compile anew."""
    damage(copy)
    monkeypatch.setattr(ahead.default_path, "__defaults__", (copy.parent,))
    with pytest.raises(EngineError) as caught:
        table.load()
    assert caught.value.code in ("kernel-damaged", "kernel-load")
    assert copy.stem in caught.value.summary
    assert "appliance kernels build" in caught.value.hint


def test_stale_library_falls_back_to_compiling(copy, monkeypatch, caplog):
    """In development a stale library is left aside with a notice that says why."""
    spoil(copy, sources={"lockstep.py": "00"})
    monkeypatch.setattr(ahead, "PREBUILT", copy.parent)
    monkeypatch.setattr(ahead.default_path, "__defaults__", (copy.parent,))
    with caplog.at_level(logging.WARNING):
        found = table.load()
    assert "jit" == found.origin
    assert "lockstep.py" in caplog.text
    assert found.source.startswith("compiled here: ")
    assert "lockstep.py" in found.source


def test_fitting_library_is_preferred(copy, monkeypatch):
    """A library from these sources is taken."""
    monkeypatch.setattr(ahead.default_path, "__defaults__", (copy.parent,))
    assert "ahead" == table.load().origin
    assert table.load().source.endswith(hashlib.sha256(copy.read_bytes()).hexdigest())
    assert set(NAMES) == set(table.load().names)


WITHOUT_NUMBA = """
import logging, sys
from pathlib import Path
sys.modules["numba"] = None
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from appliance.kernels.runtime import ahead, table, targets
ahead.default_path.__defaults__ = (Path(sys.argv[1]),)
targets.CPUINFO = Path(sys.argv[1], "cpuinfo")
try: print(table.load().target.name)
except Exception as error: print(type(error).__name__, error)
"""
AVX2 = "flags : " + " ".join(targets.by_name("avx2").required)
AVX512 = "flags : " + " ".join(targets.by_name("avx512vnni").required)


def _without_numba(folder: Path, cpu: str, *missing: str) -> str:
    for name in missing:
        for suffix in ("so", "json"):
            (folder / f"kernels-{name}.{suffix}").unlink()
    (folder / "cpuinfo").write_text(cpu)
    return run(WITHOUT_NUMBA, folder)


def test_without_numba_a_stale_library_is_an_error(copy):
    """In an image there is nothing to fall back to: the error says what does not fit and what to do."""
    spoil(copy.with_name("kernels-avx2.so"), sources={"lockstep.py": "00"})
    found = _without_numba(copy.parent, AVX2)
    assert found.startswith("EngineError")
    assert "other sources" in found
    assert "appliance kernels build" in found


def test_without_numba_the_next_best_library_serves(copy):
    """An image with libraries for some targets boots on CPUs that have better ones, too, and says so."""
    found = _without_numba(copy.parent, AVX2, "avx2").splitlines()
    assert ["no prebuilt kernels for avx2: those for portable run, which are slower", "portable"] == found


def test_without_numba_the_next_best_library_must_fit(copy):
    """A library that takes the place of another one is checked as that would be."""
    spoil(copy.with_name("kernels-portable.so"), sources={"lockstep.py": "00"})
    assert "other sources" in _without_numba(copy.parent, AVX2, "avx2")


@pytest.mark.parametrize(("cpu", "missing", "runs", "has"), [
    (AVX2, ("avx2", "portable"), "avx2, portable", "amx, avx512vnni, zen5"),
    (AVX512, ("avx512vnni", "avx2", "portable"), "avx512vnni, avx2, portable", "amx, zen5"),
], ids=["avx2", "avx512"])
def test_no_library_for_this_cpu(cpu, missing, runs, has, copy):
    """Kernels for a feature that the CPU lacks are no choice: the error names what it runs, what there is, the fix."""
    for target in targets.known():  # nobody looks into those of a CPU that this is not
        for suffix in (".so", ".json"):
            copy.with_name(f"kernels-{target.name}{suffix}").write_bytes(copy.with_suffix(suffix).read_bytes())
    found = _without_numba(copy.parent, cpu, *missing)
    assert f"no prebuilt kernels that this CPU can run: it runs {runs}; {copy.parent} has {has}" in found
    assert f"appliance kernels build --target {runs.partition(',')[0]}" in found


def test_debug_kernels_never_come_from_a_library():
    """A process that compiles with checks inside takes no prebuilt kernels."""
    code = ("from appliance.kernels.runtime import table, targets\n"
            "targets.compile_for(targets.detect().name, debug=True)\n"
            "found = table.load()\n"
            "from appliance.kernels.compiler import jit\n"
            "print(found.origin, jit.DEBUG)")
    assert "jit True\n" == run(code)


def test_a_build_writes_no_file_but_its_own(again):
    """Not through a link that somebody laid where a new library might be written first, nor does anything stay."""
    assert b"as it was" == again.victim.read_bytes()
    assert again.before == set(again.library.parent.iterdir())


@pytest.mark.parametrize(("name", "linker", "package"), [
    (targets.detect().name, "ld", "binutils"),
    ("neon", "aarch64-linux-gnu-ld", "binutils-aarch64-linux-gnu"),
])
def test_missing_linker_is_named(name, linker, package, tmp_path, monkeypatch):
    """Without binutils, for this or for another architecture, the build says so before it compiles for minutes."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match=f"`{linker}` is not installed") as caught:
        kernels.build(targets.by_name(name), tmp_path)
    assert f"install {package}" == caught.value.hint


def test_unsafe_libraries_are_recognised(tmp_path):
    """An executable stack, an undefined symbol and an initialiser are all seen in a library that has them."""
    source = tmp_path / "bad.c"
    source.write_text("int outside(void); __attribute__((constructor)) void f(void) { outside(); }")
    if shutil.which("cc") is None:
        absent("no C compiler: install gcc")
    subprocess.run(["cc", "-shared", "-fPIC", "-nostdlib", "-Wl,-z,execstack", "-Wl,-z,lazy", "-o", tmp_path / "bad.so",
                    source], check=True, capture_output=True)
    found = sharedobject.parse((tmp_path / "bad.so").read_bytes())
    assert (True, True, False) == (found.writable_code, found.runs_at_load, found.binds_now)
    assert "outside" in found.undefined
    with pytest.raises(EngineError, match=r"needs outside; has writable code; runs code at load; does not bind"):
        kernels._check((tmp_path / "bad.so").read_bytes(), {"f"})


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(100), b"MZ" + bytes(100)])
def test_no_library_at_all(data):
    """Bytes that are no ELF-64 library are a format error."""
    with pytest.raises(FormatError):
        sharedobject.parse(data)


def test_list_command(capsys):
    """`appliance kernels list --json` names target, origin and every kernel's signature."""
    assert 0 == main(["kernels", "list", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert targets.detect().name == found["target"]
    assert "void(i8,i8,i8)" == found["kernels"]["lockstep_run"]
    assert 0 == main(["kernels", "list"])
    assert "lockstep_run" in capsys.readouterr().out


def test_build_command_leaves_a_fitting_library_alone(copy, capsys):
    """With --if-stale nothing is compiled while the library fits."""
    before = copy.stat().st_mtime_ns
    assert 0 == main(["kernels", "build", "--if-stale", "-o", str(copy.parent), "--json"])
    assert before == copy.stat().st_mtime_ns
    assert [] == json.loads(capsys.readouterr().out)


# Builds with a signal as soon as the first kernel is compiled.
SIGNALLED = """
import os, signal, sys
from pathlib import Path
from appliance.cli import signals
from appliance.kernels.runtime import targets
from appliance.kernelbuild import build as kernels
with signals.politely():
    kernels.build(targets.detect(), Path(sys.argv[1]), names=sys.argv[2:], jobs=2,
                  progress=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
"""


def test_a_build_that_a_signal_ends_says_nothing(tmp_path):
    """Threads that asked compiling processes ended with tracebacks: their pipes had been closed meanwhile."""
    done = subprocess.run([sys.executable, "-c", SIGNALLED, tmp_path / "out", *NAMES], capture_output=True, text=True,
                          env=unmeasured() | {"PYTHONPATH": str(ROOT)}, check=False)
    assert (128 + signal.SIGTERM, "", "") == (done.returncode, done.stdout, done.stderr)
    assert [] == list((tmp_path / "out").iterdir())


def test_build_command_refuses_an_unknown_target(capsys):
    """An unknown target is an error that lists the known ones."""
    assert 2 == main(["kernels", "build", "--target", "mmx"])
    assert "portable" in capsys.readouterr().err
