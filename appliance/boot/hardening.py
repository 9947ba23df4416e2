"""What the process does to itself before it touches a key or a model.

Each measure works on any machine without privileges and cannot be undone by the process. On the simulated platform
a measure that the kernel refuses is reported as tolerated, since nothing is protected there anyway; on any other it
stops the boot. What the process may still do to others is `sandbox`'s part.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, MutableMapping

from appliance.boot.measure import Measure, take
from appliance.boot.sandbox import kernel
from appliance.errors import BootError

# From linux/prctl.h
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_MDWE = 65
PR_MDWE_REFUSE_EXEC_GAIN = 1

# Variables by which whoever starts the process could load code into it or read from it.
INJECTING = (
    "GCONV_PATH", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES",
    "PYTHONBREAKPOINT", "PYTHONDEVMODE", "PYTHONHOME", "PYTHONINSPECT", "PYTHONPATH", "PYTHONPERFSUPPORT",
    "PYTHONSTARTUP", "PYTHONTRACEMALLOC", "PYTHONWARNINGS", "SSLKEYLOGFILE", "SSL_CERT_DIR", "SSL_CERT_FILE",
)


def _prctl(option: int, argument: int) -> None:
    kernel.prctl(option, argument)


def _no_core() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _umask() -> None:
    os.umask(0o077)


def _no_debugger() -> None:
    """A process that is not dumpable can be traced by root alone; one that is traced already is refused."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        tracer = next((line.split()[1] for line in status if line.startswith("TracerPid:")), "0")
    if tracer != "0":
        raise OSError(1, "a debugger is attached")


def _no_hooks() -> None:
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    tools = [] if monitoring is None else [tool for tool in map(monitoring.get_tool, range(6)) if tool is not None]
    if sys.gettrace() is not None or sys.getprofile() is not None or tools:
        raise OSError(1, "a Python trace or profile function is set")


def _clean_environment(environment: MutableMapping[str, str]) -> str:
    """Remove variables that inject into this process or its children; returns the names that were set."""
    found = [name for name in INJECTING if name in environment]
    for name in found:
        del environment[name]
    return ", ".join(found)


def harden(*, tolerant: bool, environment: MutableMapping[str, str] | None = None) -> tuple[Measure, ...]:
    """Harden this process; `tolerant` on the simulated platform only. Raises BootError when a measure fails."""
    measures = [
        take("no-core-dumps", _no_core, tolerant),
        take("not-dumpable", lambda: _prctl(PR_SET_DUMPABLE, 0), tolerant),
        take("no-new-privileges", lambda: _prctl(PR_SET_NO_NEW_PRIVS, 1), tolerant),
        take("umask", _umask, tolerant),
        take("no-debugger", _no_debugger, tolerant),
        take("no-trace-hooks", _no_hooks, tolerant),
    ]
    found = _clean_environment(os.environ if environment is None else environment)
    if found and not tolerant:
        raise BootError(f"hardening: the environment sets {found}", code="hardening-environment",
                        hint="start the appliance without them: they load code or leak keys")
    clean = Measure("clean-environment", "tolerated", f"was set: {found}") if found else Measure(
        "clean-environment", "done")
    return (*measures, clean)


def traced(measures: Iterable[Measure]) -> str:
    """Why the process is being watched by Python's own hooks; nothing if it is not, or if that was not tolerated."""
    return next((each.detail for each in measures if each.name == "no-trace-hooks" and each.outcome != "done"), "")


def refuse_new_code(*, prebuilt: bool, tolerant: bool) -> Measure:
    """No memory of this process can become executable from now on (Linux 6.3); needs prebuilt kernels."""
    name = "no-executable-memory"
    if not prebuilt:
        if not tolerant:
            raise BootError("hardening: kernels are compiled at run time", code="hardening-refused",
                            hint="use the prebuilt kernel library")
        return Measure(name, "not applicable", "kernels are compiled at run time")
    return take(name, lambda: _prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), tolerant)
