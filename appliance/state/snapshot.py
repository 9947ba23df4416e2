"""The disk's snapshot, in parts that different rooms own: quotas, seeds of the audit log's periods,
and the version of the tenant list.

With quotas alone it is their own document, as it was before there were parts. Without a tenant list
it has version 2 of its format. A slot alternates with the one before, so what must be gone is saved
twice: then neither slot has it.
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
FORMAT_3: Final = "appliance/snapshot/v3"  # with the version of the tenant list
_PARTS = {FORMAT: {"audit_periods", "format", "quotas"},
          FORMAT_3: {"audit_periods", "format", "quotas", "tenant_list"}}


class Snapshot:
    """The parts of one disk's snapshot. Safe to call from several threads."""

    def __init__(self, saved: bytes, save: Callable[[bytes], None]) -> None:
        """StateError for a snapshot of another version."""
        self._save = save
        self._lock = threading.Lock()
        self._quotas, self._seeds, self._list = read(saved)

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

    def advance_list(self, version: int) -> None:
        """Save the version of the tenant list that is in force: no older one is accepted from then
        on. StateError for an older one, and when the disk fails."""
        with self._lock:
            if self._list is not None and version < self._list:
                raise StateError(f"tenant list: version {version}, and version {self._list} was in force here",
                                 code="tenants-version", hint=f"hand over version {self._list} or later: an older list "
                                 "would let revoked keys in again")
            if version != self._list:
                self._list = version
                for _ in range(2):
                    self._save(self._encoded())

    def _encoded(self) -> bytes:
        if not self._seeds and self._list is None:
            return self._quotas
        listed = {} if self._list is None else {"tenant_list": self._list}
        return canonical({"audit_periods": {str(number): seed.hex() for number, seed in self._seeds},
                          "format": FORMAT_3 if listed else FORMAT,
                          "quotas": json.loads(self._quotas) if self._quotas else None, **listed})


def read(saved: bytes) -> tuple[bytes, Seeds, int | None]:
    """The document of quotas, the seeds, and the version of the tenant list."""
    try:
        if not any(form.encode() in saved for form in _PARTS):
            return saved, [], None  # whoever reads quotas says what is wrong with them
        found: Any = strict.json_value(saved)
        seeds = [(int(number), bytes.fromhex(seed)) for number, seed in found["audit_periods"].items()]
        wrong = any(len(seed) != SEED_BYTES or number < 0 for number, seed in seeds)
        if wrong or set(found) != _PARTS[found["format"]]:
            raise ValueError("other members")
        listed = found.get("tenant_list", 0)
        if type(listed) is not int or listed < 0:
            raise ValueError("the tenant list's version is no whole number")
        quotas = b"" if found["quotas"] is None else canonical(found["quotas"])
    except (ValueError, TypeError, LookupError, AttributeError):
        raise StateError("the state disk's snapshot is not in form", code="state-snapshot",
                         hint="another version wrote it") from None
    return quotas, sorted(seeds), found.get("tenant_list")
