"""The material of an examination: the evidence, and what lies beside it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from appliance.attestation.case.event_log import Event
from appliance.attestation.case.given import Means
from appliance.attestation.tpm.judging import files
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509.judging.collateral import Collateral


@dataclass(frozen=True)
class Material:
    """The material of an examination. `key` is for TPM quotes: the AK that is vouched for. `log`:
    the event log of a TPM or TDX quote, in place of one beside it. `nonce` is what a TPM quote, or
    the appliance's own evidence, must answer; of other kinds nothing can be told then.

    `roots` other than the vendors' are for tests.
    """

    data: bytes
    path: Path
    collateral: Collateral = field(default_factory=Collateral)
    key: Path | None = None
    log: bytes | None = None
    nonce: bytes | None = None
    roots: Roots = VENDORS
    events: tuple[Event, ...] | None = None  # an envelope's event log, already read; `log` comes before it

    def given(self, report: bytes, at: datetime, tail: bytes = b"") -> Means:
        """The means to verify a report in this material, with `tail` behind it."""
        return Means(report, b"", self.collateral, at, self.roots, tail, self.log_at_hand)

    def log_at_hand(self) -> bytes | tuple[Event, ...] | None:
        """The event log of a TDX quote: the one that was named, else the envelope's, else the one
        beside the file."""
        if self.log is not None:
            return self.log
        return self.events if self.events is not None else files.log_beside(self.path)
