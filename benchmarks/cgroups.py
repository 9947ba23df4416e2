"""A memory control group of our own for one measured process, by version 1 or 2 of the kernel's
interface."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")


class Group:
    """A group with a memory limit. Needs the right to make groups (root, as a rule)."""

    def __init__(self, name: str, limit: int | None, *, made: bool = False) -> None:
        """Make the group; `limit` in bytes, None for none. With `made`, take an existing group, by
        its path below the root. OSError where this process may not."""
        self.version = 1 if (_MOUNT / "memory" / "memory.limit_in_bytes").exists() else 2
        parent = _MOUNT / "memory" if self.version == 1 else _MOUNT
        if made:
            self.folder = parent / name
            return
        if self.version == 2:
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text("+memory")
        self.folder = parent / f"{name}-{os.getpid()}"
        self.folder.mkdir()
        names = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max", "memory.swap.max")}
        if limit is not None:
            ram, swap = names[self.version]
            try:
                (self.folder / ram).write_text(str(limit))
            except OSError:
                self.close()
                raise
            with contextlib.suppress(OSError):  # a kernel without accounting of swap
                (self.folder / swap).write_text(str(limit) if self.version == 1 else "0")

    def enter(self) -> None:
        """Move the calling process in: for `preexec_fn` of a child."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self) -> int:
        """The most bytes that were charged so far, page cache included."""
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        return int((self.folder / name).read_text())

    def stat(self) -> dict[str, int]:
        """The bytes that are charged now, by kind: anonymous memory and page cache have the same
        names in both versions.
        """
        fields = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        anonymous, cached = ("rss", "cache") if self.version == 1 else ("anon", "file")
        return {"anonymous": int(fields[anonymous]), "cached": int(fields[cached])}

    def killed(self) -> int:
        """How often the kernel killed a process of the group for want of memory."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            fields = dict(line.split() for line in (self.folder / name).read_text().splitlines())
        except OSError:  # a container that has ended takes its group with it
            return 0
        return int(fields.get("oom_kill", 0))

    def close(self) -> None:
        """Remove the group, when its processes have ended."""
        for _ in range(50):
            try:
                self.folder.rmdir()
            except OSError:
                time.sleep(0.1)
            else:
                return


def needed() -> None:
    """SystemExit where this process may not make groups: before anything is made or measured."""
    try:
        Group("appliance-probe", 1 << 30).close()
    except OSError as error:
        raise SystemExit(f"{error.filename or _MOUNT}: {error.strerror}: a control group is made there, by root as a "
                         "rule") from None
