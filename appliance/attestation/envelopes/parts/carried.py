"""The contents of an envelope, before any of them is judged."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.attestation.case.event_log import Event
from appliance.attestation.tpm.judging.files import TpmFiles


@dataclass(frozen=True)
class EnvelopeParts:
    """The evidence in an envelope and what travels with it."""

    evidence: bytes                       # a report or quote, in its vendor's format
    certificates: tuple[bytes, ...] = ()  # DER or PEM
    log: bytes | None = None              # a TCG event log
    events: tuple[Event, ...] | None = None  # an event log in the envelope's own format, registers from 1
    tpm: TpmFiles | None = None           # a TPM quote in pieces, with the Azure report that names its key
    report_data: bytes | None = None      # what the envelope says that the evidence answers
    told: tuple[tuple[str, str], ...] = ()  # further members, for people
    unjudged: tuple[str, ...] = ()        # names of members that no examiner judges
