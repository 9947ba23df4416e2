"""Fuzz target: TDX quotes and collateral from strangers. Nothing but what was signed verifies.

An input is a quote; where it begins with `{` it is collateral for a signed quote, and where it begins as a DER sequence
a certificate with evidence.
"""

from __future__ import annotations

import contextlib
import functools
import json

from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.x509.judging import dice as x509dice
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError
from tests.support.fake_intel import NOW, FakeIntel, dice_certificate

_FAKE = FakeIntel()


@functools.cache
def _quotes() -> tuple[bytes, ...]:
    return _FAKE.quote(), _FAKE.quote(5), _FAKE.quote(5, td15=True)


@functools.cache
def _document() -> dict[str, str]:
    return _FAKE.document()


def fuzz(data: bytes) -> None:
    """Verify `data` as a quote, or a good quote with `data` as collateral."""
    if data[:1] == b"0":
        with contextlib.suppress(AttestationError):
            x509dice.check_binding(x509dice.parse(data), bytes(64))
        return
    known, quote = Collateral(documents=[dict(_document())]), data
    if data[:1] == b"{":
        known, quote = Collateral(), _quotes()[0]
        known.add(data, "collateral.json")
    try:
        claims = tdx_verify.verify(quote, known, at=NOW, **_FAKE.pins)
    except AttestationError:
        return
    if quote.rstrip(b"\0") not in {each.rstrip(b"\0") for each in _quotes()} or claims.tcb.status != "UpToDate":
        raise AssertionError("verified what nobody signed")


def seeds() -> list[bytes]:
    """Signed quotes of each kind, and collateral."""
    return [*_quotes(), json.dumps(_document()).encode(), dice_certificate(), dice_certificate(_quotes()[0])]
