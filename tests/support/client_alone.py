"""Runs in a process of its own: the client on a machine without POSIX modules, without the engine, without a server.

Modules and calls that other systems lack are absent here. Command lines then run as usual: see
`each_verb`.

    python -m tests.support.client_alone < COMMANDS
"""

from __future__ import annotations

import importlib.abc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from tests.support import each_verb

ABSENT = {"fcntl", "termios", "pwd", "grp", "resource", "pty", "tty", "syslog", "curses",
          "numpy", "numba", "llvmlite", "litestar", "uvicorn", "structlog", "prometheus_client", "httpx", "httpx2",
          "openai", "dcap_qvl", "gguf"}
ABOVE = ("appliance.constraint", "appliance.engine", "appliance.kernels", "appliance.text", "appliance.models",
         "appliance.boot", "appliance.service", "appliance.audit.log", "appliance.audit.sink", "appliance.boot.stdlib",
         "appliance.imaging")


class Absent(importlib.abc.MetaPathFinder):
    """Refuses what another system, or the base install, does not have."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        """No module, or let the others look."""
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{fullname}: absent here", name=fullname)


def strip() -> None:
    """Take away what Windows or macOS lack."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ABSENT:
            del sys.modules[name]
    sys.meta_path.insert(0, Absent())
    for owner, names in (
            (os, ("fork", "forkpty", "geteuid", "getuid", "getgid", "setsid", "fchmod", "pread", "sched_getaffinity",
                  "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "memfd_create", "statvfs", "posix_fadvise", "mkfifo")),
            (socket, ("AF_UNIX", "AF_VSOCK")), (signal, ("SIGKILL", "SIGHUP", "SIGALRM", "setitimer", "alarm"))):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)


def main() -> None:
    """Import the whole client, then run verbs: each ends with 99 where more than the client was imported."""
    fork = os.fork
    strip()
    run = each_verb.imported()

    def verb(words: list[str]) -> int:
        code = run(words)
        above = sorted(name for name in sys.modules if name.startswith(ABOVE))
        if above:
            print(f"imported: {', '.join(above)}", file=sys.stderr)
            return 99
        return code

    each_verb.answer(verb, fork)


if __name__ == "__main__":
    main()
