"""File systems that hold no file of the image, and kernel settings. All of it is in place before
the service starts."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

# linux/mount.h
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND = 1, 2, 4, 8, 32, 4096
_PLAIN = NOSUID | NODEV | NOEXEC

# source, target, type, flags, options
_TABLE = (
    ("tmpfs", "/run", "tmpfs", _PLAIN, "mode=0755,size=16m"),
    ("tmpfs", "/tmp", "tmpfs", _PLAIN, "mode=1777,size=16m"),  # noqa: S108
    ("securityfs", "/sys/kernel/security", "securityfs", _PLAIN | RDONLY, ""),
    ("configfs", "/sys/kernel/config", "configfs", _PLAIN, ""),
)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2). Raises OSError that names the target."""
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    if done != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def mount_all() -> str:
    """Mount what the table says; returns the targets."""
    for row in _TABLE:
        mount(*row)
    return " ".join(target for _, target, *_ in _TABLE)


def apply_sysctl(path: Path, root: Path = Path("/proc/sys")) -> str:
    """Write each setting and read it back. Raises OSError if the kernel keeps another value."""
    settings = [line.split(" = ", 1) for line in path.read_text(encoding="ascii").splitlines() if line]
    for key, value in settings:
        place = root / key.replace(".", "/")
        place.write_text(value + "\n", encoding="ascii")
        found = place.read_text(encoding="ascii").strip()
        if found != value:
            raise OSError(errno.EPERM, f"{key} is {found!r}, wanted {value!r}")
    mount("/proc/sys", "/proc/sys", "", BIND)
    mount("", "/proc/sys", "", BIND | REMOUNT | RDONLY | _PLAIN)
    return f"{len(settings)} settings"
