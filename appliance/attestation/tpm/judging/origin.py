"""From TPM evidence in one piece to authentic claims, and whose the attestation key is.

The key's certificate, if it has one, is checked up to a pinned root. An Azure confidential VM's
evidence also carries a hardware report that names the key; if that report verifies, the key is
bound in hardware. Without either the claims are only those of whoever holds the key.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric import rsa

from appliance.attestation.snp.judging import verify as snp_verify
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tdx.judging import verify as tdx_verify
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.attestation.tpm import container
from appliance.attestation.tpm.container import TpmEvidence
from appliance.attestation.tpm.judging import azure
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.azure import HclReport
from appliance.attestation.tpm.judging.verify import AttestationKey, TpmClaims
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import ForgedEvidenceError, UncheckedEvidenceError


def verify(raw: bytes, report_data: bytes, collateral: Collateral, *, at: datetime | None,
           roots: Roots = VENDORS) -> TpmClaims:
    """The claims of TPM evidence whose quote answers `report_data` (64 bytes).

    `at` is needed to judge certificates by; without it there is no `root` and no `bound_by`. Raises
    MalformedEvidenceError, UnsupportedEvidenceError; ForgedEvidenceError if signature, qualifying
    data, PCR values, event log, a certificate or the hardware report do not hold.
    """
    evidence = container.parse(raw)
    claims = tpm_verify.verify(
        evidence.quote, evidence.signature, tpm_verify.load_key(evidence.key), pcrs=evidence.values(),
        nonce=container.qualifying_data(report_data), log=evidence.log)
    claims = replace(claims, ek_certificate=evidence.ek_certificate, others=tuple(collateral.certificates))
    if at is None:
        return claims
    return replace(claims, root=_root(evidence, claims.key, collateral, at, roots),
                   bound_by=_bound_by(evidence, claims.key, collateral, at, roots))


def _root(evidence: TpmEvidence, key: AttestationKey, collateral: Collateral, at: datetime, roots: Roots) -> str | None:
    """The pinned root above the key's certificate; None without a certificate, an issuer at hand,
    or a pin."""
    if evidence.key_certificate is None:
        return None
    certificate = walks.load(evidence.key_certificate, "AK certificate")[0]
    try:
        return tpm_verify.certify(key, certificate, collateral.certificates, at=at, roots=roots.tpm)
    except UncheckedEvidenceError:
        return None


def _bound_by(evidence: TpmEvidence, key: AttestationKey, collateral: Collateral, at: datetime,
              roots: Roots) -> SnpClaims | TdxClaims | None:
    """The hardware's claims that bind the key; None without a report or quote, or without the
    collateral to check it with."""
    report = None if evidence.azure_report is None else azure.parse(evidence.azure_report)
    if report is None or (report.kind == azure.TDX and evidence.td_quote is None):
        return None
    try:
        if evidence.td_quote is not None:
            return _bound_by_td(report, evidence.td_quote, key, collateral, at, roots)
        return bound_by(report, key, collateral, at, roots)
    except UncheckedEvidenceError:
        return None


def _bound_by_td(report: HclReport, quote: bytes, key: AttestationKey, collateral: Collateral, at: datetime,
                 roots: Roots) -> TdxClaims:
    """The TDX claims of a quote that binds an Azure report's runtime data, which name `key`."""
    claims = tdx_verify.verify(quote, collateral, at=at, root=roots.intel, root_der=roots.intel_der)
    _check_named(report, claims.quote.body.report_data, key)
    return claims


def bound_by(report: HclReport, key: AttestationKey, collateral: Collateral, at: datetime, roots: Roots) -> SnpClaims:
    """The SEV-SNP claims of an Azure report that binds `key`.

    Raises UncheckedEvidenceError without an SEV-SNP report or the certificates to check it with,
    ForgedEvidenceError if report or binding do not hold.
    """
    if report.kind != azure.SNP:
        raise UncheckedEvidenceError("Azure report: a TDREPORT, which only the CPU that made it can check",
                                     hint="examine a TDX quote of it")
    claims = snp_verify.verify(report.hardware, collateral, at=at, roots=roots.amd)
    _check_named(report, claims.report.report_data, key)
    return claims


def _check_named(report: HclReport, report_data: bytes, key: AttestationKey) -> None:
    """The hardware's report data bind the runtime data, and these name the key. Raises
    ForgedEvidenceError."""
    if report_data[:32] != hashlib.sha256(report.runtime).digest():
        raise ForgedEvidenceError(
            "Azure report: the runtime data is not what the hardware report binds", code="azure-runtime-data")
    numbers = key.key.public_numbers() if isinstance(key.key, rsa.RSAPublicKey) else None
    if numbers is None or report.attestation_key() != (numbers.n, numbers.e):
        raise ForgedEvidenceError("Azure report: it names another key than the one that quoted", code="tpm-ak-binding")
