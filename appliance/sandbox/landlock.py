"""Landlock rule sets (landlock(7)): what this thread and those it starts may open, connect to or
signal.

Every right that the kernel knows is handled: what no rule grants is refused. Files that are open
already stay usable.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.sandbox import libc

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION: Final = 1                       # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH, _NET_PORT = 1, 2           # LANDLOCK_RULE_*

# LANDLOCK_ACCESS_FS_* of linux/landlock.h, by bit
(EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO,
 MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV) = (1 << bit for bit in range(16))
READ: Final = READ_FILE | READ_DIR
_OF_FILES: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # a rule on a file may have no others
BIND_TCP, CONNECT_TCP = 1, 2              # LANDLOCK_ACCESS_NET_*
ABSTRACT_SOCKETS, SIGNALS = 1, 2          # LANDLOCK_SCOPE_*: to processes outside

_FS_BITS: Final = {1: 13, 2: 14, 3: 15, 4: 15}  # rights by version of the interface; 16 from 5 on
NETWORK, SCOPES = 4, 6                    # the versions that brought these


@dataclass(frozen=True)
class PathRights:
    """Rights on a file, or on a folder and everything beneath it. A path that does not exist grants
    nothing."""

    path: Path
    rights: int = READ


@dataclass(frozen=True)
class Ports:
    """TCP ports that may be listened on and connected to; 0 stands for a port that the kernel
    chooses."""

    bind: frozenset[int] = frozenset()
    connect: frozenset[int] = frozenset()


def version() -> int:
    """The kernel's version of the interface; 0 where it has none or does not use it."""
    try:
        return libc.syscall(_CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


@contextlib.contextmanager
def _ruleset(abi: int, scopes: int) -> Iterator[int]:
    """A rule set that handles all rights of this version of the interface, and these scopes."""
    files = (1 << _FS_BITS.get(abi, 16)) - 1
    network = BIND_TCP | CONNECT_TCP if abi >= NETWORK else 0
    attributes = _buffer(struct.pack("<QQQ", files, network, scopes if abi >= SCOPES else 0))
    descriptor = libc.syscall(_CREATE, attributes, len(attributes), 0)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _allow_path(ruleset: int, grant: PathRights, handled: int) -> None:
    """Add the rule of one grant, as far as the kernel knows its rights."""
    try:
        descriptor = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = grant.rights & handled
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _OF_FILES
        if rights:
            libc.syscall(_ADD, ruleset, _PATH_BENEATH, _buffer(struct.pack("<Qi", rights, descriptor)), 0)
    finally:
        os.close(descriptor)


def restrict(grants: tuple[PathRights, ...], ports: Ports, scopes: int, abi: int) -> None:
    """Restrict this thread, and all that it starts, to the grants and scopes. no_new_privs must be
    set. OSError as the kernel says it."""
    with _ruleset(abi, scopes) as ruleset:
        handled = (1 << _FS_BITS.get(abi, 16)) - 1
        for grant in grants:
            _allow_path(ruleset, grant, handled)
        if abi >= NETWORK:
            for access, numbers in ((BIND_TCP, ports.bind), (CONNECT_TCP, ports.connect)):
                for port in sorted(numbers):
                    libc.syscall(_ADD, ruleset, _NET_PORT, _buffer(struct.pack("<QQ", access, port)), 0)
        libc.syscall(_RESTRICT, ruleset, 0)
