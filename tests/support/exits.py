"""A process stopped in the moment of its exit, by ptrace(2): its memory is as it left it, and still its own.

Every end of a process (its own will, an error, a signal) goes through one place in the kernel,
which stops for a tracer before memory is given back: PTRACE_EVENT_EXIT. Linux says that SIGKILL may
pass it by, and it does not.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable
from typing import TypeVar

from tests.support import forked, waiting
from tests.support.require import absent

T = TypeVar("T")

# From linux/ptrace.h
_CONT, _SEIZE, _LISTEN = 7, 0x4206, 0x4208
_O_TRACEEXIT = 1 << 6
_EVENT_EXIT, _EVENT_STOP = 6, 128
_WALL = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_LIBC.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _LIBC.ptrace(request, pid, None, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request}: {os.strerror(number)}")


class Traced:
    """A child, traced by the thread that makes this object, which alone may use it. The child runs on."""

    def __init__(self, child: subprocess.Popen[bytes] | forked.Forked) -> None:
        """Skips the test where this process may not trace it."""
        self._child = child
        try:
            _ptrace(_SEIZE, child.pid, _O_TRACEEXIT)
        except PermissionError:
            absent("the right to trace children: CAP_SYS_PTRACE, or kernel.yama.ptrace_scope below 2")

    def at_exit(self, look: Callable[[int], T]) -> T:
        """Let it run until it exits, call `look` with its id while it stands there, and let it end. Its exit code is in
        `Popen.returncode` then. AssertionError when it does nothing and does not exit; it is killed."""
        found: list[T] = []
        pid = self._child.pid
        while True:
            try:
                status = waiting.until(lambda: self._event(pid), "exit of the process",
                                       lambda: waiting.processor_time(pid))
            except AssertionError:
                os.kill(pid, signal.SIGKILL)
                raise
            if not os.WIFSTOPPED(status[0]):
                self._child.returncode = os.waitstatus_to_exitcode(status[0])
                assert found, "the process was not seen at its exit"
                return found[0]
            self._go_on(status[0], found, look)

    @staticmethod
    def _event(pid: int) -> tuple[int] | None:
        """A status that the process has to tell."""
        got, status = os.waitpid(pid, _WALL | os.WNOHANG)
        return (status,) if got else None

    def _go_on(self, status: int, found: list[T], look: Callable[[int], T]) -> None:
        event, number = status >> 16, os.WSTOPSIG(status)
        if event == _EVENT_EXIT:
            found.append(look(self._child.pid))
            _ptrace(_CONT, self._child.pid)
        elif event == _EVENT_STOP and number != signal.SIGTRAP:
            _ptrace(_LISTEN, self._child.pid)
        else:
            _ptrace(_CONT, self._child.pid, 0 if event else number)
