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
