"""Look into an envelope: judge the evidence in it as if it came alone, with the certificates, logs
and quote pieces that travel with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from appliance.attestation.case.record import Record
from appliance.attestation.envelopes import registry
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.judge import azure_vm, quotes
from appliance.attestation.judge.material import Material
from appliance.attestation.snp.judging import abi as snp_abi
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.tdx import abi as tdx_abi
from appliance.attestation.tpm.judging import files
from appliance.attestation.tpm.judging.files import TpmFiles
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, UncheckedEvidenceError

Judge = Callable[[Record, Material, datetime], Record]


def examine(record: Record, material: Material, at: datetime, judge: Judge) -> Record:
    """Take an envelope apart and judge what it carries; `judge` judges a report or quote alone."""
    name = record.kind
    carried, tail = _opened(material.data)
    if carried.told:
        record.claims["envelope, which nothing signs"] = list(carried.told)
    collateral = _with_certificates(record, material.collateral, carried)
    record.followed(tail)
    for member in carried.unjudged:
        record.warnings.append(f"NOT JUDGED: {member}. The envelope carries it, and nothing here verifies it.")
    if material.nonce is not None and carried.tpm is None:
        raise nonce_unchecked(name)
    inner = replace(material, data=carried.evidence, collateral=collateral, events=carried.events,
                    log=carried.log if material.log is None else material.log)
    try:
        if carried.tpm is not None:
            return _with_quote(record, inner, carried.tpm, at, judge)
        return judge(record, inner, at)
    finally:
        record.kind = name if record.kind == name else f"{name}: {record.kind}"
        _compare_report_data(record, carried)


def _opened(data: bytes) -> tuple[EnvelopeParts, bytes]:
    """Judge the evidence in the envelope. Nobody signs an envelope, so one that is out of form
    forges nothing."""
    try:
        return registry.read(data)
    except MalformedEvidenceError as error:
        raise UncheckedEvidenceError(error.summary, code="envelope-malformed", hint="nothing signs an envelope: take "
                                     "the report or quote out of it and examine that") from None


def nonce_unchecked(kind: str) -> UncheckedEvidenceError:
    """The error for a nonce where it is not known what to compare it with."""
    return UncheckedEvidenceError(
        f"{kind}: a nonce was given, and what it would be compared with is not known", code="nonce-unchecked",
        hint="without --nonce, compare the report data yourself; of TPM quotes and of the appliance's evidence it is "
        "checked")


def _with_certificates(record: Record, collateral: Collateral, carried: EnvelopeParts) -> Collateral:
    """The collateral at hand and the envelope's certificates; one that cannot be read is named."""
    both = collateral.with_items((), "")
    for number, certificate in enumerate(carried.certificates, start=1):
        before = len(both.problems)
        if not both.add(certificate, "envelope") or len(both.problems) > before:
            del both.problems[before:]
            record.warnings.append(f"CERTIFICATE {number} of the envelope cannot be read, and is passed over.")
    return both


def _with_quote(record: Record, material: Material, tpm: TpmFiles, at: datetime, judge: Judge) -> Record:
    """Judge a TPM quote that travels in pieces, and the hardware that binds its key, if the
    envelope has any."""
    quote = replace(tpm, nonce=material.nonce)
    if tpm.azure is None:
        if material.key is not None:
            quote = replace(quote, key=quotes.read_key(material.key), key_name=material.key.name)
        elif tpm.key is None:
            quote = replace(quote, azure=files.azure_beside(material.path))
        return quotes.judge(record, replace(quote, log=material.log), material.collateral,
                            vouched=material.key is not None, at=at, roots=material.roots, path=material.path)
    bound = quotes.by_bound_key(record, quote, tpm.azure)
    if material.key is not None and quotes.named_key(material.key).spki() != bound.key.spki():
        raise ForgedEvidenceError("TPM quote: another key than the one that you named signed it", code="tpm-signature")
    if material.data is not tpm.azure:
        azure_vm.check_binding(bound.report, material.data)
        record.holds("runtime-data", "the TDX quote's report data name the Azure report's runtime data")
    judged = judge(record, replace(material, nonce=None, key=None), at)
    record.holds("ak-bound-in-hardware", "the hardware's report data bind the key that signed the TPM quote")
    return judged.genuine(f"{judged.reason}; the TPM quote is by the virtual TPM that this hardware names")


def _compare_report_data(record: Record, carried: EnvelopeParts) -> None:
    """Warn where an envelope states other report data than the evidence has."""
    if carried.report_data is None:
        return
    try:
        said = (tdx_abi.parse(tdx_abi.split(carried.evidence)[0]).body.report_data
                if carried.evidence[:1] in (b"\x04", b"\x05") and carried.evidence[4:5] == b"\x81"
                else snp_abi.parse(carried.evidence[:REPORT_BYTES]).report_data)
    except AttestationError:
        return
    if said != carried.report_data.ljust(len(said), b"\0"):
        record.warnings.append("REPORT DATA: the envelope states others than the evidence has; only the latter are "
                               "signed.")
