"""Overwriting a buffer."""

from __future__ import annotations


def wipe(buffer: memoryview | bytearray) -> None:
    """Overwrite with zeros."""
    view = memoryview(buffer).cast("B")
    view[:] = bytes(len(view))
