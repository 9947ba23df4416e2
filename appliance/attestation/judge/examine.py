"""Look at a file of evidence: recognise it and have it judged; the record tells every claim and
every step.

The certificates come from untrusted collateral, the roots are pinned. No policy is judged here.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from datetime import datetime

from appliance import platforms
from appliance.attestation import evidence
from appliance.attestation.case import certified, reading
from appliance.attestation.case.record import Record
from appliance.attestation.envelopes import registry
from appliance.attestation.evidence import EVIDENCE_OID
from appliance.attestation.judge import azure_vm, buried, envelope, quotes, recognise, verify
from appliance.attestation.judge.halves import JUDGES
from appliance.attestation.judge.material import Material
from appliance.attestation.nitro.judging import judge as nitro_judge
from appliance.attestation.simulated.judging import judge as simulated_judge
from appliance.attestation.snp import table as snp_table
from appliance.attestation.snp.judging import judge as snp_judge
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.judging import judge as tdx_judge
from appliance.attestation.tpm import container
from appliance.attestation.tpm.judging import azure
from appliance.attestation.tpm.judging import judge as tpm_judge
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.attestation.x509.judging import dice
from appliance.codec import cborreader, filekind
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)
from appliance.platforms import NITRO

MAX_BYTES = 1 << 24
_NOT_READ = ("evidence-unknown", "envelope-")  # codes of errors on what may hold evidence that is read


def examine(material: Material, *, at: datetime) -> Record:
    """The outcome for one file, judged at a time. Never raises on account of the file's bytes."""
    kind = recognise.recognise(material.data)
    record = Record(kind or "unknown")
    try:
        if kind is None:
            raise UnsupportedEvidenceError(
                f"not recognised as evidence of any kind{filekind.instead(material.data)}", code="evidence-unknown",
                hint="known: SEV-SNP reports, TDX and TPM quotes, NitroTPM documents, certificates with DICE evidence, "
                "our own, and the envelopes of Trustee, TSM, attestation-rs and dstack")
        if material.nonce is not None and kind not in _WITH_NONCE:
            raise envelope.nonce_unchecked(kind)
        return _EXAMINERS.get(kind, _bare)(record, material, at)
    except AttestationError as error:
        return record.failed(_with_buried(error, material))


def _with_buried(error: AttestationError, material: Material) -> AttestationError:
    """An error on what is not read here, with the places of evidence in it that would be."""
    if not error.code.startswith(_NOT_READ):
        return error
    found = buried.find(material.data)
    if not found:
        return error
    told = "; ".join(f"{each.kind} of {len(each.data)} bytes {each.place}" for each in found)
    cut = "; or: ".join(each.command(material.path) for each in found)
    return type(error)(f"{error.summary}; in it lies: {told}", code=error.code,
                       hint=f"cut it out and examine it: {cut}")


def _bare(record: Record, material: Material, at: datetime) -> Record:
    """Judge the bare report of a platform that needs nothing else."""
    name, half = next(each for each in JUDGES.items() if each[1].recognise(material.data) == record.kind)
    half.verify(record, material.given(material.data, at))
    if name not in platforms.TEES:
        raise UncheckedEvidenceError(f"{record.kind}: {name} protects nothing from its host")
    return record.genuine("signed by the vendor's hardware; whether it is acceptable is for a policy to say")


def _snp(record: Record, material: Material, at: datetime) -> Record:
    report, table, tail = snp_table.split(material.data)
    for name, certificate in table.items():
        material.collateral.add(certificate, f"{name}.der")
    snp_judge.authentic(record, material.given(report, at, tail))
    return record.genuine("signed by AMD hardware; whether it is acceptable is for a policy to say")


def _nitro(record: Record, material: Material, at: datetime) -> Record:
    claims = nitro_judge.authentic(record, material.given(material.data, at))
    if material.nonce is not None:
        if not nitro_judge.answers(claims, material.nonce):
            raise ForgedEvidenceError("NitroTPM document: made for another nonce, or for none", code="nonce-other")
        record.holds("nonce", "the document answers the nonce")
    return record.genuine(f"{NITRO.verdict}: signed by the Nitro hypervisor; whether it is acceptable is for a policy "
                          "to say")


def _azure(record: Record, material: Material, at: datetime) -> Record:
    data, tail = azure.split(material.data)
    report = azure.parse(data)
    try:
        azure_vm.examine_report(record, report, material.path, material.given(report.hardware, at, tail))
    finally:
        record.kind = tpm_judge.AZURE if record.kind == tpm_judge.AZURE else f"{tpm_judge.AZURE} with {record.kind}"
    record.claims["runtime data"] = [
        (str(key.get("kid", "key")), f"{key.get('kty')} {key.get('n', key.get('x', ''))}") for key in report.keys]
    vendor = "AMD" if report.kind == azure.SNP else "Intel"
    return record.genuine(f"signed by {vendor} hardware, and names the keys of the virtual TPM")


def _tdx(record: Record, material: Material, at: datetime) -> Record:
    quote, tail = abi.split(material.data)
    claims = tdx_judge.authentic(record, material.given(quote, at, tail))
    return record.genuine(f"signed by Intel hardware, TCB {claims.tcb.status}; whether it is acceptable is for a "
                          "policy to say")


def _tpm(record: Record, material: Material, at: datetime) -> Record:
    return quotes.examine(record, material.path, material.collateral, key=material.key, nonce=material.nonce,
                          log=material.log, at=at, roots=material.roots)


def _certificate(record: Record, material: Material, at: datetime) -> Record:
    if not dice.holds_evidence(material.data):
        raise UnsupportedEvidenceError(
            f"X.509 certificate: no evidence in it (extension {EVIDENCE_OID})", code="evidence-unknown",
            hint="if it belongs to evidence, examine that, with --collateral for this file's folder")
    if certified.is_ours(material.data):
        return _ratls(record, material, at)
    record.kind = "X.509 certificate with DICE evidence"
    carried = dice.parse(material.data)
    claims = cborreader.decode(carried.claims_buffer)
    record.claims["certificate"] = [
        ("public key, SHA-256", hashlib.sha256(carried.spki).hexdigest()),
        ("claims", ", ".join(str(name) for name in claims) if isinstance(claims, dict) else "none")]
    kind = recognise.recognise(carried.quote)
    record.kind = f"X.509 certificate with DICE evidence: {kind or 'unknown'}"
    if kind == tdx_judge.SGX:
        return _sgx(record, material, at)
    if kind != tdx_judge.KIND:
        raise UnsupportedEvidenceError(f"X.509 certificate: its evidence ({kind or 'unknown'}) is not verified here")
    _tdx(record, replace(material, data=carried.quote), at)
    record.kind = f"X.509 certificate with DICE evidence: {record.kind}"
    dice.check_binding(carried, abi.parse(carried.quote).body.report_data)
    record.holds("certificate", "the quote binds the certificate's key")
    return record


def _ratls(record: Record, material: Material, at: datetime) -> Record:
    record.kind = "RA-TLS certificate of the appliance"
    carried = certified.parse(material.data)
    record.claims["certificate"] = [
        ("public key, SHA-256", carried.spki_sha256.hex()), ("names", ", ".join(carried.names) or "none"),
        ("valid", f"{carried.not_before:%Y-%m-%d %H:%M} to {carried.not_after:%Y-%m-%d %H:%M} UTC")]
    record.holds("certificate", "the certificate's own key signed it, and the statement names this key")
    if not carried.not_before <= at <= carried.not_after:
        raise UncheckedEvidenceError("RA-TLS: the certificate is not in force at that time", code="certificate-expired",
                                  hint="certificates rotate; --at judges by another time")
    _ours(record, replace(material, data=carried.evidence.to_json()), at)
    record.kind = f"RA-TLS certificate with {record.kind}"
    return record


def _sgx(record: Record, material: Material, at: datetime) -> Record:
    raise UnsupportedEvidenceError(
        "Intel SGX quote: SGX enclaves are not a platform of this appliance, so the evidence is refused",
        code="evidence-sgx")


def _ours(record: Record, material: Material, at: datetime) -> Record:
    parsed = reading.parse(material.data)
    claims = verify.verify(parsed, collateral=material.collateral, at=at, roots=material.roots, record=record,
                           log=material.log_at_hand)
    if material.nonce is not None and not hmac.compare_digest(claims.nonce, material.nonce):
        raise ForgedEvidenceError(f"appliance evidence: made for another nonce, {claims.nonce.hex()}",
                                  code="nonce-other")
    record.holds("nonce", f"it answers the nonce {claims.nonce.hex()}"
                 + ("" if material.nonce is not None else ", which the file names: was it yours?"))
    if parsed.platform == evidence.SIMULATED:
        return _no_hardware()
    if isinstance(claims.hardware, TpmClaims):
        return quotes.record_origin(record, claims.hardware, material.key)
    return record.genuine("signed by the vendor's hardware; whether it is acceptable is for a policy to say")


def _tpm_evidence(record: Record, material: Material, at: datetime) -> Record:
    carried = container.parse(material.data)
    folder = {"quote": carried.quote, "key": carried.key}
    record.claims["records"] = [(name, f"SHA-256 {hashlib.sha256(data).hexdigest()}") for name, data in folder.items()]
    raise UncheckedEvidenceError(
        "TPM evidence: it answers report data that stand in the statement around it",
        hint="examine the evidence in JSON that it came in")


def _envelope(record: Record, material: Material, at: datetime) -> Record:
    return envelope.examine(record, material, at, _inner)


def _inner(record: Record, material: Material, at: datetime) -> Record:
    """Judge the report or quote that an envelope carries; an envelope carries no other kind."""
    kind = recognise.recognise(material.data)
    if kind not in _IN_ENVELOPES:
        raise UnsupportedEvidenceError(f"its evidence ({kind or 'unknown'}) is not verified here", hint="known: "
                                       + ", ".join(_IN_ENVELOPES))
    record.kind = kind
    return _IN_ENVELOPES[kind](record, material, at)


def _simulated(record: Record, material: Material, at: datetime) -> Record:
    record.warnings.append(platforms.SIMULATED.notice)
    return _no_hardware()


def _no_hardware() -> Record:
    raise ForgedEvidenceError(
        "simulated: no hardware made this, and anyone can", code="evidence-simulated",
        hint="it serves development; a verifier never calls it genuine")


_EXAMINERS = {
    snp_judge.KIND: _snp, tdx_judge.KIND: _tdx, tpm_judge.AZURE: _azure, tpm_judge.QUOTE: _tpm,
    recognise.CERTIFICATE: _certificate, tdx_judge.SGX: _sgx, recognise.APPLIANCE: _ours,
    simulated_judge.KIND: _simulated, nitro_judge.KIND: _nitro, tpm_judge.EVIDENCE: _tpm_evidence,
    **dict.fromkeys(registry.NAMES, _envelope),
}
_IN_ENVELOPES = {snp_judge.KIND: _snp, nitro_judge.KIND: _nitro,
                 tdx_judge.KIND: _tdx, tpm_judge.AZURE: _azure, tdx_judge.SGX: _sgx}

_WITH_NONCE = frozenset({tpm_judge.QUOTE, nitro_judge.KIND, recognise.APPLIANCE, *registry.NAMES})
