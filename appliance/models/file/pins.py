"""Pins: the SHA-256 of a model file, as a policy states it."""

from __future__ import annotations

import hmac
from pathlib import Path

from appliance.errors import PinError


def check(path: Path, expected: bytes, found: bytes) -> None:
    """Refuse with PinError unless the digest of the bytes read is the pinned one."""
    if not hmac.compare_digest(expected, found):
        raise PinError(f"{path} has SHA-256 {found.hex()}; the policy pins {expected.hex()}",
                       hint="the file was changed or is another one; if that is meant, pin it with: "
                            "appliance model pin FILE")
