"""Waiting for what another process or thread does. Progress decides, not seconds: a busy machine is slow, and no wait
ends while anything goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
STALL_SECONDS = 120.0  # without any progress: the one limit of all that waits


def until(ready: Callable[[], T], what: str, progress: Callable[[], object] = lambda: None, *,
          most: float = 0.05) -> T:
    """The first true value of `ready`, which is asked again after `most` seconds, or sooner. AssertionError, with
    `what` was missed, once `progress` has given the same for `STALL_SECONDS`."""
    seen, since, pause = progress(), time.monotonic(), 0.002
    while not (found := ready()):
        if (now := progress()) != seen:
            seen, since = now, time.monotonic()
        assert time.monotonic() - since < STALL_SECONDS, f"no {what}, and no progress for {STALL_SECONDS:.0f} s: {seen}"
        time.sleep(pause)
        pause = min(2 * pause, most)
    return found


def at_rest(pid: int) -> None:
    """Wait until a process has nothing more to do: it uses next to nothing of a processor for a second."""
    def rests() -> bool:
        before = processor_time(pid)
        time.sleep(1)
        return processor_time(pid) - before <= 2

    until(rests, "rest of the process", lambda: processor_time(pid))


def processor_time(pid: int) -> int:
    """Clock ticks that a process has used, by proc(5): what moves while it does anything."""
    fields = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def time_of_all(pid: int) -> int:
    """The same for a process and those that it started: an emulated machine may say nothing for minutes."""
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return processor_time(pid) + sum(map(time_of_all, map(int, below)))
    except OSError:
        return 0  # it has ended


def size(path: Path) -> int:
    """Bytes of a file that may not be there yet."""
    return path.stat().st_size if path.exists() else 0
