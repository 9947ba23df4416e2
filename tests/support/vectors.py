"""Where the public evidence vectors are, if they are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VECTORS = Path(os.environ.get("APPLIANCE_VECTORS", Path(__file__).parents[2].parent / "shared" / "vectors"))


def need(name: str) -> Path:
    """The path of a vector file or folder; the test is skipped where there is none."""
    path = VECTORS / name
    if not path.exists():
        pytest.skip(f"no vectors at {VECTORS}: name their folder in APPLIANCE_VECTORS")
    return path
