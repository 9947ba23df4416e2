"""What the machine gives this process: memory, as the kernel and the control group say. The host can lie here."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def _meminfo(field: str, path: Path = _MEMINFO) -> int | None:
    """A field of /proc/meminfo in bytes."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _limit(folder: Path) -> int | None:
    """The memory limit of one control group (v2, then v1); None where there is none."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            text = (folder / name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:  # v1 writes nearly 2^63 for "no limit"
            return int(text)
    return None


def group_limit(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """The tightest memory limit of this process's control groups, up to the root; None if there is none."""
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = mount if not controllers else mount / "memory"
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = base / path.lstrip("/")
        while True:
            limit = _limit(folder)
            if limit is not None:
                found.append(limit)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return min(found, default=None)


def total_memory() -> int | None:
    """Bytes that this process could ever have: the machine's memory or its group's limit; None if unknown."""
    known = [size for size in (_meminfo("MemTotal"), group_limit()) if size is not None]
    return min(known, default=None)


def available_memory() -> int | None:
    """Bytes that this process could have now without swapping; None if unknown."""
    known = [size for size in (_meminfo("MemAvailable"), group_limit()) if size is not None]
    return min(known, default=None)


def swap_total() -> int:
    """Bytes of swap that the machine has: plaintext could be written there."""
    return _meminfo("SwapTotal") or 0
