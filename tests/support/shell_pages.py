"""Run a page's shell commands to the letter: all blocks of one page in one shell, one command after the other.

A block whose first line is `# yours` holds values that its reader sets; a test that runs the page
gives others.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

YOURS = "# yours\n"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Done:
    """One command of a page, and what came of it."""

    command: str
    code: int
    out: str
    err: str


def blocks(page: Path) -> list[str]:
    """The text of each shell block of a page."""
    return _BLOCK.findall(page.read_text("utf-8"))


def commands(page: Path) -> list[str]:
    """Each command of a page, on as many lines as it has there, without the values that its reader
    sets."""
    found = []
    for block in blocks(page):
        if not block.startswith(YOURS):
            lines = block.replace("\\\n", "\0").splitlines()
            found += [line.replace("\0", "\\\n") for line in lines if line and not line.startswith("#")]
    return found


def yours(page: Path) -> list[str]:
    """The names that a page's reader sets."""
    return [name for block in blocks(page) if block.startswith(YOURS) for name in re.findall(r"\b([A-Z_]+)=", block)]


def run(page: Path, folder: Path, values: Mapping[str, str], environment: Mapping[str, str],
        before: str = "") -> list[Done]:
    """Run a page's commands in a folder, by the reader's values. `before`: commands that the shell
    runs first."""
    assert sorted(yours(page)) == sorted(values)
    said, kept = commands(page), folder / ".said"
    kept.mkdir()
    script = [*(f"{name}='{value}'" for name, value in values.items()), before]
    script += [f"{{ {command}\n}} >{kept}/{number}.out 2>{kept}/{number}.err; echo $? >{kept}/{number}.code"
               for number, command in enumerate(said)]
    subprocess.run(["bash", "-u", "-c", "\n".join(script)], cwd=folder, env=dict(environment), timeout=600, check=False,
                   stdin=subprocess.DEVNULL)
    return [Done(command, *_read(kept, number)) for number, command in enumerate(said)]


def _read(kept: Path, number: int) -> tuple[int, str, str]:
    code = kept / f"{number}.code"
    return (int(code.read_text()) if code.exists() else -1,
            *((kept / f"{number}.{kind}").read_text("utf-8", "replace") if (kept / f"{number}.{kind}").exists() else ""
              for kind in ("out", "err")))  # type: ignore[return-value]
