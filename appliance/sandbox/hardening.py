"""The hardening of the process before it touches a key or a model.

Each measure works on any machine without privileges and cannot be undone by the process. On the
simulated platform a measure that the kernel refuses is reported as tolerated, since nothing is
protected there anyway; on any other it stops the boot. `sandbox` bounds what the process may still
do to others.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterable

from appliance import isolated
from appliance.errors import BootError
from appliance.sandbox import libc
from appliance.sandbox.measure import Measure, take

# From linux/prctl.h
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_MDWE = 65
PR_MDWE_REFUSE_EXEC_GAIN = 1

# Variables by which whoever starts a process loads code into it or reads from it. None reaches an
# isolated process; a platform that protects something does not boot where one was set all the same.
INJECTING = re.compile(
    "(LD|MALLOC|OPENSSL)_[A-Z0-9_]+|GCONV_PATH|GLIBC_TUNABLES|SSLKEYLOGFILE|SSL_CERT_(DIR|FILE)|PYTHON(BREAKPOINT|"
    "CASEOK|DEVMODE|EXECUTABLE|HOME|INSPECT|MALLOC|MALLOCSTATS|PATH|PERFSUPPORT|PLATLIBDIR|PYCACHEPREFIX|STARTUP|"
    "TRACEMALLOC|USERBASE|WARNINGS|_PRESITE)")
_MOST_NAMES = 12  # that a report tells


def _prctl(option: int, argument: int) -> None:
    libc.prctl(option, argument)


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _umask() -> None:
    os.umask(0o077)


def _no_debugger() -> None:
    """A process that is not dumpable can be traced by root alone; one that is traced already is
    refused."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        tracer = next((line.split()[1] for line in status if line.startswith("TracerPid:")), "0")
    if tracer != "0":
        raise OSError(1, "a debugger is attached")


def _no_hooks() -> None:
    if hooks := isolated.watched():
        raise OSError(1, hooks)


def _isolated() -> None:
    if found := isolated.problems():
        raise OSError(1, "; ".join(found[:_MOST_NAMES]))


def _clean_environment(tolerant: bool) -> Measure:
    """No variable but those that are kept is in the environment; BootError for one that injects, if
    `tolerant` is not set."""
    left = set(os.environ)
    taken = isolated.take_out()
    left -= set(os.environ)
    injecting = [name for name in taken if INJECTING.fullmatch(name)]
    named = ", ".join(injecting[:_MOST_NAMES]) + (", …" if len(injecting) > _MOST_NAMES else "")
    if injecting and not tolerant:
        raise BootError(f"hardening: the environment sets {named}", code="hardening-environment",
                        hint="start the appliance without them: they load code or leak keys")
    detail = f"variables taken out: {len(taken)}{named and f', among them {named}'}" if taken else ""
    late = [name for name in injecting if name in left]  # libraries may have read it
    return Measure("clean-environment", "tolerated" if late else "done", detail)


def harden(*, tolerant: bool) -> tuple[Measure, ...]:
    """Harden this process; `tolerant` on the simulated platform only. Raises BootError when a
    measure fails."""
    return (
        take("no-core-dumps", _no_core, tolerant),
        take("not-dumpable", lambda: _prctl(PR_SET_DUMPABLE, 0), tolerant),
        take("no-new-privileges", lambda: _prctl(PR_SET_NO_NEW_PRIVS, 1), tolerant),
        take("umask", _umask, tolerant),
        take("no-debugger", _no_debugger, tolerant),
        take("no-trace-hooks", _no_hooks, tolerant),
        take("isolated", _isolated, tolerant),
        _clean_environment(tolerant),
    )


def traced(measures: Iterable[Measure]) -> str:
    """Why the process is being watched by Python's own hooks; nothing if it is not, or if that was
    not tolerated."""
    return next((each.detail for each in measures if each.name == "no-trace-hooks" and each.outcome != "done"), "")


def refuse_new_code(*, prebuilt: bool, tolerant: bool) -> Measure:
    """No memory of this process can become executable from now on (Linux 6.3); needs prebuilt
    kernels."""
    name = "no-executable-memory"
    if not prebuilt:
        if not tolerant:
            raise BootError("hardening: kernels are compiled at run time", code="hardening-refused",
                            hint="use the prebuilt kernel library")
        return Measure(name, "not applicable", "kernels are compiled at run time")
    return take(name, lambda: _prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), tolerant)
