"""From evidence to authentic claims: signature, binding, nonce. Whether the claims suffice is
validate's question.

Nothing here knows a policy. Order matters: bytes are parsed (abi), then the signature is checked,
then the report data is recomputed from the statement; only after that may a field of the statement
be believed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime

from appliance.attestation import merkle
from appliance.attestation.binding import Statement, report_data
from appliance.attestation.case import reading
from appliance.attestation.case.given import Log, Means, no_log
from appliance.attestation.case.record import Record
from appliance.attestation.evidence import Evidence
from appliance.attestation.findings import Finding
from appliance.attestation.judge import recognise
from appliance.attestation.judge.halves import JUDGES
from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import ForgedEvidenceError


@dataclass(frozen=True)
class Claims:
    """The claims of authentic evidence: by whom (platform), about what (statement), to whom
    (nonce).

    `host_data` is what the platform was launched with: HOST_DATA of SEV-SNP (32 bytes), MRCONFIGID
    of TDX (48), 32 bytes of a simulated report; empty for a TPM, which has no such field.
    `hardware` holds everything else that the vendor's report says; None if simulated.
    """

    platform: str
    statement: Statement
    nonce: bytes
    host_data: bytes
    hardware: object | None = None
    session: bytes | None = None  # the exporter of the TLS session that the evidence is of; None: of a key alone


def verify(evidence: Evidence, *, collateral: Collateral | None = None, at: datetime | None = None,
           roots: Roots = VENDORS, record: Record | None = None, log: Log = no_log) -> Claims:
    """The claims of authentic evidence.

    `record` takes each step, also where one fails; `log` gives an event log to compare the report
    with.

    `collateral` is used beside what the evidence carries; `at` is the time to judge certificates
    by, needed for hardware platforms; `roots` other than the vendors' are for tests. Raises
    MalformedEvidenceError on bad bytes, and ForgedEvidenceError when a signature, a chain, the
    report data or the nonce's proof does not hold. Raises UncheckedEvidenceError when collateral is
    absent, and UnsupportedEvidenceError for a version or product line that cannot be verified.
    """
    kind = f"{recognise.APPLIANCE}, platform {evidence.platform}"
    record = Record(kind) if record is None else record
    record.kind, record.claims["statement"] = kind, sorted(evidence.statement.items())
    statement = reading.statement_of(evidence)
    at_hand = (collateral or Collateral()).with_items(reading.collateral_of(evidence), "evidence")
    report = JUDGES[evidence.platform].verify(
        record, Means(evidence.report_bytes(), report_data(statement), at_hand, at, roots, log=log))
    record.kind = kind
    check_binding(statement, report.report_data)
    nonce = check_nonce_proof(evidence, statement)
    record.holds("statement", "the report binds the statement")
    session = evidence.session or getattr(statement, "session", None)
    return Claims(evidence.platform, statement, nonce, report.host_data, report.hardware,
                  None if session is None else bytes.fromhex(session))


def shown(claims: Claims) -> tuple[Finding, ...]:
    """The result of verification, for a verdict by a policy: who signed, and that it is about this
    statement."""
    return (Finding("signature", "holds", JUDGES[claims.platform].signer(claims.hardware)),
            Finding("statement", "holds", claims.statement.type))


def check_binding(statement: Statement, found: bytes) -> None:
    """An authentic report's 64 bytes of report data are those of the statement. Raises
    ForgedEvidenceError."""
    if not hmac.compare_digest(found, report_data(statement)):
        raise ForgedEvidenceError(
            "report: report_data is not the digest of the statement", code="report-data-mismatch")


def check_nonce_proof(evidence: Evidence, statement: Statement) -> bytes:
    """The nonce that the evidence answers, after its proof holds. Raises ForgedEvidenceError."""
    nonce = bytes.fromhex(evidence.proof.nonce)
    leaf = reading.leaf_of(evidence, getattr(statement, "tls_spki_sha256", None))
    path = [bytes.fromhex(sibling) for sibling in evidence.proof.path]
    nonces = statement.nonces
    if not merkle.included(leaf, evidence.proof.index, nonces.size, path, bytes.fromhex(nonces.root)):
        raise ForgedEvidenceError(
            "proof: the nonce is not in the tree that the statement names", code="nonce-proof")
    return nonce
