"""The end of a process that does not follow a signal.

A write of the audit log or to the state disk may never return, for example if a disk hangs or the
log's reader stands still. Nothing else goes on then, not even the handling of a signal. So one
thread waits only for signals, whatever the others do. Some time after a signal that asks the
process to end, it wipes memory and ends the process.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from appliance.secure.interrupts import POLITE


class Watchdog:
    """Waits from now on, in a thread of its own."""

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        """`seconds` after a signal `end` is called, if there is still a process. OSError or
        RuntimeError where the kernel has no pipe or no thread."""
        self._seconds, self._end = seconds, end
        self._signals, numbers = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(numbers, False)
        # Written by the handler in C, on whichever thread the kernel runs it: the main one may be
        # beyond reach.
        signal.set_wakeup_fd(numbers, warn_on_full_buffer=False)
        threading.Thread(target=self._wait, name="watchdog", daemon=True).start()

    def _wait(self) -> None:
        while not {*os.read(self._signals, 64)} & {*POLITE}:
            pass
        time.sleep(self._seconds)
        self._end()
