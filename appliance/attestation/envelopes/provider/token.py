"""A token of an attestation service (JWT): its verdict on evidence that it saw, and no evidence.

    eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL3NoYXJlZGV1cy5ldXMuYXR0ZXN0LmF6dXJlLm5ldCJ9.c2ln

A verdict of somebody else is believed under that service's key, which nothing here holds.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.codec import strict as spelling
from appliance.errors import UnsupportedEvidenceError

MAX_BYTES = 1 << 18
NAME = "attestation token"
# what an issuer's address has in it -> whose verdict it is
_ISSUERS = {"attest.azure.": "Microsoft Azure Attestation", "confidentialcomputing.googleapis.com":
            "Google Cloud Attestation", "trustauthority.intel.com": "Intel Trust Authority",
            "nras.attestation.nvidia.com": "NVIDIA Remote Attestation", "CoCo-Attestation-Service": "Trustee"}


def fits(data: bytes) -> bool:
    """Whether the bytes are three parts of base64url, whose second is claims with an issuer."""
    return issuer(data) is not None


def issuer(data: bytes) -> str | None:
    """The issuer that a token names, None where it is not a token."""
    parts = data.strip(b" \t\r\n\0").split(b".", 3)
    if len(data) > MAX_BYTES or len(parts) != 3 or not all(parts[:2]) or not data.isascii():
        return None
    try:
        found = strict.members(spelling.base64url(parts[1].decode()))
    except ValueError:
        return None
    stated = None if found is None or found[1] else found[0].get("iss")
    return stated if isinstance(stated, str) and stated else None


def refuse(data: bytes) -> UnsupportedEvidenceError:
    """The error for a token, which names its issuer and what to do."""
    stated = issuer(data) or ""
    known = next((name for part, name in _ISSUERS.items() if part in stated), None)
    by = f"{known} ({stated[:80]!r})" if known else repr(stated[:80])
    return UnsupportedEvidenceError(
        f"{NAME} by {by}: the verdict of somebody else, not evidence", code="envelope-platform",
        hint="ask the guest for the report or quote that the service saw, and examine that; the token is for whoever "
        "trusts the service, under its published keys")
