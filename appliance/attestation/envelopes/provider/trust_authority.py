"""A request to Intel's Trust Authority: a TDX quote, its nonce and the guest's own data.

    {"tdx": {"quote": "BAAC...", "verifier_nonce": {"val": "...", "iat": "...", "signature": "..."}}}

Older clients send only the inner object. The nonce and the data are in the quote's report data by
a hash that Intel's service computes; nothing here does.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members

_WHAT = "Trust Authority request"
_OUTSIDE = ("policy_ids", "token_signing_alg", "policy_must_match", "nvgpu", "tdx")
_BESIDE = ("verifier_nonce", "runtime_data", "user_data", "event_log", "policy_ids", "token_signing_alg",
           "policy_must_match")


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    inner = found.get("tdx", found)
    return isinstance(inner, dict) and isinstance(inner.get("quote"), str) and (
        "tdx" in found or isinstance(inner.get("verifier_nonce"), dict))


def read(found: Members) -> EnvelopeParts:
    """The quote."""
    unjudged: list[str] = []
    if "tdx" in found:
        strict.only(found, _OUTSIDE, _WHAT)
        unjudged += ["nvgpu"] if found.get("nvgpu") else []
        found = found["tdx"]
    strict.only(found, ("quote", *_BESIDE), _WHAT)
    unjudged += [name for name in _BESIDE if found.get(name)]
    return EnvelopeParts(strict.octets_in_base64(found["quote"], f"{_WHAT}: quote"), unjudged=tuple(unjudged))
