"""Where the demo model is: `make` fetches it into build/models, and APPLIANCE_DEMO_MODEL names another place."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.require import absent

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


def demo_model() -> Path:
    """The path of the demo model; skips the test when it is not there, or fails it when all tests are required."""
    default = Path(__file__).parents[2] / "build" / "models" / NAME
    path = Path(os.environ.get("APPLIANCE_DEMO_MODEL", default))
    if not path.is_file():
        absent(f"the demo model is not at {path}; `make demo` fetches it, APPLIANCE_DEMO_MODEL names another place")
    return path
