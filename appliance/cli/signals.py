"""Signals that end the command line: at once while it starts and once it is over, in good order
while a verb runs."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows: two

DEAF_SECONDS = 5
"""In which a second signal does not cut short what the first one began."""


def _at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def at_once() -> None:
    """Let signals end the process without a word from now on. Nothing is to be put in order while
    modules are imported, and an exception there may come out as another: extension modules make of
    it what they like, a panic with exit code 1."""
    for number in ENDING:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _at_once)


@contextlib.contextmanager
def politely() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the verb as Ctrl-C does, so that it wipes and removes its secrets.
    Further signals are not heard meanwhile, unless it takes long. A process that ignores a signal
    goes on to ignore it: by nohup, or by itself, as a drained service does."""
    deaf = 0.0

    def orderly(number: int, _frame: FrameType | None) -> None:
        nonlocal deaf
        if time.monotonic() >= deaf:
            deaf = time.monotonic() + DEAF_SECONDS
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in ENDING if (handler := signal.getsignal(number)) in (
        signal.SIG_DFL, signal.default_int_handler, _at_once)}
    for number in before:
        signal.signal(number, orderly)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
