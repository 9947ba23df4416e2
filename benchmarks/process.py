"""A measured process, commanded over pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peer import Build


class Refused(Exception):  # noqa: N818  an answer, not a fault of the runner
    """The engine answered with an error."""


class Engine:
    """One engine under measurement. It waits on its pipe, without using CPU, while another one
    runs."""

    def __init__(self, name: str, module: str, *words: str, enter: Callable[[], None] | None = None,
                 python: Sequence[str] = (sys.executable,)) -> None:
        """Start it; `enter` runs in the new process, to move it into a control group; `python` is
        how it is called."""
        self.name = name
        self._process = subprocess.Popen([*python, "-m", f"benchmarks.{module}", *words], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=enter,
                                         cwd=Path(__file__).parents[1])

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """One command; Refused when the engine cannot do it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Refused(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def own(target: str | None) -> Engine:
    """Our engine, for a target (the best of this CPU by default)."""
    return Engine("appliance" + (f"-{target}" if target else ""), "own_server", *([target] if target else []))


def llama(build: Build) -> Engine:
    """A llama.cpp build."""
    return Engine(f"llama.cpp {build.name}", "llama_server", str(build.library), str(build.bindings))
