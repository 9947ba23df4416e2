"""A second engine, where a development machine has one. The image holds none, and nothing there
imports it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_MODULE = "appliance.llamacpp"


def find() -> Any:
    """The door of the second engine, see `appliance.llamacpp`; None where it is not installed."""
    return importlib.import_module(_MODULE) if importlib.util.find_spec(_MODULE) else None
