"""Capabilities: none in any of the five sets, for this thread and every one it will start
(capabilities(7))."""

from __future__ import annotations

import ctypes
import errno
import struct
from pathlib import Path
from typing import Final

from appliance.sandbox import libc
from appliance.sandbox.syscalls import Machine, number

_VERSION_3: Final = 0x20080522  # linux/capability.h; two words of 32 bits for each set
_SETPCAP: Final = 8
IPC_LOCK: Final = 14
# linux/securebits.h: NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE, each with its lock, and the
# lock of KEEP_CAPS
_SECUREBITS: Final = 0b1110_1111
_STATUS = Path("/proc/thread-self/status")
SETS: Final = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def present() -> dict[str, int]:
    """The five sets of this thread, as bits."""
    lines = (line.split(":", 1) for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines())
    return {name: int(value, 16) for name, value in lines if name in SETS}


def drop(machine: Machine, *, keep_locking: bool = False) -> str:
    """Give up everything; returns what could not be given up, in words, or nothing. OSError as the
    kernel says it.

    Without CAP_SETPCAP (an ordinary user) the bounding set stays: with no_new_privs it can give
    nothing back. `keep_locking`: but for CAP_IPC_LOCK, if it is there, which allows to lock memory
    beyond the limit.
    """
    before = present()
    if before["CapEff"] >> _SETPCAP & 1:
        for capability in range(64):
            try:
                libc.prctl(libc.PR_CAPBSET_DROP, capability)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    break  # there are no more
                raise
        libc.prctl(libc.PR_SET_SECUREBITS, _SECUREBITS)
    libc.prctl(libc.PR_CAP_AMBIENT, libc.PR_CAP_AMBIENT_CLEAR_ALL)
    kept = before["CapEff"] & 1 << IPC_LOCK if keep_locking else 0
    header = ctypes.create_string_buffer(struct.pack("<Ii", _VERSION_3, 0), 8)
    sets = ctypes.create_string_buffer(struct.pack("<III12x", kept, kept, 0), 24)  # effective, permitted, inheritable
    libc.syscall(number("capset", machine) or 0, header, sets)
    wanted = {"CapPrm": kept, "CapEff": kept}
    return ", ".join(f"{name} is not empty" for name, bits in present().items() if bits != wanted.get(name, 0))
