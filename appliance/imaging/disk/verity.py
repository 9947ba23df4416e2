"""The dm-verity hash tree, format version 1, SHA-256, 4096-byte blocks.

Source: the Linux kernel's Documentation/admin-guide/device-mapper/verity.rst and cryptsetup's
on-disk superblock: a superblock of one block, then the levels of the tree, the root's level first.
Each hash is SHA-256(salt || block).
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import BinaryIO

BLOCK = 4096
DIGEST = 32
# signature, version, hash type, uuid, algorithm, data block size, hash block size, data blocks,
# salt size, salt
_SUPERBLOCK = struct.Struct("<8sII16s32sIIQH6x256s168x")


@dataclass(frozen=True)
class Verity:
    """The parameters that the kernel needs to open a device, and the tree to append to its data."""

    root_hash: str
    salt: str
    data_blocks: int
    tree: bytes  # superblock and levels; begins at data_blocks * BLOCK

    @property
    def hash_offset(self) -> int:
        """Bytes before the superblock."""
        return self.data_blocks * BLOCK


def build(data: BinaryIO, size: int, salt: bytes, uuid: bytes) -> Verity:
    """Hash `size` bytes (a multiple of the block) of `data`; salt of 32 bytes, UUID of 16."""
    seeded = hashlib.sha256(salt)
    blocks = size // BLOCK
    if size % BLOCK or not blocks:
        raise ValueError(f"{size} bytes is not a whole number of blocks")

    def digest(block: bytes) -> bytes:
        state = seeded.copy()
        state.update(block)
        return state.digest()

    level = b"".join(digest(data.read(BLOCK)) for _ in range(blocks))
    levels: list[bytes] = []
    while len(level) > DIGEST:
        padded = level + bytes(-len(level) % BLOCK)
        levels.append(padded)
        level = b"".join(digest(padded[at:at + BLOCK]) for at in range(0, len(padded), BLOCK))
    head = _SUPERBLOCK.pack(b"verity\0\0", 1, 1, uuid, b"sha256", BLOCK, BLOCK, blocks, len(salt), salt)
    return Verity(level.hex(), salt.hex(), blocks, head + bytes(BLOCK - len(head)) + b"".join(reversed(levels)))
