"""The page on the supply chain is what a count of the locked archives gives."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

from appliance.imaging.packages import lockfile

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/supply-chain.md").read_text("utf-8")
LOCK = """
[[package]]
name = "peer"
source = { virtual = "." }
[[package]]
name = "a"
wheels = [
  { url = "https://x/a-1-cp311-cp311-manylinux_2_17_x86_64.whl", size = 10 },
  { url = "https://x/a-1-cp311-cp311-win_amd64.whl", size = 99 },
  { url = "https://x/a-1-cp311-cp311-musllinux_1_1_x86_64.whl", size = 98 },
]
[[package]]
name = "b"
wheels = [{ url = "https://x/b-1-py3-none-any.whl", size = 5 }]
[[package]]
name = "c"
sdist = { url = "https://x/c.tar.gz", size = 7 }
"""


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply", ROOT / "docs/site/supply.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["supply"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_archives_give() -> None:
    """Counted again; what the cache lacks is fetched, as a build would."""
    done = subprocess.run([sys.executable, ROOT / "docs/site/supply.py", "--check"], cwd=ROOT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr or "run: python docs/site/supply.py"


def test_every_distribution_is_on_the_page() -> None:
    """By version and by the digest of its archive; each with a reason."""
    _, packages = lockfile.read_packages(ROOT / "image/packages.lock")
    inside = [each for each in packages if each.role in ("root", "boot")]
    for each in (*lockfile.read_wheels(ROOT / "image/wheels.lock"), *inside):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {each.name} {each.version} |"))
        assert f"`{each.sha256[:16]}…`" in row
        assert len(row.split("|")[9].strip()) > 3
    reasons = tomllib.loads((ROOT / "image/distributions.toml").read_text("utf-8"))
    assert {"wheel", "debian"} == set(reasons)


def test_it_is_below_a_third_of_the_usual_server() -> None:
    """Of vLLM's distributions and of their bytes, by what uv resolved."""
    peers = json.loads((ROOT / "docs/site/peers.json").read_text("utf-8"))["installations"]
    wheels = lockfile.read_wheels(ROOT / "image/wheels.lock")
    assert len(wheels) < 0.3 * peers["vllm"]["distributions"]
    assert sum(each.size for each in wheels) < 0.3 * peers["vllm"]["bytes"]


def test_a_lock_file_is_counted_as_it_would_be_installed() -> None:
    """One wheel for each distribution, of this system; a source archive where there is none."""
    module = _generator()
    module.TAG = "cp311"
    assert {"distributions": 3, "bytes": 22} == module.counted(LOCK)
