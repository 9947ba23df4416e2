"""The means to verify a report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from appliance.attestation.case.event_log import Event
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import UncheckedEvidenceError

Log = Callable[[], bytes | tuple[Event, ...] | None]


def no_log() -> None:
    """No event log came with the report."""
    return


@dataclass(frozen=True)
class Means:
    """The means to verify a report. `bound`: what a quote has to answer, 64 bytes.

    `tail` is what follows the report, and `log` gives the event log of a TDX quote: neither is
    signed, and neither decides anything.
    """

    raw: bytes
    bound: bytes
    collateral: Collateral
    at: datetime | None
    roots: Roots
    tail: bytes = b""
    log: Log = no_log

    def time(self, platform: str) -> datetime:
        """The time to judge certificates by. Raises UncheckedEvidenceError without one."""
        if self.at is None:
            raise UncheckedEvidenceError(
                f"platform: {platform} evidence needs a time to be verified at", code="collateral-absent")
        return self.at
