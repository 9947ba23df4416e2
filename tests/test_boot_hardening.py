"""Hardening: what the process does to itself, seen from outside and from a child of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from appliance.boot import hardening
from appliance.boot.measure import Measure, take
from appliance.errors import BootError
from tests.support.environment import unmeasured

REPORT = """
import json, os, resource
from pathlib import Path
from appliance.boot import hardening
from appliance.boot.measure import Measure, take
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
    "executable": executable, "environment": sorted(set(os.environ) & set(hardening.INJECTING))}}))
"""


def _hardened(tolerant: bool = True, prebuilt: bool = False, **environment: str) -> dict[str, Any]:
    clean = {name: value for name, value in unmeasured().items() if name not in hardening.INJECTING}
    done = subprocess.run(
        [sys.executable, "-c", REPORT.format(tolerant=tolerant, prebuilt=prebuilt)], capture_output=True, text=True,
        timeout=60, check=True, env={**clean, **environment})
    return json.loads(done.stdout)


def test_the_kernel_agrees_that_the_process_is_hardened() -> None:
    """No core dump, not dumpable, no new privileges, private files, nothing tolerated on this machine."""
    seen = _hardened(tolerant=False)
    assert ("1", [0, 0], 0, 0o077) == (seen["no_new_privs"], seen["core"], seen["dumpable"], seen["umask"])
    assert {"done"} == {outcome for name, outcome in seen["measures"].items() if name != "no-executable-memory"}


def test_no_memory_becomes_executable_with_prebuilt_kernels() -> None:
    """With prebuilt kernels the process gives up writable executable memory, where the kernel knows how."""
    with_library, without = _hardened(prebuilt=True), _hardened(prebuilt=False)
    assert ("not applicable", True) == (without["measures"]["no-executable-memory"], without["executable"])
    expected = {"done": False, "tolerated": True}
    assert expected[with_library["measures"]["no-executable-memory"]] == with_library["executable"]


def test_injecting_variables_are_removed_and_told() -> None:
    """On the simulated platform such a variable is tolerated, but told and taken from the environment."""
    seen = _hardened(PYTHONWARNINGS="ignore", SSLKEYLOGFILE="/tmp/keys")  # noqa: S108
    assert ("tolerated", []) == (seen["measures"]["clean-environment"], seen["environment"])


def test_injecting_variables_stop_a_real_boot() -> None:
    """On any other platform the same variable stops the boot, named without its value."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        _hardened(tolerant=False, LD_LIBRARY_PATH="/secret/place")
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
