"""Fuzz target: launch endorsements of Google's from strangers. What is read was signed; all else is an error with a
code."""

from __future__ import annotations

from appliance.attestation.google import endorsement
from appliance.errors import AttestationError
from tests.support.fake_google import NOW, FakeGoogle

GOOGLE = FakeGoogle()
WHOLE = GOOGLE.endorsement()


def fuzz(data: bytes) -> None:
    """Read it, and look at its form; both end."""
    try:
        endorsement.shaped(data)
        found = endorsement.read(data, at=NOW, root=GOOGLE.pin)
    except AttestationError as error:
        if not error.code:
            raise AssertionError("an error without a code") from None
        return
    if found != endorsement.read(WHOLE, at=NOW, root=GOOGLE.pin):
        raise AssertionError("another endorsement than the one that was signed")


def seeds() -> list[bytes]:
    """A whole one, one without a bundle, and a golden measurement by itself."""
    return [WHOLE, GOOGLE.endorsement(field6=b""), GOOGLE.golden()]
