"""A cpio archive in the kernel's `newc` form
(Documentation/driver-api/early-userspace/buffer-format.rst).

Entries keep their order, with owner 0, time 0 and counted inodes: the bytes depend only on them.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

_ALIGN = 4
_END = 512


@dataclass(frozen=True)
class Member:
    """A file, or a folder when `data` is None."""

    path: str
    data: bytes | None = None
    executable: bool = False

    @property
    def mode(self) -> int:
        """Type and permissions."""
        if self.data is None:
            return stat.S_IFDIR | 0o755
        return stat.S_IFREG | (0o755 if self.executable else 0o644)


def pack(members: Iterable[Member]) -> bytes:
    """Return the archive, uncompressed."""
    out = bytearray()
    for inode, member in enumerate(members, 1):
        _record(out, inode, member.path, member.mode, member.data or b"")
    _record(out, 0, "TRAILER!!!", 0, b"")
    return bytes(out + bytes(-len(out) % _END))


def _record(out: bytearray, inode: int, path: str, mode: int, data: bytes) -> None:
    name = path.encode("ascii") + b"\0"
    # inode, mode, uid, gid, links, time, size, device (2), special device (2), name size, checksum
    fields = (inode, mode, 0, 0, 2 if stat.S_ISDIR(mode) else 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
    out += bytes(-len(out) % _ALIGN) + data
    out += bytes(-len(out) % _ALIGN)
