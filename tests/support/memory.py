"""Looking for bytes in the memory of another process, from outside, as the root of a machine could."""

from __future__ import annotations

from collections.abc import Iterator
from io import FileIO
from pathlib import Path

CHUNK = 1 << 22


def holds(pid: int, wanted: bytes) -> list[str]:
    """The mappings of a process in which the bytes stand. PermissionError where this user may not look."""
    return [line for line, count in _counts(pid, wanted) if count]


def count(pid: int, wanted: bytes) -> int:
    """How often the bytes stand in the memory of a process. PermissionError where this user may not look."""
    return sum(count for _, count in _counts(pid, wanted))


def _counts(pid: int, wanted: bytes) -> Iterator[tuple[str, int]]:
    """How often they stand in each mapping."""
    with (Path("/proc") / str(pid) / "mem").open("rb", buffering=0) as memory:
        for line in (Path("/proc") / str(pid) / "maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(part, 16) for part in place.split("-"))
            if "r" in rights:
                yield line, _within(memory, start, end, wanted)


def _within(memory: FileIO, start: int, end: int, wanted: bytes) -> int:
    tail, found = b"", 0
    while start < end:
        try:
            memory.seek(start)
            part = memory.read(min(CHUNK, end - start))
        except (OSError, ValueError, OverflowError):  # guard pages, [vvar], [vsyscall]
            break
        if not part:
            break
        found += (tail + part).count(wanted)
        tail, start = (tail + part)[1 - len(wanted):], start + len(part)
    return found
