"""What the event loop needs is there before clients are."""

from __future__ import annotations

import subprocess
import sys

FIRST_TASKS = """
import sys
import appliance.service.server
import anyio, asyncio
there = set(sys.modules)

async def stream():
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)

asyncio.run(stream())
print(*sorted(set(sys.modules) - there))
"""


def test_the_first_stream_imports_nothing() -> None:
    """A task group, as the framework has for each stream, in a process that has imported the server."""
    found = subprocess.run([sys.executable, "-c", FIRST_TASKS], capture_output=True, text=True, check=True, timeout=600)
    assert "" == found.stdout.strip()


TURNS = """
import sys
from appliance.http.loop import start_threads
threads = start_threads(2)
print(sys.getswitchinterval())
threads.shutdown()
"""


def test_busy_threads_take_short_turns() -> None:
    """A request has some five system calls, after each of which the event loop waits behind six threads at most: within
    a third of the time that a look at the service may take."""
    found = subprocess.run([sys.executable, "-c", TURNS], capture_output=True, text=True, check=True, timeout=600)
    assert 5 * 6 * float(found.stdout) < 0.1 / 3
