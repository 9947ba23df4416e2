"""A chat service's report in JSON: a TDX quote, and beside it what its own clients read.

    {"intel_quote": "0400...", "event_log": "[...]", "nvidia_payload": "{...}", "signing_address": "0x..."}

Phala, RedPill, NEAR AI and Venice write it. A gateway's report stands under `gateway_attestation`,
with those of its models beside it. Services add members of their own, so any other is named.
"""

from __future__ import annotations

from appliance.attestation.case.event_log import Event
from appliance.attestation.envelopes.dstack import document
from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

_WHAT = "chat service's report in JSON"
_TOLD = ("signing_address", "request_nonce", "tls_cert_fingerprint", "model_name")
_GATEWAY, _FLEET = "gateway_attestation", "all_attestations"
MAX_NAMED = 16  # members that nobody judges


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return isinstance(_report(found).get("intel_quote"), str) or isinstance(found.get(_FLEET), list)


def read(found: Members) -> EnvelopeParts:
    """The quote, and its events where they are in form. Raises UnsupportedEvidenceError where the
    report is of several machines and says which one to no reader."""
    report = _report(found)
    if not isinstance(report.get("intel_quote"), str):
        raise UnsupportedEvidenceError(f"{_WHAT}: {_FLEET} has reports of several machines, and none comes first",
                                       code="envelope-platform", hint="take each report out, and examine it by itself")
    events = _events(report)
    judged = {"intel_quote", *_TOLD, *(["event_log"] if events else [])}
    others = [*(name for name in report if name not in judged), *(name for name in found if report is not found)]
    told = tuple((name, report[name]) for name in _TOLD if isinstance(report.get(name), str))
    return EnvelopeParts(_quote(report["intel_quote"]), events=events, told=told,
                         unjudged=tuple(name for name in others if name != _GATEWAY)[:MAX_NAMED])


def _report(found: Members) -> Members:
    inner = found.get(_GATEWAY)
    return inner if isinstance(inner, dict) else found


def _quote(text: str) -> bytes:
    digits = text.removeprefix("0x")
    if digits[:2] in ("04", "05"):
        return strict.hexadecimal(digits.lower(), f"{_WHAT}: intel_quote")
    return strict.octets_in_base64(text, f"{_WHAT}: intel_quote")


def _events(report: Members) -> tuple[Event, ...] | None:
    """The events, or None where they are in another form than dstack's: they only explain."""
    try:
        return document.events(report.get("event_log"))
    except (MalformedEvidenceError, UnsupportedEvidenceError):
        return None
