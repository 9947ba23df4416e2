"""Looking for bytes in the memory of another process, from outside, as the root of a machine could."""

from __future__ import annotations

from pathlib import Path

CHUNK = 1 << 22


def holds(pid: int, wanted: bytes) -> list[str]:
    """The mappings of a process in which the bytes stand. PermissionError where this user may not look."""
    found = []
    with (Path("/proc") / str(pid) / "mem").open("rb", buffering=0) as memory:
        for line in (Path("/proc") / str(pid) / "maps").read_text().splitlines():
            place, rights, *_ = line.split()
            start, end = (int(part, 16) for part in place.split("-"))
            if "r" in rights and _within(memory, start, end, wanted):
                found.append(line)
    return found


def _within(memory, start: int, end: int, wanted: bytes) -> bool:  # type: ignore[no-untyped-def]
    tail = b""
    while start < end:
        try:
            memory.seek(start)
            part = memory.read(min(CHUNK, end - start))
        except (OSError, ValueError, OverflowError):  # guard pages, [vvar], [vsyscall]
            return False
        if not part:
            return False
        if wanted in tail + part:
            return True
        tail, start = part[-len(wanted):], start + len(part)
    return False
