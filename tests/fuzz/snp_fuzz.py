"""Fuzz target: SEV-SNP reports and the certificates beside them, from strangers. Nothing but what was signed verifies.

An input is a report (1,184 bytes), then a certificate in DER that stands in for the leaf; either may be cut off.
"""

from __future__ import annotations

import functools

from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError
from tests.support.fake_amd import NOW, FakeAmd


@functools.cache
def _hierarchies() -> tuple[FakeAmd, ...]:
    return FakeAmd("Milan"), FakeAmd("Turin"), FakeAmd("Genoa", vlek=True)


@functools.cache
def _reports() -> tuple[bytes, ...]:
    return tuple(fake.report(version=5) for fake in _hierarchies())


@functools.cache
def _known() -> tuple[tuple[Collateral, dict[str, str]], ...]:
    return tuple((fake.collateral(), fake.roots) for fake in _hierarchies())


def fuzz(data: bytes) -> None:
    """Verify `data` under each hierarchy, with the leaf at hand and with the leaf from the input."""
    report, certificate = data[:REPORT_BYTES], data[REPORT_BYTES:]
    for collateral, roots in _known():
        found = Collateral(certificates=list(collateral.certificates))
        if certificate:
            del found.certificates[0]
            found.add(certificate, "leaf.der")
        try:
            snp_verify.verify(report, found, at=NOW, roots=roots)
        except AttestationError:
            continue
        if report not in _reports():
            raise AssertionError("verified what nobody signed")


@functools.cache
def _leaves() -> tuple[bytes, ...]:
    return tuple(fake.leaf.public_bytes(Encoding.DER) for fake in _hierarchies())


def seeds() -> list[bytes]:
    """Signed reports, alone and with their certificates."""
    return [*_reports(), *(report + leaf for report, leaf in zip(_reports(), _leaves(), strict=True))]
