"""Verbs without one of the packages that they need: a sentence, and never a traceback, whose exit code is an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.environment import unmeasured

ROOT = Path(__file__).parents[2]
IMPORTED = {"pyopenssl": "OpenSSL", "python-hcl2": "hcl2", "prometheus-client": "prometheus_client"}
UNUSED = {"numba": "kernels are built already", "editables": "installs", "hatchling": "installs"}

# Each verb in a process of its own, forked before anything of weight is imported.
SCRIPT = """\
import os, sys
lacking, verbs = sys.argv[1], [line.split() for line in sys.argv[2:]]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == lacking:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from appliance.cli.main import main
for words in verbs:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
        except BaseException as error:
            print(f"TRACEBACK {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            code = 99
        sys.stdout.flush()
        os._exit(code)
    print("CODE", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), " ".join(words), flush=True)
"""
VERBS = ("check valid.hcl --json", "verify evidence.json --policy valid.hcl", "serve valid.hcl --models .",
         "audit pack verify valid.hcl")


def _packages() -> list[str]:
    """What pyproject.toml asks for, by the names of imports."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["image"],
             *project["optional-dependencies"]["server"]]
    names = [line.split(">")[0].split("[")[0].strip() for line in asked]
    return sorted({IMPORTED.get(name, name) for name in names} - {"appliance", *UNUSED})

@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example policy, and a file that is not evidence."""
    place = tmp_path_factory.mktemp("lacking")
    (place / "valid.hcl").write_text((ROOT / "examples/demo.hcl").read_text())
    (place / "evidence.json").write_text("{}")
    return place

@pytest.mark.slow
@pytest.mark.parametrize("package", _packages())
def test_a_missing_package_ends_in_a_sentence(package: str, folder: Path) -> None:
    """Every verb either does its work or names the package: exit 2, `package-absent`, and how to install it."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, package, *VERBS], cwd=folder, capture_output=True, text=True,
                          check=False, env=unmeasured() | {"PYTHONPATH": str(ROOT)})
    assert "Traceback" not in done.stderr, done.stderr
    assert "TRACEBACK" not in done.stderr, done.stderr
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.startswith("CODE ")]
    assert len(VERBS) == len(lines), done.stderr
    for _, code, words in lines:
        assert code in ("0", "1", "2", "3"), words
    assert f"the package {package} is not installed" in done.stderr + done.stdout or package == "tqdm", done.stderr

def test_a_package_that_is_missed_late_is_an_object(folder: Path) -> None:
    """`check` reads the grammar when it runs, not when it is imported."""

    done = subprocess.run([sys.executable, "-c", SCRIPT, "hcl2", "check valid.hcl --json"], cwd=folder,
                          capture_output=True, text=True, check=False, env=unmeasured() | {"PYTHONPATH": str(ROOT)})
    document = json.loads(done.stdout.partition("CODE")[0])
    assert (2, "package-absent", "the package hcl2 is not installed") == (
        document["exit_code"], document["code"], document["reason"])
    assert "pip install './CHECKOUT'" in document["hint"]
