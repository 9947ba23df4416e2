"""`serve` and `infer` run in an interpreter of which the sources on the disk say all."""

from __future__ import annotations

import importlib.util
import py_compile
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance import isolated
from tests.support.environment import unmeasured
from tests.support.server import Server, write_policy

ROOT = Path(__file__).parents[2]
PLANTED = """print('PLANTED', flush=True)
def add_arguments(parser): parser.add_argument('file')
def run(args): return 77
"""
EXTENSION = sysconfig.get_config_var("EXT_SUFFIX")


def _plant(compiled: Path, folder: Path) -> None:
    """Bytecode that Python takes for a module's without a look at its source."""
    source = folder / "planted.py"
    source.write_text(PLANTED)
    compiled.parent.mkdir(parents=True, exist_ok=True)
    py_compile.compile(str(source), str(compiled), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def _run(verb: str, folder: Path, words: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "appliance", verb, *words], cwd=folder, capture_output=True, text=True,
                          timeout=600, check=False, env={**unmeasured(), **environment})


def _without_source(verb: str, place: Path, folder: Path) -> None:
    module = place / "appliance/cli" / f"{verb}.py"
    _plant(module.with_suffix(".pyc"), folder)
    module.unlink()


def _cached(verb: str, place: Path, folder: Path) -> None:
    _plant(Path(importlib.util.cache_from_source(str(place / "appliance/cli" / f"{verb}.py"))), folder)


def _extension(verb: str, place: Path, _folder: Path) -> None:
    (place / "appliance/cli" / f"{verb}{EXTENSION}").write_bytes(b"not a library")


@pytest.mark.parametrize("verb", ["serve", "infer", "check"])
def test_bytecode_from_elsewhere_is_not_run(verb: str, tmp_path: Path) -> None:
    """What lies under PYTHONPYCACHEPREFIX has no say in a verb that holds prompts or keys (and has one in `check`, so
    that the attack is one)."""
    source = ROOT / "appliance/cli" / f"{verb}.py"
    _plant(Path(f"{tmp_path}/cache{source.with_suffix('')}.{sys.implementation.cache_tag}.pyc"), tmp_path)
    done = _run(verb, ROOT, [str(tmp_path / "none.hcl")], PYTHONPYCACHEPREFIX=str(tmp_path / "cache"))
    assert (verb == "check") == ("PLANTED" in done.stdout)
    assert (77 if verb == "check" else 2) == done.returncode


@pytest.mark.parametrize("verb", ["infer", "check"])
@pytest.mark.parametrize("how", [_cached, _without_source, _extension])
def test_code_beside_the_sources_is_not_run(verb: str, how: Callable[[str, Path, Path], None], tmp_path: Path) -> None:
    """A file in `__pycache__`, bytecode without a source, an extension module that goes before the source: none is run
    in the place of a source, or beside one."""
    ignored = shutil.ignore_patterns("__pycache__", "prebuilt")
    shutil.copytree(ROOT / "appliance", tmp_path / "appliance", ignore=ignored)
    how(verb, tmp_path, tmp_path)
    done = _run(verb, tmp_path, [str(tmp_path / "none.hcl"), *(["--prompt", "x"] if verb == "infer" else [])])
    if verb == "check":
        assert "PLANTED" in done.stdout or "file too short" in done.stderr
    else:
        expected = "installation-damaged" if how is _without_source else "policy-unreadable"
        assert "PLANTED" not in done.stdout
        assert (2, True) == (done.returncode, f"error[{expected}]" in done.stderr), done.stderr


def test_customisations_are_not_loaded(tmp_path: Path) -> None:
    """`sitecustomize` of PYTHONPATH, which is loaded before anything of ours can refuse it, is not in the process that
    goes on; nor is a module there that has the name of a library's."""
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nopen({str(tmp_path / 'seen')!r}, 'a').write(f'{{sys.flags.isolated}}\\n')\n")
    (tmp_path / "uvicorn.py").write_text(PLANTED)
    done = _run("serve", ROOT, [str(tmp_path / "none.hcl")], PYTHONPATH=str(tmp_path))
    assert ("0\n", 2) == ((tmp_path / "seen").read_text(), done.returncode)
    assert "PLANTED" not in done.stdout


def test_site_packages_own_startup_files_are_a_problem() -> None:
    """Without -S, `site` runs code of `.pth` files before anything of ours, also in isolated mode: it is told, and
    where the verb needs it, the process is replaced."""
    code = "from appliance import isolated; print(isolated.problems())"
    flags = ["-I", "-B", "-X", "utf8", "-X", f"pycache_prefix={isolated.NO_CACHE}"]
    done = subprocess.run([sys.executable, *flags, "-c", code], cwd=ROOT, env=dict(isolated.SET), text=True,
                          capture_output=True, timeout=60, check=True)
    assert ".pth" in done.stdout


def stays() -> None:
    """Be an isolated process that has a problem which no further start would mend."""
    sys.modules[isolated.CUSTOM[0]] = sys
    assert isolated.problems()
    isolated.again(["serve", "none.hcl"])
    print("still here")


def test_a_process_is_replaced_once() -> None:
    """What is left after it would be left again: without this, the process starts itself for ever."""
    done = subprocess.run(isolated.command("tests.cli.test_isolated:stays"), cwd=ROOT, env=dict(isolated.SET),
                          text=True, capture_output=True, timeout=60, check=True)
    assert "still here\n" == done.stdout


def test_the_report_tells_and_keys_in_variables_still_work(tmp_path: Path, tiny_model: Path) -> None:
    """A server started in a usual shell is isolated, and has the variables that are kept or set alone."""
    running = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model], measured=False,
                     fresh=True, environment={"SECRET_KEY": "0123456789", "LD_BIND_NOW": "1"}).wait_ready()
    try:
        with running.http() as http:
            measures = {each["name"]: each for each in http.get("/health").json()["hardening"]}
        raw = Path(f"/proc/{running.process.pid}/environ").read_bytes()
    finally:
        assert 0 == running.stop()
    assert "done" == measures["isolated"]["outcome"] == measures["clean-environment"]["outcome"]
    assert measures["clean-environment"]["detail"].partition("among them ")[2].startswith("LD_BIND_NOW")
    assert {name.partition(b"=")[0] for name in raw.split(b"\0") if name} <= {
        name.encode() for name in (*isolated.SET, *isolated.KEPT)}
