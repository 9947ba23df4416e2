"""Trustee's TDX evidence: a quote and the event log of the guest's firmware, both in base64.

    {"quote": "BAACAIEA...", "cc_eventlog": "AAAA..."}

Older writers call the log `ccel`. A log that is null or empty is none.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members

_WHAT = "TDX evidence in JSON"
_LOGS = ("cc_eventlog", "ccel")


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return isinstance(found.get("quote"), str) and set(found) <= {"quote", *_LOGS, "aa_eventlog"}


def read(found: Members) -> EnvelopeParts:
    """The quote and its log."""
    named = [name for name in _LOGS if found.get(name)]
    log = strict.octets_in_base64(found[named[0]], f"{_WHAT}: {named[0]}") if named else None
    unjudged = tuple(name for name in (*named[1:], *(["aa_eventlog"] if found.get("aa_eventlog") else [])))
    return EnvelopeParts(strict.octets_in_base64(found["quote"], f"{_WHAT}: quote"), log=log, unjudged=unjudged)
