"""Runs in a process of its own: the client on a machine without POSIX modules, without the engine, without a server.

What other systems lack cannot be imported or called here; then a command line is run as usual.

    python -m tests.support.client_alone VERB ARGUMENT...
"""

from __future__ import annotations

import importlib
import importlib.abc
import os
import pkgutil
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

ABSENT = {"fcntl", "termios", "pwd", "grp", "resource", "pty", "tty", "syslog", "curses",
          "numpy", "numba", "llvmlite", "litestar", "uvicorn", "structlog", "prometheus_client", "httpx", "httpx2",
          "openai", "dcap_qvl", "gguf"}
ABOVE = ("appliance.engine", "appliance.models", "appliance.boot", "appliance.service", "appliance.audit.log",
         "appliance.audit.sink", "appliance.audit.stdlib", "appliance.imaging")


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


def main() -> int:
    """Import the whole client, then run a verb."""
    strip()
    client = importlib.import_module("appliance.client")
    for module in pkgutil.iter_modules(client.__path__, "appliance.client."):
        importlib.import_module(module.name)
    code = int(importlib.import_module("appliance.cli.main").main(sys.argv[1:]))
    above = sorted(name for name in sys.modules if name.startswith(ABOVE))
    if above:
        print(f"imported: {', '.join(above)}", file=sys.stderr)
        return 99
    return code


if __name__ == "__main__":
    sys.exit(main())
