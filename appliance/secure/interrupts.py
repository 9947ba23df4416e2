"""Signals that ask a process to end, held back while something must not be left half done: a pass,
or wiping."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What can be held back."""


@contextmanager
def later() -> Iterator[None]:
    """Signals that come within the block are delivered at its end, once. Threads other than the
    first get no signals, so there it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in POLITE}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])
