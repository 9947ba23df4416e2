"""Many command lines in one interpreter: each in a fork of it, so that modules are imported once.
It imports nothing of the tests, since it also runs in an environment that has only the client.

    python -I tests/support/each_verb.py < COMMANDS

COMMANDS is a JSON list of lists of words. The output is a JSON list of [exit code, standard output,
standard error].
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """The result of a command line."""

    code: int
    out: str
    err: str


def asked(command: Sequence[str | Path], words: Sequence[Sequence[str]], **options: Any) -> list[Answer]:
    """Run command lines one after the other in a process, and return their results."""
    done = subprocess.run([*map(str, command)], input=json.dumps([*map(list, words)]), capture_output=True, text=True,
                          timeout=600, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return [Answer(*each) for each in json.loads(done.stdout)]


def answer(main: Callable[[list[str]], int], fork: Callable[[], int]) -> None:
    """Answer what standard input asks; `fork` is the system's, which `main` may have to do without."""
    print(json.dumps([_forked(lambda words=words: main(words), fork) for words in json.load(sys.stdin)]))


def _forked(work: Callable[[], int], fork: Callable[[], int]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os._exit(_code(work))
        _, status = os.waitpid(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return os.waitstatus_to_exitcode(status), said[0], said[1]


def _code(work: Callable[[], int]) -> int:
    try:
        return work()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def imported() -> Callable[[list[str]], int]:
    """The command line, with what its verbs import before their work."""
    for name in ("appliance.client", "appliance.cli.main", "appliance.policy.hcl.tokens",
                 "appliance.policy.hcl.values", "appliance.policy.explaining.repair"):
        folder = getattr(importlib.import_module(name), "__path__", ())
        for module in pkgutil.iter_modules(folder, f"{name}."):
            importlib.import_module(module.name)
    main: Callable[[list[str]], int] = importlib.import_module("appliance.cli.main").main
    return main


if __name__ == "__main__":
    answer(imported(), os.fork)
