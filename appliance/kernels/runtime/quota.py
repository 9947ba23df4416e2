"""How many CPUs this process may use: its affinity and the CPU quota of its control group (v1 or
v2)."""

from __future__ import annotations

import os
from pathlib import Path

SELF = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
MOST = 1024  # threads of a pool


def _number(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _share(folder: Path) -> float | None:
    """CPUs that one group's folder allows; None where it sets no limit."""
    quota, _, period = _number(folder / "cpu.max").partition(" ")  # v2: "max 100000" or "150000 100000"
    if not quota:
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")  # v1: -1 is none
    if not quota.isdecimal() or not period.isdecimal() or int(quota) == 0 or int(period) == 0:
        return None
    return int(quota) / int(period)


def _folders(groups: str, mount: Path) -> list[Path]:
    """Folders that limit this process: its CPU group and every group above, up to the mount."""
    found = []
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            roots = [mount, mount / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [mount / controllers, mount / "cpu"]
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        found += [root.joinpath(*parts[:n]) for root in roots for n in range(len(parts), -1, -1)]
    return found


def quota(groups: str | None = None, mount: Path = MOUNT) -> float | None:
    """CPUs' worth of time that the control groups allow, None without a limit. `groups` is
    /proc/self/cgroup."""
    text = _number(SELF) if groups is None else groups
    shares = [share for folder in _folders(text, mount) if (share := _share(folder)) is not None]
    return min(shares, default=None)


def cpus() -> int:
    """Threads to run: one for each CPU of the affinity mask, but no more than the quota feeds
    without throttling, nor than a pool may have."""
    count = min(len(os.sched_getaffinity(0)), MOST)
    limit = quota()
    return count if limit is None else max(1, min(count, int(limit)))
