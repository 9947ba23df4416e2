"""The import layers of the design hold, for every module and for what a client imports."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_import_contracts_hold() -> None:
    """Packages import downward only, and the kernels and the client stand on what the design names."""
    tool = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_verifier_side_imports_no_engine() -> None:
    """Policy and attestation import neither numpy, numba nor litestar, so that a client install stays small."""
    code = ("import sys, appliance.policy, appliance.attestation.binding, appliance.attestation.judge.verify;"
            "print(sorted({'numpy', 'numba', 'litestar', 'structlog', 'uvicorn'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_installed_package_stands_in_for_ours() -> None:
    """A folder of the top level that modules are imported from is a package: a locked distribution that installs one
    of its name (`examples` is a common one) would otherwise be found first, wherever it is on the path."""
    text = "\n".join(path.read_text() for folder in ("appliance", "benchmarks", "docs", "examples", "tests")
                     for path in (ROOT / folder).rglob("*.py"))
    ours = {name for name in re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE) if (ROOT / name).is_dir()}
    assert {"appliance", "examples", "tests"} <= ours
    assert [] == [name for name in sorted(ours) if not (ROOT / name / "__init__.py").is_file()]
