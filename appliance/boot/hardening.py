"""What the process does to itself before it touches a key or a model.

Each measure works on any machine without privileges and cannot be undone by the process. On the simulated platform
a measure that the kernel refuses is reported as tolerated, since nothing is protected there anyway; on any other it
stops the boot. The sandbox around the process (system call filter, file system) is the image's work.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Literal

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

Outcome = Literal["done", "tolerated", "not applicable"]


@dataclass(frozen=True)
class Measure:
    """One measure and what became of it; `detail` names what was found, never a value."""

    name: str
    outcome: Outcome
    detail: str = ""


def _prctl(option: int, argument: int) -> None:
    """Call prctl(2). Raises OSError as the kernel says it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


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
    if sys.gettrace() is not None or sys.getprofile() is not None:
        raise OSError(1, "a Python trace or profile function is set")


def _clean_environment(environment: MutableMapping[str, str]) -> str:
    """Remove variables that inject into this process or its children; returns the names that were set."""
    found = [name for name in INJECTING if name in environment]
    for name in found:
        del environment[name]
    return ", ".join(found)


def _take(name: str, action: Callable[[], None], tolerant: bool) -> Measure:
    try:
        action()
    except (OSError, ValueError) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        if not tolerant:
            raise BootError(f"hardening: {name} failed: {detail}", code="hardening-refused",
                            hint="run on a kernel that allows it, without a debugger") from None
        return Measure(name, "tolerated", detail)
    return Measure(name, "done")


def harden(*, tolerant: bool, environment: MutableMapping[str, str] | None = None) -> tuple[Measure, ...]:
    """Harden this process; `tolerant` on the simulated platform only. Raises BootError when a measure fails."""
    measures = [
        _take("no-core-dumps", _no_core, tolerant),
        _take("not-dumpable", lambda: _prctl(PR_SET_DUMPABLE, 0), tolerant),
        _take("no-new-privileges", lambda: _prctl(PR_SET_NO_NEW_PRIVS, 1), tolerant),
        _take("umask", _umask, tolerant),
        _take("no-debugger", _no_debugger, tolerant),
        _take("no-trace-hooks", _no_hooks, tolerant),
    ]
    found = _clean_environment(os.environ if environment is None else environment)
    if found and not tolerant:
        raise BootError(f"hardening: the environment sets {found}", code="hardening-environment",
                        hint="start the appliance without them: they load code or leak keys")
    clean = Measure("clean-environment", "tolerated", f"was set: {found}") if found else Measure(
        "clean-environment", "done")
    return (*measures, clean)


def refuse_new_code(*, prebuilt: bool, tolerant: bool) -> Measure:
    """No memory of this process can become executable from now on (Linux 6.3); needs prebuilt kernels."""
    name = "no-executable-memory"
    if not prebuilt:
        if not tolerant:
            raise BootError("hardening: kernels are compiled at run time", code="hardening-refused",
                            hint="use the prebuilt kernel library")
        return Measure(name, "not applicable", "kernels are compiled at run time")
    return _take(name, lambda: _prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN), tolerant)
