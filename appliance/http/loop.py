"""The event loop, and the threads that do what would stop it. All of them run before the process is
held to its memory: a stack is allocated whole, and later there may be none to be had. The modules
of anyio's first task are imported here: all clients would wait while they are compiled.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio._backends._asyncio  # noqa: F401

THREADS = 6
"""Their work holds the interpreter's lock most of the time, unless it waits for a device or a disk."""
SWITCH_SECONDS = 0.0005
"""How long a thread keeps that lock while others want it. The event loop gives it up at each system
call, some five times in a request, and waits for it behind all of them. With Python's own 5 ms it
waits more than 100 ms where six threads are busy."""


def start_threads(count: int = THREADS) -> ThreadPoolExecutor:
    """So many threads that run and take short turns with the event loop. The caller shuts them
    down. RuntimeError where they cannot be had."""
    sys.setswitchinterval(SWITCH_SECONDS)
    threads, all_run = ThreadPoolExecutor(count, "service"), threading.Barrier(count + 1)
    try:
        for _ in range(count):
            threads.submit(all_run.wait)
        all_run.wait()
    except BaseException:
        all_run.abort()
        threads.shutdown()
        raise
    return threads


class ServiceLoop(asyncio.SelectorEventLoop):
    """An event loop that starts no thread."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        """`threads` do what is given to `asyncio.to_thread`, and are shut down with the loop."""
        super().__init__()
        self._threads = threads
        self.set_default_executor(threads)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads. asyncio would start a thread for this; by now nothing else could go
        on."""
        self._threads.shutdown()
