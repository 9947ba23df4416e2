"""The process sandbox: what is left to whoever takes over the service.

    enter      before a model or a key is touched, while there is one thread: resource limits, no capabilities,
               Landlock, and the first filter of system calls
    tighten    "load" once the keys are there and who fetched them has ended; "serve" once the service listens
               (no new socket, no file opened for writing, no executable page)

Landlock and capabilities belong to a thread and what it starts, so `enter` wants to be the only
one; filters reach every thread (SECCOMP_FILTER_FLAG_TSYNC). Nothing of it can be undone.
docs/concepts/sandbox.md tells the whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.engine import second_engine
from appliance.errors import BootError
from appliance.sandbox import capabilities, files, landlock, libc, limits
from appliance.sandbox.bpf import assemble
from appliance.sandbox.calls import Needs, Stage, rules
from appliance.sandbox.measure import Measure, take
from appliance.sandbox.syscalls import MACHINES, Machine, number

if TYPE_CHECKING:  # see `files`
    from appliance.policy import Loaded
    from appliance.policy.schema import Policy

_SET_MODE_FILTER, _TSYNC = 1, 1  # linux/seccomp.h
_LOCKING = "RLIMIT_MEMLOCK cannot be raised here: CAP_IPC_LOCK is kept where it is held"


def needs(policy: Policy, *, prebuilt: bool, child: int | None = None) -> Needs:
    """The needs of the policy, and of a process that fetches keys, that filters allow."""
    listeners = policy.service.listeners
    families = {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}
    if any(listener.kind == "vsock" or listener.transport == "vsock" for listener in listeners):
        families.add(socket.AF_VSOCK)
    return Needs(compiling=not prebuilt, child=child, devices=not policy.simulated,
                 foreign=policy.simulated and _second_engine_is_loaded(), families=frozenset(families))


def _machine() -> Machine:
    found = MACHINES.get(platform.machine())
    if found is None or struct.calcsize("P") != 8 or sys.byteorder != "little":
        raise OSError(0, f"no table of system calls for {platform.machine()}")
    return found


def install(stage: Stage, wanted: Needs) -> None:
    """Add the filter of a stage to every thread. OSError as the kernel says it, and where a thread
    does not take it: one that has a filter of its own keeps all others from this one."""
    machine = _machine()
    program = assemble(rules(stage, wanted), machine)
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, their address
    header = struct.pack("<HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
    apart = libc.syscall(number("seccomp", machine) or 0, _SET_MODE_FILTER, _TSYNC,
                           ctypes.create_string_buffer(header, len(header)))
    if apart:  # seccomp(2): no error, and nothing was added to any thread
        raise OSError(errno.ESRCH, f"thread {apart} has a filter of its own, and would stay outside")


def _one_thread() -> None:
    count = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - names are all that is needed
    if count != 1:
        raise OSError(0, f"there are {count} threads, and some would stay outside")


def _limits() -> str:
    return "" if limits.apply() else _LOCKING


def _drop(machine: Machine, *, strict: bool, keep_locking: bool) -> str:
    left = capabilities.drop(machine, keep_locking=keep_locking)
    if left and strict:
        raise OSError(0, left)
    return left or (_LOCKING if keep_locking else "")


def _landlock(grants: tuple[landlock.PathRights, ...], ports: landlock.Ports, child: int | None,
              tolerant: bool) -> list[Measure]:
    """One rule set; what the kernel's version of it cannot do is a measure of its own."""
    abi = landlock.version()
    # A child from before can be killed only if signals may leave; the filter says which ones do.
    scopes = landlock.ABSTRACT_SOCKETS | (landlock.SIGNALS if child is None else 0)

    def since(version: int) -> str:
        if abi < version:
            raise OSError(0, f"Landlock {abi or 'is absent'}, needed {version}")
        return ""

    def restrict() -> str:
        since(1)
        landlock.restrict(grants, ports, scopes, abi)
        return f"version {abi}"

    made = take("landlock-files", restrict, tolerant)
    if made.outcome != "done":
        return [made, *(Measure(name, "tolerated", made.detail) for name in ("landlock-network", "landlock-scopes"))]
    return [made, take("landlock-network", lambda: since(landlock.NETWORK), tolerant),
            take("landlock-scopes", lambda: since(landlock.SCOPES), tolerant)]


@dataclass
class Sandbox:
    """The sandbox of this process. `measures` grows with each stage."""

    wanted: Needs
    tolerant: bool
    traced: str = ""  # why there is none
    measures: list[Measure] = field(default_factory=list)

    def tighten(self, stage: Stage) -> Measure:
        """Add the filter of the next stage. BootError where the kernel refuses, unless that is
        tolerated."""
        if stage == "serve":
            _load_late()
        measure = self._take(f"seccomp-{stage}", lambda: install(stage, self.wanted))
        self.measures.append(measure)
        return measure

    def _take(self, name: str, action: Callable[[], str | None]) -> Measure:
        if self.traced:
            return Measure(name, "tolerated", self.traced)
        return take(name, action, self.tolerant)


def _second_engine_is_loaded() -> bool:
    engine = second_engine.find()
    return engine is not None and bool(engine.loaded())


def _load_late() -> None:
    """Libraries that are else loaded at their first use, when no page can become executable any
    more: the C library's unwinder, by which threads end, and Python's own modules that are imported
    inside of functions."""
    with contextlib.suppress(OSError):  # a C library that does without
        ctypes.CDLL("libgcc_s.so.1")
    for module in ("encodings.idna", "unicodedata"):
        importlib.import_module(module)


def enter(loaded: Loaded, *, prebuilt: bool, tolerant: bool, models: Iterable[Path] = (), port: int | None = None,
          child: int | None = None, traced: str = "") -> Sandbox:
    """Enter the sandbox of a policy. `prebuilt`: no kernel is compiled at run time. `port`: the
    operator's choice. `child`: the process that fetches keys, which was started before. `traced`:
    why the process is being watched, which `tolerant` alone lets pass; nothing is done then, for
    who watches needs what the sandbox takes.

    BootError where a measure is refused and not tolerated."""
    if traced and not tolerant:
        raise BootError(f"hardening: {traced}", code="hardening-refused", hint="start it without")
    box = Sandbox(needs(loaded.policy, prebuilt=prebuilt, child=child), tolerant, traced)
    names = ("resource-limits", "one-thread", "no-capabilities", "landlock-files", "landlock-network",
             "landlock-scopes", "seccomp-boot")
    if traced:
        box.measures = [Measure(name, "tolerated", traced) for name in names]
        return box
    grants = files.grants(loaded, models)
    limited = take("resource-limits", _limits, tolerant)
    locking = bool(limited.detail)
    box.measures += [
        limited, take("one-thread", _one_thread, tolerant),
        take("no-capabilities", lambda: _drop(_machine(), strict=not tolerant, keep_locking=locking), tolerant),
        *_landlock(grants, files.ports(loaded.policy, port), child, tolerant),
    ]
    box.tighten("boot")
    return box

