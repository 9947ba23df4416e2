"""A test's needs of its machine: absent, the test skips and says what to install, or fails where
all must run."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest


def absent(message: str) -> NoReturn:
    """Skip the test with `message`; with APPLIANCE_TESTS_REQUIRE=all (as CI sets it) fail it instead."""
    if os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all":
        pytest.fail(f"required here: {message}")
    pytest.skip(message)


def tools(*names: str, package: str) -> None:
    """The programs must be installed before a test begins anything, or it skips and says which package has them."""
    if missing := [name for name in names if shutil.which(name) is None]:
        absent(f"{', '.join(missing)}: apt-get install {package}")


_in_guests = False  # whether the test that runs is one of `make guests`


def running(*, guests: bool) -> None:
    """Note what kind of test begins."""
    global _in_guests
    _in_guests = guests


def guests() -> None:
    """Code that starts an emulated machine or a container, builds an image, or takes kernels of
    another target asks this: only a test that is marked `guests` (or `soak`) may."""
    assert _in_guests, "mark this test with pytest.mark.guests: it needs an image, an emulator, docker, other kernels"
