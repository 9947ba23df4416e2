"""Memory for compiled code that ends the process where it gets none.

A policy's `memory_budget` becomes a limit of the kernel's on writable memory. Python code meets it
as an error; llguidance, as Rust programs do, would end the process and with it everybody's answers.
So each of its steps is taken only where there is more room than it can need.
"""

from __future__ import annotations

import mmap
import resource

STEP = 64 << 20
"""Bytes that a compilation or a mask takes at most: the largest of `tests.constraint.bombs` takes 63 MiB."""

TOKEN = 1024
"""Bytes for each token of a vocabulary that is made ready: some 430 stay."""


def is_there(nbytes: int) -> bool:
    """Whether so many bytes could be had now. Takes microseconds: no page of them is touched."""
    if resource.getrlimit(resource.RLIMIT_DATA)[0] == resource.RLIM_INFINITY:
        return True
    try:
        mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return False
    return True
