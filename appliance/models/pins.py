"""Pins: the SHA-256 of a model file, as a policy states it."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

from appliance.errors import PinError
from appliance.models.disk import DiskFile, Progress

_PIN = re.compile(r"[0-9a-f]{64}")


def parse(text: str) -> bytes:
    """The 32 bytes of a pin: 64 lower-case hexadecimal digits; PinError otherwise."""
    if not _PIN.fullmatch(text):
        raise PinError(f"the SHA-256 pin has {len(text)} characters; allowed: 64 digits 0-9 a-f",
                       hint="print it with: appliance model pin FILE")
    return bytes.fromhex(text)


def check(path: Path, expected: bytes, found: bytes) -> None:
    """Refuse with PinError unless the digest of the bytes read is the pinned one."""
    if not hmac.compare_digest(expected, found):
        raise PinError(f"{path} has SHA-256 {found.hex()}; the policy pins {expected.hex()}",
                       hint="the file was changed or is another one; if that is meant, pin it with: "
                            "appliance model pin FILE")


def sha256_of(path: Path, progress: Progress | None = None) -> tuple[bytes, int]:
    """The SHA-256 (32 bytes) and the size of a file, read once."""
    digest = hashlib.sha256()
    with DiskFile(path) as file:
        for part in file.chunks(progress):
            digest.update(part)
        return digest.digest(), file.size
