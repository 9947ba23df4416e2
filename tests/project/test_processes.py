"""The page of processes and threads names every thread that the sources of the service start."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/concepts/processes.md").read_text()
ROOMS = ("boot", "engine", "http", "keys", "kernels", "models", "sandbox", "service", "state", "secure", "audit")


def _started(path: Path) -> Iterator[str]:
    """Names of threads and of pools of threads that a module makes; "" where one has none."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        if called == "ThreadPoolExecutor":
            yield from (ast.unparse(each).strip("'\"") for each in node.args[1:2])
        elif called == "Thread":
            name = next((each.value for each in node.keywords if each.arg == "name"), None)
            yield "" if name is None else re.sub(r"\{.*\}", "1", ast.unparse(name).removeprefix("f").strip("'\""))


def test_every_named_thread_is_on_the_page() -> None:
    """By its name, as a debugger shows it."""
    found = {name: path.relative_to(ROOT) for room in ROOMS for path in (ROOT / "appliance" / room).rglob("*.py")
             for name in _started(path)}
    assert {"engine", "watchdog", "service", "kernel-1"} <= set(found)
    assert [] == [f"{path}: {name}" for name, path in found.items() if not name or f"`{name}`" not in PAGE]


def test_files_of_the_page_are_there() -> None:
    """Each that a table names."""
    named = re.findall(r"`((?:\w+/)+\w*(?:\.py)?)`", PAGE)
    assert len(named) > 10
    assert [] == [each for each in named if not (ROOT / "appliance" / each).exists()]
