"""Pins: the SHA-256 of a model file, as a policy states it.

The pin of a sharded model is the SHA-256 of a text: the SHA-256 of each shard in their order, as 64
digits and a line's end. So it is what `sha256sum SHARDS | cut -c1-64 | sha256sum` prints. No GGUF
file begins with a digit, so it is the pin of no file.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from appliance.errors import PinError

_MEANT = "the file was changed or is another one; if that is meant, pin it with: appliance model pin FILE"


def check(path: Path, expected: bytes, found: bytes) -> None:
    """Refuse with PinError unless the digest of the bytes read is the pinned one."""
    if not hmac.compare_digest(expected, found):
        raise PinError(f"{path} has SHA-256 {found.hex()}; the policy pins {expected.hex()}", hint=_MEANT)


def of_shards(digests: Sequence[bytes]) -> bytes:
    """Return the pin (32 bytes) of a sharded model, from the SHA-256 of each shard."""
    return hashlib.sha256("".join(f"{digest.hex()}\n" for digest in digests).encode()).digest()


class Hashes:
    """The SHA-256 of a model file, of each shard if there are several, from bytes as they come."""

    def __init__(self, parts: Sequence[tuple[int, int]]) -> None:
        """`parts`: first byte and bytes of each file that it is made of."""
        self._parts, self._at = parts, 0
        self._each = [hashlib.sha256() for _ in parts]

    def update(self, data: Any) -> None:
        """The next bytes; those between two shards count for nothing."""
        with memoryview(data) as view:
            end = self._at + len(view)
            for hashed, (start, size) in zip(self._each, self._parts, strict=True):
                low, high = max(self._at, start), min(end, start + size)
                if low < high:
                    hashed.update(view[low - self._at:high - self._at])
            self._at = end

    @property
    def shards(self) -> tuple[bytes, ...]:
        """The SHA-256 of each shard; empty for a model in one file."""
        return tuple(each.digest() for each in self._each) if len(self._each) > 1 else ()

    @property
    def pin(self) -> bytes:
        """The pin of the model (32 bytes)."""
        return of_shards(self.shards) if self.shards else self._each[0].digest()

    def check(self, paths: Sequence[Path], sha256: bytes | None, shards: Sequence[bytes] = ()) -> bytes:
        """Return the pin of the hashed files `paths`. Raises PinError, which names the shard
        where a policy pins each, unless it is `sha256` (if that is not None)."""
        found = self.shards
        if shards and len(shards) != max(len(found), 1):
            raise PinError(f"{paths[0]} is a model of {len(self._each)} files; the policy pins {len(shards)} shards",
                           hint=_MEANT)
        for path, digest, pinned in zip(paths, found, shards, strict=False):
            check(path, pinned, digest)
        if sha256 is not None:
            check(paths[0], sha256, self.pin)
        return self.pin
