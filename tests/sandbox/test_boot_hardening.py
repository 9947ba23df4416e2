"""Hardening: what the process does to itself, seen from outside and from a child of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from appliance import isolated
from appliance.errors import BootError
from appliance.sandbox import hardening
from appliance.sandbox.measure import Measure, take
from tests.support.environment import unmeasured

ROOT = Path(__file__).parents[2]
REPORT = """
import json, os, resource, sys
from pathlib import Path
from appliance.sandbox import hardening
from appliance.sandbox.measure import Measure, take
from appliance import isolated
if {late!r}:
    os.environ[{late!r}] = "late"
measures = hardening.harden(tolerant={tolerant})
measures += (hardening.refuse_new_code(prebuilt={prebuilt}, tolerant=True),)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
try:
    mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC).close()
    executable = True
except OSError:
    executable = False
umask = os.umask(0)
print(json.dumps({{
    "measures": {{m.name: m.outcome for m in measures}}, "no_new_privs": status["NoNewPrivs"].strip(),
    "core": resource.getrlimit(resource.RLIMIT_CORE), "dumpable": libc.prctl(3, 0, 0, 0, 0), "umask": umask,
    "executable": executable, "environment": dict(os.environ), "details": {{m.name: m.detail for m in measures}}}}))
"""


def _hardened(folder: Path, tolerant: bool = True, prebuilt: bool = False, late: str = "", alone: bool = True,
              **environment: str) -> dict[str, Any]:
    """What an isolated process tells, which was started with these variables. `late`: one that it sets itself.
    `alone`: isolated; else as `python FILE` starts it."""
    (folder / "report.py").write_text(
        "def main():\n" + indent(REPORT.format(tolerant=tolerant, prebuilt=prebuilt, late=late), "    ") +
        "\nif __name__ == '__main__':\n    main()\n")
    handed = os.memfd_create("given", 0)
    os.write(handed, json.dumps(environment).encode())
    command = isolated.command("report:main", [], handed) if alone else [sys.executable, str(folder / "report.py")]
    if alone:
        command = [json.dumps([*json.loads(word), str(folder)]) if word.startswith("[") else word for word in command]
    clean = isolated.SET if alone else {**unmeasured(), **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True, env=clean,
                          pass_fds=[handed], cwd=ROOT)
    os.close(handed)
    return json.loads(done.stdout)


def test_the_kernel_agrees_that_the_process_is_hardened(tmp_path: Path) -> None:
    """No core dump, not dumpable, no new privileges, private files, nothing tolerated on this machine."""
    seen = _hardened(tmp_path, tolerant=False)
    assert ("1", [0, 0], 0, 0o077) == (seen["no_new_privs"], seen["core"], seen["dumpable"], seen["umask"])
    assert {"done"} == {outcome for name, outcome in seen["measures"].items() if name != "no-executable-memory"}


def test_no_memory_becomes_executable_with_prebuilt_kernels(tmp_path: Path) -> None:
    """With prebuilt kernels the process gives up writable executable memory, where the kernel knows how."""
    with_library, without = _hardened(tmp_path, prebuilt=True), _hardened(tmp_path, prebuilt=False)
    assert ("not applicable", True) == (without["measures"]["no-executable-memory"], without["executable"])
    expected = {"done": False, "tolerated": True}
    assert expected[with_library["measures"]["no-executable-memory"]] == with_library["executable"]


@pytest.mark.parametrize("name", [
    "LD_PRELOAD", "PYTHONWARNINGS", "PYTHONPYCACHEPREFIX", "SSLKEYLOGFILE", "GLIBC_TUNABLES", "MALLOC_TRACE_FILE",
    "NUMBA_DEBUG", "OPENBLAS_VERBOSE", "TMPDIR", "HOME", "A_VARIABLE_OF_NEXT_YEAR"])
def test_variables_are_removed_unless_they_are_kept(name: str, tmp_path: Path) -> None:
    """Whatever a variable's name, an isolated process has it as data alone; the report tells how many, and which of
    them inject."""
    seen = _hardened(tmp_path, **{name: "/secret/place"})
    assert {**isolated.SET, "OPENBLAS_NUM_THREADS": "1"} == seen["environment"]
    assert "done" == seen["measures"]["clean-environment"]
    told = seen["details"]["clean-environment"]
    assert told.startswith("variables taken out: 1")
    assert (hardening.INJECTING.fullmatch(name) is not None) == (name in told)
    assert "/secret/place" not in told


def test_a_process_that_is_not_isolated_tells(tmp_path: Path) -> None:
    """Started without isolation it says so on the simulated platform, and what it cannot take back is tolerated."""
    seen = _hardened(tmp_path, alone=False, PYTHONWARNINGS="ignore")
    assert "tolerated" == seen["measures"]["isolated"] == seen["measures"]["clean-environment"]
    assert "without -I -B" in seen["details"]["isolated"]
    assert set(seen["environment"]) <= {*isolated.SET, *isolated.KEPT, *isolated.OWN}


def test_no_isolation_stops_a_real_boot(tmp_path: Path) -> None:
    """On any other platform a process that is not isolated does not boot."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _hardened(tmp_path, tolerant=False, alone=False)
    assert "isolated failed: the interpreter was started without -I -B" in caught.value.stderr


@pytest.mark.parametrize("late", [True, False])
def test_injecting_variables_stop_a_real_boot(late: bool, tmp_path: Path) -> None:
    """On any other platform such a variable stops the boot, named without its value, however early it was removed."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _hardened(tmp_path, tolerant=False, **({"late": "LD_LIBRARY_PATH"} if late else
                                               {"LD_LIBRARY_PATH": "/secret/place"}))
    assert "the environment sets LD_LIBRARY_PATH" in caught.value.stderr
    assert "/secret/place" not in caught.value.stderr


def test_compiling_kernels_stops_a_real_boot() -> None:
    """Outside of the simulated platform kernels must be prebuilt."""
    with pytest.raises(BootError, match="compiled at run time"):
        hardening.refuse_new_code(prebuilt=False, tolerant=False)


def test_a_refused_measure_stops_a_real_boot() -> None:
    """A measure that the kernel refuses is tolerated only where that is allowed, and says why."""
    def refuse() -> str:
        raise OSError(1, "Operation not permitted")

    assert Measure("x", "tolerated", "Operation not permitted") == take("x", refuse, True)
    with pytest.raises(BootError, match="x failed: Operation not permitted"):
        take("x", refuse, False)


def test_a_debugger_is_noticed() -> None:
    """A process that traces itself through Python hooks is not hardened."""
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        with pytest.raises(OSError, match="trace or profile"):
            hardening._no_hooks()
    finally:
        sys.setprofile(before)
