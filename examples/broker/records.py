"""The broker's audit log, in the appliance's own format: `appliance audit verify` judges it.

A decision is a record, on the disk before the answer leaves. It has digests and names of rules, and
nothing of the peer's words. Refusals before any decision are counted by code, and the counts are
written with the next record.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation.judge.verify import Claims
from appliance.audit.chain import Chain
from appliance.audit.events import WRITTEN
from appliance.audit.log import AuditLog
from appliance.audit.sink import open_chained
from examples.broker.rules import Rule, Rules


class Records:
    """The log of one start of the broker. Safe to call from several threads."""

    def __init__(self, path: Path, key: Ed25519PrivateKey, rules: Rules) -> None:
        """Go on with the log in a file. AuditError where its records do not follow each other."""
        chain = Chain()
        sink, repaired = open_chained(path, chain)
        self._log = AuditLog(sink, version=WRITTEN[-1])
        self._log.begin(chain, key, repaired=repaired)
        self._lock, self._counts, self._since = threading.Lock(), Counter[str](), time.monotonic()
        self.loaded(rules)

    def loaded(self, rules: Rules) -> None:
        """Record that rules are in force. AuditError, as with all records."""
        with self._lock:
            self._log.words.resources.extend(rule.resource for rule in rules.rules)
            self._write("rules.loaded", rules=len(rules.rules), rules_sha256=rules.sha256.hex())

    def refused_rules(self, code: str) -> None:
        """Record that rules were not taken, and that those before them stay."""
        with self._lock:
            self._log.admit_codes([code])
            self._write("rules.refused", code=code)

    def released(self, rule: Rule, claims: Claims, release_spki_sha256: bytes) -> None:
        """Record that a key is released."""
        with self._lock:
            self._write("release.granted", resource=rule.resource, key_version=rule.version,
                        release_spki_sha256=release_spki_sha256.hex(), **_proved(claims))

    def denied(self, resource: str, claims: Claims, failed: Mapping[str, int]) -> None:
        """Record that genuine evidence gets no key."""
        known = resource if self._log.words.resources.accepts(resource) else None
        with self._lock:
            self._write("release.denied", resource=known, failed=dict(failed) or None, **_proved(claims))

    def count(self, code: str) -> None:
        """Count a refusal before any decision."""
        with self._lock:
            self._counts[code] += 1

    def close(self) -> None:
        """Write what was counted, and end the log."""
        with self._lock:
            self._fold()
            self._log.close()

    def _write(self, event: str, **fields: object) -> None:
        self._fold()
        self._log.write(event, **fields)
        self._log.checkpoint()  # it signs the head, and brings both onto the disk

    def _fold(self) -> None:
        if self._counts:
            self._log.admit_codes(self._counts)
            self._log.write("releases.counted", seconds=int(time.monotonic() - self._since), refused=dict(self._counts))
        self._counts, self._since = Counter(), time.monotonic()


def _proved(claims: Claims) -> dict[str, str]:
    return {"platform": claims.platform, "policy_sha384": claims.statement.policy_sha384,
            "nonce": claims.nonce.hex()}
