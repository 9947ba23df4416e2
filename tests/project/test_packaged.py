"""Files of the installation that are cut, absent or something else: each is named, with what it should be."""

from __future__ import annotations

import hashlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.kernels.runtime import table, targets
from tests.support.environment import unmeasured
from tests.support.extent import WHOLE
from tests.support.require import absent
from tests.support.server import UNISOLATED, Server, write_policy

ROOT = Path(__file__).parents[2]
DAMAGE = {
    "cut": lambda data: data[:len(data) // 2], "empty": lambda data: b"", "absent": None,
    "list": lambda data: b"[1, 2]",
    "binary": lambda data: b"\xff\x00" + data, "other": lambda data: b'{"name": 1, "ranges": ["no"]}',
}
UNICODE = "text/tokenizer/unicode_classes.json"  # read before all else, so each way is tried with it
DATA = [*((UNICODE, how) for how in DAMAGE if how != "list"),
        *(("boot/selftest/known_answers.json", how) for how in ("cut", "absent", "list", "other")),
        *(("policy/schema/schema_1.json", how) for how in ("cut", "absent", "other"))]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package by itself, kernels and all."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(ROOT / "appliance", place / "appliance")
    return place


def _serve(place: Path, policy: Path, model: Path, *, isolated: bool = True) -> subprocess.CompletedProcess[str]:
    """Serve by the package in a folder; without `isolated`, with the bytecode beside its sources."""
    program = ["-m", "appliance"] if isolated else ["-c", UNISOLATED]
    return subprocess.run([sys.executable, *program, "serve", str(policy), "--models", str(model.parent)],
                          cwd=place, capture_output=True, text=True, check=False, env=unmeasured())


@pytest.mark.parametrize(("name", "how"), DATA)
def test_damaged_data_is_named(name: str, how: str, copy: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Exit 2, the file, what was expected and found, and what to do; never a traceback, never "a defect"."""
    path, damage = copy / "appliance" / name, DAMAGE[how]
    kept = path.read_bytes()
    try:
        path.unlink() if damage is None else path.write_bytes(damage(kept))
        done = _serve(copy, write_policy(tmp_path, {"tiny": tiny_model}), tiny_model,
                      isolated=how == "cut" and (WHOLE or name == UNICODE))
    finally:
        path.write_bytes(kept)
    assert 2 == done.returncode, done.stderr
    assert "error[installation-damaged]" in done.stderr
    assert f"{path} is damaged: expected " in done.stderr
    assert "install the appliance again" in done.stderr
    assert not {word for word in ("Traceback", "defect") if word in done.stderr}


@pytest.mark.parametrize(("name", "how"), [
    ("api/wire.py", "cut"), ("api/wire.py", "binary"), ("boot/selftest/run.py", "absent"),
    ("cli/serve.py", "cut")])
def test_damaged_sources_are_named(name: str, how: str, copy: Path, tmp_path: Path, tiny_model: Path) -> None:
    """The same of a source file that is cut in a line, not text, or not there."""
    path = copy / "appliance" / name
    kept = path.read_bytes()
    try:
        if how == "absent":
            path.unlink()
        else:
            path.write_bytes(b"\xff\x00" + kept if how == "binary" else kept[:kept.rindex(b"(") + 1])
        done = _serve(copy, write_policy(tmp_path, {"tiny": tiny_model}), tiny_model)
    finally:
        path.write_bytes(kept)
    assert 2 == done.returncode, done.stderr
    package = re.escape(str(copy / "appliance"))
    named = re.escape(str(path)) if how != "binary" else rf"{package}/[\w/]+\.py"  # which imports it
    assert re.search(rf"error\[installation-damaged\]: {named} is damaged", done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_kernel_library_stops_the_boot(copy: Path, tmp_path: Path, tiny_model: Path) -> None:
    """One bit is enough, and nothing is compiled in its place: exit 2, and the file with its digests."""
    found = sorted((copy / "appliance/kernels/prebuilt").glob(f"kernels-{targets.detect().name}.so"))
    if not found:
        absent("no prebuilt kernels: run `make kernels`")
    kept = found[0].read_bytes()
    try:
        found[0].write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        done = _serve(copy, write_policy(tmp_path, {"tiny": tiny_model}), tiny_model, isolated=False)
    finally:
        found[0].write_bytes(kept)
    assert (2, True) == (done.returncode, "error[kernel-damaged]" in done.stderr), done.stderr
    assert f"found SHA-256 {hashlib.sha256(kept).hexdigest()}" not in done.stderr
    assert f"expected SHA-256 {hashlib.sha256(kept).hexdigest()}" in done.stderr
    assert "appliance kernels build" in done.stderr


def test_the_report_says_where_kernels_come_from(service: Server) -> None:
    """The step that tests them names the library and its digest, or why there is none."""
    with service.http() as http:
        told = next(step for step in http.get("/health").json()["boot"] if step["step"] == "self-test")["detail"]
    assert f"kernels: {table.load().source}" in told


def test_a_crash_in_the_self_test_is_told() -> None:
    """What ends the process by a signal leaves a line, and the place."""
    code = ("import ctypes\nfrom appliance.boot.selftest import run\n"
            "with run.report_crashes(): ctypes.string_at(0)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600,
                          check=False, env=unmeasured())
    assert -signal.SIGSEGV == done.returncode
    assert "Fatal Python error: Segmentation fault" in done.stderr
