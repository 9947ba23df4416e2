"""Parts of the package that an image is built without: they explain what others decide."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def find(room: str, module: str) -> Any:
    """Return a module of a room of this package. Returns None where the room is not there."""
    there = importlib.util.find_spec(f"appliance.{room}") is not None
    return importlib.import_module(f"appliance.{room}.{module}") if there else None
