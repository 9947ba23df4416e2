"""The disk's snapshot, in parts that different rooms own: quotas, and seeds of the audit log's
periods.

With quotas alone it is their own document, as it was before there were parts. A slot alternates
with the one before, so what must be gone is saved twice: then neither slot has it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, Final

from appliance.audit.periods import SEED_BYTES, Seeds
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import StateError

FORMAT: Final = "appliance/snapshot/v2"
_PARTS = {"audit_periods", "format", "quotas"}


class Snapshot:
    """The parts of one disk's snapshot. Safe to call from several threads."""

    def __init__(self, saved: bytes, save: Callable[[bytes], None]) -> None:
        """StateError for a snapshot of another version."""
        self._save = save
        self._lock = threading.Lock()
        self._quotas, self._seeds = read(saved)

    @property
    def quotas(self) -> bytes:
        """The document of quotas; empty where there is none."""
        return self._quotas

    @property
    def seeds(self) -> Seeds:
        """Number and seed of each period of the audit log."""
        return self._seeds[:]

    def replace_quotas(self, document: bytes) -> None:
        """Save quotas. StateError when the disk fails."""
        with self._lock:
            self._quotas = document
            self._save(self._encoded())

    def replace_seeds(self, seeds: Seeds) -> None:
        """Save the seeds. Those that are left out are in neither slot when it returns. StateError
        when the disk fails."""
        with self._lock:
            gone = bool({number for number, _ in self._seeds} - {number for number, _ in seeds})
            self._seeds = seeds[:]
            for _ in range(2 if gone else 1):
                self._save(self._encoded())

    def _encoded(self) -> bytes:
        if not self._seeds:
            return self._quotas
        return canonical({"audit_periods": {str(number): seed.hex() for number, seed in self._seeds}, "format": FORMAT,
                          "quotas": json.loads(self._quotas) if self._quotas else None})


def read(saved: bytes) -> tuple[bytes, Seeds]:
    """The document of quotas, and the seeds."""
    try:
        if FORMAT.encode() not in saved:
            return saved, []  # whoever reads quotas says what is wrong with them
        found: Any = strict.json_value(saved)
        if found["format"] != FORMAT:
            raise ValueError("another format")
        seeds = [(int(number), bytes.fromhex(seed)) for number, seed in found["audit_periods"].items()]
        if set(found) != _PARTS or any(len(seed) != SEED_BYTES or number < 0 for number, seed in seeds):
            raise ValueError("other members")
        quotas = b"" if found["quotas"] is None else canonical(found["quotas"])
    except (ValueError, TypeError, LookupError, AttributeError):
        raise StateError("the state disk's snapshot is not in form", code="state-snapshot",
                         hint="another version wrote it") from None
    return quotas, sorted(seeds)
