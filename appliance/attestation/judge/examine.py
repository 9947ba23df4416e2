"""Look at a file of evidence: recognise it, verify signature and chain, and collect every claim.

The certificates come from untrusted collateral, the roots are pinned. No policy is judged here.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from appliance import platforms
from appliance.attestation import evidence
from appliance.attestation.collect import ratls
from appliance.attestation.envelopes import recognise, registry
from appliance.attestation.judge import examine_envelope, examine_tpm, verify
from appliance.attestation.judge.examination import Examination
from appliance.attestation.snp import abi as snp_abi
from appliance.attestation.snp import describe as snp_claims
from appliance.attestation.snp import table as snp_table
from appliance.attestation.snp import verify as snp_verify
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tdx import describe as tdx_claims
from appliance.attestation.tdx import verify as tdx_verify
from appliance.attestation.tpm import azure as azure_abi
from appliance.attestation.tpm import event_log as tpm_log
from appliance.attestation.tpm import evidence as tpm_evidence
from appliance.attestation.tpm import verify as tpm_verify
from appliance.attestation.tpm.chip import files as tpm_files
from appliance.attestation.tpm.verify import TpmClaims
from appliance.attestation.trust import VENDORS, Roots
from appliance.attestation.x509 import dice as x509dice
from appliance.attestation.x509.collateral import Collateral
from appliance.codec import cbor, filekind
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

MAX_BYTES = 1 << 24


@dataclass(frozen=True)
class Material:
    """What an examination works with. `key` is for TPM quotes: the AK that is vouched for. `log`: the event log of a
    TPM or TDX quote, in place of one beside it. `nonce` is what a TPM quote,
    or the appliance's own evidence, must answer; of other kinds nothing can be told then.

    `roots` other than the vendors' are for tests.
    """

    data: bytes
    path: Path
    collateral: Collateral = field(default_factory=Collateral)
    key: Path | None = None
    log: bytes | None = None
    nonce: bytes | None = None
    roots: Roots = VENDORS
    events: tuple[tpm_log.Event, ...] | None = None  # an envelope's event log, already read; `log` comes before it


def examine(material: Material, *, at: datetime) -> Examination:
    """The outcome for one file, judged at a time. Never raises on account of the file's bytes."""
    kind = recognise.recognise(material.data)
    found = Examination(kind or "unknown")
    try:
        if kind is None:
            raise UnsupportedEvidenceError(
                f"not recognised as evidence of any kind{filekind.instead(material.data)}", code="evidence-unknown",
                hint="known: SEV-SNP reports, TDX and TPM quotes, certificates with DICE evidence, our own, and the "
                "envelopes of Trustee, TSM, attestation-rs and dstack")
        if material.nonce is not None and kind not in _WITH_NONCE:
            raise examine_envelope.nonce_unchecked(kind)
        return _EXAMINERS[kind](found, material, at)
    except AttestationError as error:
        return found.failed(error)


def _snp(found: Examination, material: Material, at: datetime) -> Examination:
    report, table, tail = snp_table.split(material.data)
    for name, certificate in table.items():
        material.collateral.add(certificate, f"{name}.der")
    _snp_report(found, report, material, at, tail)
    return found.genuine("signed by AMD hardware; whether it is acceptable is for a policy to say")


def _snp_report(found: Examination, report: bytes, material: Material, at: datetime,
                tail: bytes = b"") -> snp_verify.SnpClaims:
    """Verify a report and record its claims, proved or not, and the bytes behind it."""
    parsed = snp_abi.parse(report)
    found.kind = f"{recognise.SNP}, version {parsed.version}"
    found.claims["claims"] = snp_claims.describe(parsed, None)
    found.warnings = snp_claims.warnings(parsed, None, at)
    found.followed(tail)
    claims = snp_verify.verify(report, material.collateral, at=at, roots=material.roots.amd)
    found.claims["claims"] = snp_claims.describe(parsed, claims)
    found.warnings = snp_claims.warnings(parsed, claims, at)
    found.followed(tail)
    found.proved += [f"the {claims.signing_key.upper()} signed the report",
                     f"its chain leads to the pinned root ARK-{claims.product}",
                     "chip id, TCB and product line are those of the certificate"]
    if claims.revocation is not None and claims.revocation.in_force(at):
        found.proved.append(f"no certificate is revoked as of {claims.revocation.this_update:%Y-%m-%d}")
    return claims


def _azure(found: Examination, material: Material, at: datetime) -> Examination:
    data, tail = azure_abi.split(material.data)
    report = azure_abi.parse(data)
    if report.kind != azure_abi.SNP:
        raise UncheckedEvidenceError(
            "Azure report: a TDREPORT, which only the CPU that made it can check", hint="examine a TDX quote of it")
    claims = _snp_report(found, report.hardware, material, at, tail)
    found.kind = f"{recognise.AZURE} with {found.kind}"
    if claims.report.report_data[:32] != hashlib.sha256(report.runtime).digest():
        raise ForgedEvidenceError(
            "Azure report: the runtime data is not what the hardware report binds", code="azure-runtime-data")
    found.proved.append("the runtime data is bound in the report")
    found.claims["runtime data"] = [
        (str(key.get("kid", "key")), f"{key.get('kty')} {key.get('n', key.get('x', ''))}") for key in report.keys]
    return found.genuine("signed by AMD hardware, and names the keys of the virtual TPM")


def _tdx(found: Examination, material: Material, at: datetime) -> Examination:
    data, tail = tdx_abi.split(material.data)
    parsed = tdx_abi.parse(data)
    found.kind = f"{recognise.TDX}, version {parsed.version}"
    found.claims["claims"] = tdx_claims.describe(parsed, None)
    found.warnings = tdx_claims.warnings(parsed, None)
    found.followed(tail)
    tdx_verify.verify_signatures(parsed, at=at, root=material.roots.intel)
    found.proved += ["the attestation key signed the quote", "the quoting enclave's report binds that key",
                     "the PCK signed that report, and its chain leads to the pinned root of Intel"]
    warned = _ccel(found, material, parsed)
    claims = tdx_verify.verify(data, material.collateral, at=at, root=material.roots.intel,
                               root_der=material.roots.intel_der)
    found.claims["claims"] = tdx_claims.describe(parsed, claims)
    found.warnings = [*tdx_claims.warnings(parsed, claims), *warned]
    found.followed(tail)
    found.proved += ["the quoting enclave is Intel's", "Intel's signed TCB information was in force"]
    return found.genuine(f"signed by Intel hardware, TCB {claims.tcb.status}; whether it is acceptable is for a "
                         "policy to say")


def _ccel(found: Examination, material: Material, quote: tdx_abi.TdxQuote) -> list[str]:
    """Compare RTMRs with the log that was named or lies beside the quote; returns what was warned of.

    A CCEL numbers RTMRs from 1; number 0 stands for the MRTD, which no event extends.
    """
    registers = {"sha384": {number + 1: value for number, value in enumerate(quote.body.rtmr)}}
    if material.log is None and material.events is not None:
        log, events = None, material.events
        explanation = tpm_log.explain(events, registers)
    else:
        log = material.log if material.log is not None else tpm_files.log_beside(material.path)
        if log is None:
            return []
        events, explanation = tpm_verify.explained(log, registers)
    before = len(found.warnings)
    examine_tpm.record_log(found, tpm_log.shifted(explanation, -1), len(events), "RTMR")
    return found.warnings[before:]


def _tpm(found: Examination, material: Material, at: datetime) -> Examination:
    return examine_tpm.examine(found, material.path, material.collateral, key=material.key, nonce=material.nonce,
                               log=material.log, at=at, roots=material.roots)


def _certificate(found: Examination, material: Material, at: datetime) -> Examination:
    if not x509dice.holds_evidence(material.data):
        raise UnsupportedEvidenceError(
            f"X.509 certificate: no evidence in it (extension {x509dice.EVIDENCE_OID})", code="evidence-unknown",
            hint="if it belongs to evidence, examine that, with --collateral for this file's folder")
    if ratls.is_ours(material.data):
        return _ratls(found, material, at)
    found.kind = "X.509 certificate with DICE evidence"
    carried = x509dice.parse(material.data)
    claims = cbor.decode(carried.claims_buffer)
    found.claims["certificate"] = [
        ("public key, SHA-256", hashlib.sha256(carried.spki).hexdigest()),
        ("claims", ", ".join(str(name) for name in claims) if isinstance(claims, dict) else "none")]
    kind = recognise.recognise(carried.quote)
    found.kind = f"X.509 certificate with DICE evidence: {kind or 'unknown'}"
    if kind == recognise.SGX:
        return _sgx(found, material, at)
    if kind != recognise.TDX:
        raise UnsupportedEvidenceError(f"X.509 certificate: its evidence ({kind or 'unknown'}) is not verified here")
    _tdx(found, replace(material, data=carried.quote), at)
    found.kind = f"X.509 certificate with DICE evidence: {found.kind}"
    x509dice.check_binding(carried, tdx_abi.parse(carried.quote).body.report_data)
    found.proved.append("the quote binds the certificate's key")
    return found


def _ratls(found: Examination, material: Material, at: datetime) -> Examination:
    found.kind = "RA-TLS certificate of the appliance"
    carried = ratls.parse(material.data)
    found.claims["certificate"] = [
        ("public key, SHA-256", carried.spki_sha256.hex()), ("names", ", ".join(carried.names) or "none"),
        ("valid", f"{carried.not_before:%Y-%m-%d %H:%M} to {carried.not_after:%Y-%m-%d %H:%M} UTC")]
    found.proved.append("the certificate's own key signed it, and the statement names this key")
    if not carried.not_before <= at <= carried.not_after:
        raise UncheckedEvidenceError("RA-TLS: the certificate is not in force at that time", code="certificate-expired",
                                  hint="certificates rotate; --at judges by another time")
    _ours(found, replace(material, data=carried.evidence.to_json()), at)
    found.kind = f"RA-TLS certificate with {found.kind}"
    return found


def _sgx(found: Examination, material: Material, at: datetime) -> Examination:
    raise UnsupportedEvidenceError(
        "Intel SGX quote: SGX enclaves are not a platform of this appliance, so the evidence is refused",
        code="evidence-sgx")


def _ours(found: Examination, material: Material, at: datetime) -> Examination:
    parsed = evidence.parse(material.data)
    kind = f"{recognise.APPLIANCE}, platform {parsed.platform}"
    found.kind = kind
    found.claims["statement"] = sorted(parsed.statement.items())
    at_hand = material.collateral.with_items(parsed.collateral_bytes(), "evidence")
    inner = replace(material, data=parsed.report_bytes(), collateral=at_hand)
    if parsed.platform == evidence.SIMULATED:
        found.warnings.append(platforms.SIMULATED.notice)
    elif parsed.platform == platforms.SNP.name:
        _snp_report(found, inner.data, inner, at)
    elif parsed.platform == platforms.TDX.name:
        _tdx(found, inner, at)
    found.kind = kind
    claims = verify.verify(parsed, collateral=at_hand, at=at, roots=material.roots)
    found.proved.append("the report binds the statement")
    if material.nonce is not None and not hmac.compare_digest(claims.nonce, material.nonce):
        raise ForgedEvidenceError(f"appliance evidence: made for another nonce, {claims.nonce.hex()}",
                                  code="nonce-other")
    found.proved.append(f"it answers the nonce {claims.nonce.hex()}"
                        + ("" if material.nonce is not None else ", which the file names: was it yours?"))
    if parsed.platform == evidence.SIMULATED:
        return _no_hardware()
    if isinstance(claims.hardware, TpmClaims):
        return examine_tpm.record_origin(found, claims.hardware, material.key)
    return found.genuine("signed by the vendor's hardware; whether it is acceptable is for a policy to say")


def _tpm_evidence(found: Examination, material: Material, at: datetime) -> Examination:
    carried = tpm_evidence.parse(material.data)
    folder = {"quote": carried.quote, "key": carried.key}
    found.claims["records"] = [(name, f"SHA-256 {hashlib.sha256(data).hexdigest()}") for name, data in folder.items()]
    raise UncheckedEvidenceError(
        "TPM evidence: it answers report data that stand in the statement around it",
        hint="examine the evidence in JSON that it came in")


def _envelope(found: Examination, material: Material, at: datetime) -> Examination:
    return examine_envelope.examine(found, material, at, _inner)


def _inner(found: Examination, material: Material, at: datetime) -> Examination:
    """Judge the report or quote that an envelope carries; an envelope carries no other kind."""
    kind = recognise.recognise(material.data)
    if kind not in _IN_ENVELOPES:
        raise UnsupportedEvidenceError(f"its evidence ({kind or 'unknown'}) is not verified here", hint="known: "
                                       + ", ".join(_IN_ENVELOPES))
    found.kind = kind
    return _IN_ENVELOPES[kind](found, material, at)


def _simulated(found: Examination, material: Material, at: datetime) -> Examination:
    found.warnings.append(platforms.SIMULATED.notice)
    return _no_hardware()


def _no_hardware() -> Examination:
    raise ForgedEvidenceError(
        "simulated: no hardware made this, and anyone can", code="evidence-simulated",
        hint="it serves development; a verifier never calls it genuine")


_EXAMINERS = {
    recognise.SNP: _snp, recognise.TDX: _tdx, recognise.AZURE: _azure, recognise.TPM: _tpm,
    recognise.CERTIFICATE: _certificate, recognise.SGX: _sgx, recognise.APPLIANCE: _ours,
    recognise.SIMULATED: _simulated, recognise.TPM_EVIDENCE: _tpm_evidence,
    **dict.fromkeys(registry.NAMES, _envelope),
}
_IN_ENVELOPES = {recognise.SNP: _snp, recognise.TDX: _tdx, recognise.AZURE: _azure, recognise.SGX: _sgx}

_WITH_NONCE = frozenset({recognise.TPM, recognise.APPLIANCE, *registry.NAMES})
