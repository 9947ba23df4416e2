"""Checkpoints (C2SP tlog-checkpoint): which log, how many leaves, and the tree's root, as a signed
note.

A checkpoint here has three lines and no extension lines. It is signed by a key whose name is the
log's origin.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Self

from appliance.codec import strict
from appliance.errors import NoteError
from appliance.transparency import note
from appliance.transparency.note import Key, Note
from appliance.transparency.tree import HASH_BYTES

MAX_SIZE = 2**53 - 1
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")


@dataclass(frozen=True)
class Checkpoint:
    """The head of a log: `root` is that of the tree over its first `size` records."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        """The text that is signed."""
        return f"{self.origin}\n{self.size}\n{base64.b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> Self:
        """A checkpoint from a note's text. NoteError for anything else."""
        lines = text.split("\n")
        if len(lines) != 4 or lines[3] or not lines[0]:
            raise NoteError("checkpoint: not three lines")
        origin, size, encoded = lines[:3]
        try:
            root = strict.base64(encoded)
        except ValueError:
            root = b""
        if not _SIZE.fullmatch(size) or int(size) > MAX_SIZE or len(root) != HASH_BYTES:
            raise NoteError("checkpoint: the second line is not a size, or the third is not a root")
        return cls(origin, int(size), root)


def opened(data: bytes | Note, key: Key | None = None) -> tuple[Checkpoint, Note]:
    """A checkpoint from a note. With `key`, the log's, it must be signed by it. NoteError."""
    found = note.parse(data) if isinstance(data, bytes) else data
    checkpoint = Checkpoint.parse(found.text)
    if key is not None:
        if key.name != checkpoint.origin:
            raise NoteError(f"checkpoint: of {checkpoint.origin}, expected one of {key.name}")
        key.check(found)
    return checkpoint, found
