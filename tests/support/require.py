"""What a test needs from its machine: absent, the test skips and says what to install, or fails where all must run."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def absent(message: str) -> NoReturn:
    """Skip the test with `message`; with APPLIANCE_TESTS_REQUIRE=all (as CI sets it) fail it instead."""
    if os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all":
        pytest.fail(f"required here: {message}")
    pytest.skip(message)
