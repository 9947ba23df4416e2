"""The resources that the machine gives this process: memory, as the kernel and the control group
say. The host can lie here."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes nearly 2^63 where there is none


def _meminfo(field: str, path: Path = _MEMINFO) -> int | None:
    """A field of /proc/meminfo, or of a file like it, in bytes."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return None


def _number(path: Path) -> int | None:
    """The number in a file; None for none, for `max`, and for what stands for no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _stat(folder: Path) -> dict[str, int]:
    """The group's memory.stat."""
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _limit(folder: Path) -> int | None:
    """The memory limit of one control group; None where there is none. Version 2 kills above `max`
    and slows a group down above `high`, until it stands still; version 1 tells limits of groups
    outside of this container, too."""
    known = (_number(folder / "memory.max"), _number(folder / "memory.high"),
             _number(folder / "memory.limit_in_bytes"), _stat(folder).get("hierarchical_memory_limit"))
    return min((size for size in known if size is not None and size < _NO_LIMIT), default=None)


def _taken(folder: Path) -> int:
    """Bytes of a group that cannot be had back from it: all but the cache of files. By this
    process, too."""
    usage = next((size for size in (_number(folder / "memory.current"), _number(folder / "memory.usage_in_bytes"))
                  if size is not None), 0)
    stat = _stat(folder)
    cache = sum(next((stat[name] for name in (f"total_{kind}", kind) if name in stat), 0)
                for kind in ("active_file", "inactive_file"))
    return max(usage - cache, 0)


def _folders(groups: Path, mount: Path) -> Iterator[Path]:
    """This process's groups with memory, up to the root."""
    try:
        lines = groups.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = next((mount / name for name in (controllers, "memory") if (mount / name).is_dir()), mount / "memory"
                    ) if controllers else mount
        folder = base.joinpath(*(part for part in path.split("/") if part not in ("", ".", "..")))
        while True:
            yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def group_limit(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """The tightest memory limit of this process's control groups (version 1 or 2), up to the root;
    None without one."""
    return min((limit for folder in _folders(groups, mount) if (limit := _limit(folder)) is not None), default=None)


def own_memory(status: Path = _STATUS) -> int:
    """Bytes that this process has of its own; 0 if unknown."""
    return _meminfo("RssAnon", status) or 0


def room_in(folder: Path, own: int) -> int | None:
    """Bytes that a process can have in all within one group, beside what others in it have, of
    which it has `own` itself; None without a limit."""
    limit = _limit(folder)
    return None if limit is None else max(limit - max(_taken(folder) - own, 0), 0)


def group_room(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """Bytes that this process can have in all within its groups; None without a limit."""
    own = own_memory()
    return min((room for folder in _folders(groups, mount) if (room := room_in(folder, own)) is not None),
               default=None)


def total_memory() -> int | None:
    """Bytes that this process could ever have: the machine's memory or its group's limit; None if
    unknown."""
    known = [size for size in (_meminfo("MemTotal"), group_limit()) if size is not None]
    return min(known, default=None)


def available_memory() -> int | None:
    """Bytes that this process can have in all, what it has already included, without swapping; None
    if unknown."""
    free = _meminfo("MemAvailable")
    known = [size for size in (None if free is None else free + own_memory(), group_room()) if size is not None]
    return min(known, default=None)


def limit_growth(nbytes: int) -> None:
    """Let the kernel refuse this process more than `nbytes` of writable memory beyond what it has,
    touched or not. OSError or ValueError where it refuses the limit."""
    limit = (_meminfo("VmData", _STATUS) or 0) + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
