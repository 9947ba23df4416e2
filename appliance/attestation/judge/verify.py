"""From evidence to authentic claims: signature, binding, nonce. Whether the claims suffice is validate's question.

Nothing here knows a policy. Order matters: bytes are parsed (abi), then the signature is checked, then the report
data is recomputed from the statement; only after that may a field of the statement be believed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from appliance.attestation import merkle
from appliance.attestation.binding import Statement, report_data
from appliance.attestation.evidence import SIMULATED, Evidence
from appliance.attestation.simulated import abi as simulated_abi
from appliance.attestation.snp import verify as snp_verify
from appliance.attestation.snp.verify import SnpClaims
from appliance.attestation.tdx import verify as tdx_verify
from appliance.attestation.tdx.verify import TdxClaims
from appliance.attestation.tpm import origin as tpm_origin
from appliance.attestation.tpm.verify import TpmClaims
from appliance.attestation.trust import VENDORS, Roots
from appliance.attestation.x509.collateral import Collateral
from appliance.errors import ForgedEvidenceError, UncheckedEvidenceError

SNP, TDX, TPM = "sev-snp", "tdx", "tpm"
Hardware = SnpClaims | TdxClaims | TpmClaims


@dataclass(frozen=True)
class Claims:
    """What authentic evidence says: by whom (platform), about what (statement), to whom (nonce).

    `host_data` is what the platform was launched with: HOST_DATA of SEV-SNP (32 bytes), MRCONFIGID of TDX (48), 32
    bytes of a simulated report; empty for a TPM, which has no such field. `hardware` holds everything else that the
    vendor's report says; None if simulated.
    """

    platform: str
    statement: Statement
    nonce: bytes
    host_data: bytes
    hardware: Hardware | None = None


@dataclass(frozen=True)
class _Report:
    """An authentic report's report data, launch field and claims."""

    report_data: bytes
    host_data: bytes
    hardware: Hardware | None = None


def _simulated(raw: bytes) -> _Report:
    report = simulated_abi.parse(raw)
    try:
        Ed25519PublicKey.from_public_bytes(report.public_key).verify(report.signature, report.signed)
    except (InvalidSignature, ValueError):
        raise ForgedEvidenceError("report: the signature does not match", code="report-signature") from None
    return _Report(report.report_data, report.host_data)


def _authentic(evidence: Evidence, collateral: Collateral, at: datetime | None, roots: Roots,
               bound: bytes) -> _Report:
    """The report, after its signature and the chain behind its key hold; `bound`: what a quote has to answer."""
    platform, raw = evidence.platform, evidence.report_bytes()
    if platform == SIMULATED:
        return _simulated(raw)
    if platform == TPM:
        return _Report(bound, b"", tpm_origin.verify(raw, bound, collateral, at=at, roots=roots))
    if at is None:
        raise UncheckedEvidenceError(
            f"platform: {platform} evidence needs a time to be verified at", code="collateral-absent")
    if platform == SNP:
        snp = snp_verify.verify(raw, collateral, at=at, roots=roots.amd)
        return _Report(snp.report.report_data, snp.report.host_data, snp)
    tdx = tdx_verify.verify(raw, collateral, at=at, root=roots.intel, root_der=roots.intel_der)
    return _Report(tdx.quote.body.report_data, tdx.quote.body.mr_config_id, tdx)


def verify(evidence: Evidence, *, collateral: Collateral | None = None, at: datetime | None = None,
           roots: Roots = VENDORS) -> Claims:
    """The claims of authentic evidence.

    `collateral` is used beside what the evidence carries; `at` is the time to judge certificates by, needed for
    hardware platforms; `roots` other than the vendors' are for tests. Raises MalformedEvidenceError on bad bytes;
    ForgedEvidenceError when a signature, a chain, the report data or the nonce's proof does not hold;
    UncheckedEvidenceError when collateral is absent; UnsupportedEvidenceError for a version or product line that cannot
    be verified.
    """
    statement = evidence.parsed_statement()
    at_hand = (collateral or Collateral()).with_items(evidence.collateral_bytes(), "evidence")
    report = _authentic(evidence, at_hand, at, roots, report_data(statement))
    check_binding(statement, report.report_data)
    nonce = check_nonce_proof(evidence, statement)
    return Claims(evidence.platform, statement, nonce, report.host_data, report.hardware)


def check_binding(statement: Statement, found: bytes) -> None:
    """An authentic report's 64 bytes of report data are those of the statement. Raises ForgedEvidenceError."""
    if not hmac.compare_digest(found, report_data(statement)):
        raise ForgedEvidenceError(
            "report: report_data is not the digest of the statement", code="report-data-mismatch")


def check_nonce_proof(evidence: Evidence, statement: Statement) -> bytes:
    """The nonce that the evidence answers, after its proof holds. Raises ForgedEvidenceError."""
    nonce = bytes.fromhex(evidence.proof.nonce)
    path = [bytes.fromhex(sibling) for sibling in evidence.proof.path]
    nonces = statement.nonces
    if not merkle.included(nonce, evidence.proof.index, nonces.size, path, bytes.fromhex(nonces.root)):
        raise ForgedEvidenceError(
            "proof: the nonce is not in the tree that the statement names", code="nonce-proof")
    return nonce
