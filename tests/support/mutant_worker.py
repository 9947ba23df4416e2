"""Runs pytest again and again in forks of one process, which has the slow third-party imports behind it.

Reads one job per line, as JSON: `args` for pytest, `select` (test functions by node id, in the order to run them,
or null for all), `report` (a file for outcomes and durations, or null), `seconds` at most. Answers one line:
`exit` (null after a time-out) and `seconds`. Never imports the appliance itself: each fork does, from the tree
that the worker was started in.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

PRELOAD = ("cryptography.hazmat.primitives.asymmetric.ed25519", "cryptography.hazmat.primitives.ciphers.aead",
           "cryptography.x509", "gguf", "hcl2", "jsonschema", "numba", "numpy", "pydantic", "structlog", "tqdm")
MEMORY = 8 << 30  # bytes of address space, for a mutant that allocates without end


def base(nodeid: str) -> str:
    """Return the node id of a test function without its parameters."""
    return nodeid.split("[", 1)[0]


class Plugin:
    """Selects and orders tests; writes down how they went."""

    def __init__(self, select: list[str] | None) -> None:
        self.order = None if select is None else {name: place for place, name in enumerate(select)}
        self.failed: set[str] = set()
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what is selected, in its order."""
        if self.order is not None:
            order = self.order
            items[:] = sorted((item for item in items if base(item.nodeid) in order),
                              key=lambda item: order[base(item.nodeid)])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the durations of a function's tests."""
        name = base(report.nodeid)
        self.seconds[name] = self.seconds.get(name, 0) + report.duration
        if report.failed:
            self.failed.add(name)


def _child(job: dict[str, Any]) -> int:
    os.setsid()
    with Path("mutant.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    plugin = Plugin(job["select"])
    code = int(pytest.main(job["args"], plugins=[plugin]))
    if job["report"]:
        Path(job["report"]).write_text(json.dumps({"failed": sorted(plugin.failed), "seconds": plugin.seconds}))
    return code


def _run(job: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 3
        with contextlib.suppress(BaseException):
            code = _child(job)
        os._exit(code)
    pause = 0.01
    while time.monotonic() - began < job["seconds"]:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end(child)
            return {"exit": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - began}
        time.sleep(pause)
    _end(child)
    os.waitpid(child, 0)
    return {"exit": None, "seconds": time.monotonic() - began}


def _end(child: int) -> None:
    """Kill what is left of a fork's process group, servers that its tests started included."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def main() -> None:
    """Serve jobs until the input ends."""
    for name in PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    settings.register_profile("mutation", deadline=None, derandomize=True, database=None)
    settings.load_profile("mutation")
    sys.dont_write_bytecode = True
    for line in sys.stdin:
        print(json.dumps(_run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
