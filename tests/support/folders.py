"""Folders for what several tests share: `tmp_path` is of one."""

from __future__ import annotations

import tempfile
from pathlib import Path

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def lasting(prefix: str) -> Path:
    """A new folder, which goes when the interpreter ends."""
    _KEPT.append(tempfile.TemporaryDirectory(prefix=f"{prefix}-", ignore_cleanup_errors=True))
    return Path(_KEPT[-1].name)
