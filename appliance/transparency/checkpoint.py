"""Checkpoints (C2SP tlog-checkpoint): which log, how many leaves, and the tree's root, as a signed
note.

A checkpoint here has three lines and no extension lines. It is signed by a key whose name is the
log's origin.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass


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
