"""`python -m tests.clients`: install the libraries at their locked versions, boot the service, and
try each library, and each example of the guide to tools.

    python -m tests.clients [--policy examples/demo.hcl] [--places N]

Libraries go into `build/clients`, each set of packages once for each content of its lock file. The
policy must have one API key, "sk-appliance-demo", and one listener, which is moved to a free port.
`--places` gives the policy other `concurrent_requests`. Prints a line for each thing that was
tried, and exits 1 when one fails. Needs Node.js 20 or newer with npm, and the registries of Python
and npm packages.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clients import pages

ROOT, HERE = Path(__file__).parents[2], Path(__file__).parent
BUILD = ROOT / "build/clients"
KEY, MODEL = "sk-appliance-demo", "demo"
BOOT_SECONDS, CLIENT_SECONDS = 240, 1800
PYTHON = {  # lock file -> libraries: LlamaIndex and instructor want an older openai than the others
    "libraries": ("openai", "openai responses", "anthropic", "litellm", "litellm as Anthropic", "langchain-openai",
                  "pydantic-ai-slim"),
    "agents": ("instructor", "openai-agents", "openai-agents by default", "smolagents", "llm"),
    "llama-index": ("llama-index-llms-openai-like",)}
NODE = ("openai", "@ai-sdk/openai", "@ai-sdk/openai by default", "@ai-sdk/openai-compatible", "@ai-sdk/anthropic")


def _installed(folder: Path, lock: Path, *commands: list[str]) -> Path:
    """A folder that has what a lock file names. Commands that make it run where it has not."""
    digest, mark = hashlib.sha256(lock.read_bytes()).hexdigest(), folder / ".made-from"
    if not mark.exists() or mark.read_text() != digest:
        print(f"installing {lock.relative_to(ROOT)} into {folder.relative_to(ROOT)}", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for command in commands:
            subprocess.run(command, cwd=folder, check=True)
        mark.write_text(digest)
    return folder


def _python(name: str) -> Path:
    """The interpreter of a virtual environment with the packages of a lock file."""
    folder, lock = BUILD / name, HERE / f"{name}.lock"
    python = folder / "bin/python"
    return _installed(folder, lock, [sys.executable, "-m", "venv", str(folder)], [
        str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", "--require-hashes", "--no-deps", "-r",
        str(lock)]) / "bin/python"


def _node() -> Path:
    """A folder with npm's packages, and the script, which finds them from where it lies."""
    folder, lock = BUILD / "node", HERE / "package-lock.json"
    _installed(folder, lock, ["cp", str(HERE / "package.json"), str(lock), "."],
               ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"])
    for name in ("node_clients.mjs", "histories.json"):
        shutil.copy(HERE / name, folder)
    return folder


def _moved(policy: Path, folder: Path, places: int | None) -> tuple[Path, int]:
    """A copy of a policy whose listener has a free port, and that port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    text, count = re.subn(r"(?m)^(\s*port\s*=\s*)\d+", rf"\g<1>{port}", policy.read_text())
    if count != 1:
        raise SystemExit(f"{policy}: one listener with a port is needed; found: {count}")
    if places is not None:
        text = re.sub(r"(?m)^(\s*concurrent_requests\s*=\s*)\d+", rf"\g<1>{places}", text)
    copy = folder / "policy.hcl"
    copy.write_text(text)
    return copy, port


@contextlib.contextmanager
def _service(policy: Path, models: Path, folder: Path) -> Iterator[None]:
    """A booted service of a policy, which ends with the block."""
    with (folder / "audit.jsonl").open("wb") as audit, (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen([sys.executable, "-m", "appliance", "serve", str(policy), "--json", "--models",
                                    str(models)], cwd=ROOT, stdout=audit, stderr=errors)
    try:
        deadline = time.monotonic() + BOOT_SECONDS
        while '"event": "ready"' not in (folder / "stderr").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the service did not start:\n{(folder / 'stderr').read_text()}")
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(60)


def _tried(command: list[str], cwd: Path) -> dict[str, Any]:
    """What one library's script says; its errors where it says nothing."""
    failed = {"library": command[2], "version": "?"}
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=CLIENT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {**failed, "found": {"ends": f"not within {CLIENT_SECONDS} s"}}
    lines = done.stdout.strip().splitlines()
    if lines and lines[-1].startswith("{"):
        result: dict[str, Any] = json.loads(lines[-1])
        return result
    return {**failed, "found": {"starts": done.stderr.strip()[-2000:] or "no output"}}


def _show(kind: str, result: dict[str, Any]) -> bool:
    """Print what was tried of a library; whether all of it works."""
    for name, failure in result["found"].items():
        print(f"{'FAILED' if failure else 'passed'}  {kind} {result['library']} {result['version']}: {name}"
              + (f": {failure}" if failure else ""), flush=True)
    return not any(result["found"].values())


def main() -> int:
    """Try all libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=ROOT / "examples/demo.hcl")
    parser.add_argument("--models", type=Path, default=ROOT / "build/models")
    parser.add_argument("--places", type=int, help="other `concurrent_requests` than the policy's")
    args = parser.parse_args()
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise SystemExit("Node.js 20 or newer with npm is needed; on Debian: apt-get install nodejs npm")
    pythons, node = {name: _python(name) for name in PYTHON}, _node()
    passed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        policy, port = _moved(args.policy, folder, args.places)
        given = [f"http://127.0.0.1:{port}/v1", KEY, MODEL]
        with _service(policy, args.models, folder):
            for lock, libraries in PYTHON.items():
                for library in libraries:
                    command = [str(pythons[lock]), str(HERE / "python_clients.py"), library, *given]
                    passed.append(_show("Python", _tried(command, HERE)))
            for library in NODE:
                passed.append(_show("Node", _tried(["node", str(node / "node_clients.mjs"), library, *given], node)))
            for title, packages in pages.NEEDS.items():
                command, place = (["node"], node) if packages == "node" else ([str(pythons[packages])], folder)
                found = {"runs": pages.run(title, command, place, given[0])}
                passed.append(_show("guide", {"library": title, "version": "", "found": found}))
    print(f"{sum(passed)} of {len(passed)} libraries and examples pass")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
