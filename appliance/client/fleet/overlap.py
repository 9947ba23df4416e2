"""Two references for the time of a change: either will do until a stated time, and then the next
one only.

The release log counts as for any verifier: a revoked policy or image is refused at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from appliance.attestation.findings import Finding
from appliance.client.connection import Connection
from appliance.client.reference import Reference
from appliance.client.verdict import FIRMWARE_PROVED, INVALID, NOT_MET, UNCHECKED, Verdict
from appliance.client.verifier import Verifier, now

RULE = "overlap"
_REFUSED = (INVALID, UNCHECKED, NOT_MET, FIRMWARE_PROVED)


class Overlap:
    """Judges by `old` or `new` until `until`, and by `new` from then on.

    A verdict by `old` says so, under the rule `overlap`. Safe to call from several threads.
    """

    def __init__(self, old: Verifier, new: Verifier, until: datetime, *,
                 clock: Callable[[], datetime] = now) -> None:
        self.until = until
        self._old, self._new, self._clock = old, new, clock
        self._first = new  # by which the last verdict held: it is asked first

    @property
    def over(self) -> bool:
        """Whether only the next reference is in force."""
        return self._clock() >= self.until

    @property
    def reference(self) -> Reference:
        """The reference that stays."""
        return self._new.reference

    def verify(self, url: str, *, nonce: bytes | None = None, at: datetime | None = None) -> Verdict:
        """The verdict on the appliance at a URL. Raises as `Verifier.verify` does."""
        return self._judged(lambda one: one.verify(url, nonce=nonce, at=at), at)

    def verify_connection(self, connection: Connection, *, nonce: bytes | None = None,
                          at: datetime | None = None) -> Verdict:
        """The verdict on whoever answers on this connection, by evidence for each reference that is
        tried."""
        return self._judged(lambda one: one.verify_connection(connection, nonce=nonce, at=at), at)

    def verify_file(self, path: Path, *, nonce: bytes | None = None, at: datetime | None = None) -> Verdict:
        """The verdict on a file. Raises as `Verifier.verify_file` does."""
        return self._judged(lambda one: one.verify_file(path, nonce=nonce, at=at), at)

    def _judged(self, ask: Callable[[Verifier], Verdict], at: datetime | None) -> Verdict:
        if self._ended(at):
            return ask(self._new)
        first = self._first
        second = self._old if first is self._new else self._new
        verdicts: dict[Verifier, Verdict] = {}
        for each in (first, second):
            verdicts[each] = verdict = ask(each)
            if each is self._old and self._ended(at):  # while it was asked
                return verdicts.get(self._new) or ask(self._new)
            if verdict.status not in _REFUSED:
                self._first = each
                return self._marked(verdict) if each is self._old else verdict
            if verdict.raw is None:  # nobody answered: another reference changes nothing
                return verdict
        return self._nearest(verdicts[self._old], verdicts[self._new])

    def _ended(self, at: datetime | None) -> bool:
        return (self._clock() if at is None else at) >= self.until

    def _marked(self, verdict: Verdict) -> Verdict:
        told = f"it is what was before, accepted until {self.until:%Y-%m-%dT%H:%M:%SZ}"
        return replace(verdict, findings=(*verdict.findings, Finding(RULE, "not checked", told)))

    @staticmethod
    def _nearest(old: Verdict, new: Verdict) -> Verdict:
        """Return the refusal that tells more: that by the policy which the evidence names."""
        told = None if old.statement is None else old.statement.policy_sha384
        return old if told == old.policy_sha384.hex() != new.policy_sha384.hex() else new


def is_old(verdict: Verdict) -> bool:
    """Whether a verdict holds for the time of an overlap only."""
    return any(each.rule == RULE for each in verdict.findings)
