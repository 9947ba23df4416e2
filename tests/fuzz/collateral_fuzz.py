"""Fuzz target: files among the collateral, and what requests evidence needs, from strangers.

An input is read as a file of the folder, beside three good ones, and as evidence. Only attestation errors come out,
and a quote verifies with the input in place of one of Intel's answers only where it is that answer.
"""

from __future__ import annotations

import contextlib
import functools

from appliance.attestation.judge import recognise
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import needs
from appliance.errors import AttestationError
from tests.support import fake_services
from tests.support.fake_amd import FakeAmd
from tests.support.fake_intel import NOW, FakeIntel


@functools.cache
def _intel() -> tuple[FakeIntel, bytes, tuple[bytes, ...]]:
    fake = FakeIntel()
    files = []
    for (answer,) in fake_services.intel(fake).values():
        files += [answer.body, *(value.encode() for value in answer.headers.values())]
    return fake, fake.quote(), tuple(files)


def fuzz(data: bytes) -> None:
    """Read `data` as collateral in place of the TCB information, and as evidence."""
    fake, quote, files = _intel()
    known = Collateral()
    for file in files[1:]:
        known.add(file, "good")
    if not known.add(data, "input"):
        recognise.recognise(data)
    known.not_understood()
    with contextlib.suppress(AttestationError):
        found = tdx_verify.verify(quote, known, at=NOW, **fake.pins)
        if found.tcb.status != "UpToDate":
            raise AssertionError(f"verified what nobody signed: {found}")
    with contextlib.suppress(AttestationError):
        needs.explained(needs.of(data))


def seeds() -> list[bytes]:
    """Raw answers, headers, lists, the joined document, and evidence."""
    _, quote, files = _intel()
    amd = FakeAmd("Turin")
    kept = b"HTTP/2 200\r\nTCB-Info-Issuer-Chain: " + files[1] + b"\r\n\r\n" + files[0]
    return [*files, kept, files[-1].hex().encode(), quote, amd.report(version=5),
            amd.report(version=2), *(answer.body for (answer,) in fake_services.amd(amd).values())]
