"""Threads of the interpreter that take turns as often as they can: who relies on not being interrupted is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def often() -> Iterator[None]:
    """Let other threads run after every few bytecodes, not every 5 ms."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
