"""An Azure confidential VM: the report that names its virtual TPM's key, and the hardware that
binds that report. The hardware's word is an SEV-SNP report inside of it, or a TDX quote beside it.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from appliance.attestation.case.given import Means
from appliance.attestation.case.record import Record
from appliance.attestation.snp.judging import judge as snp_judge
from appliance.attestation.tdx import abi
from appliance.attestation.tdx.judging import judge as tdx_judge
from appliance.attestation.tpm.judging import azure as azure_abi
from appliance.attestation.tpm.judging import files, origin
from appliance.attestation.tpm.judging.azure import HclReport
from appliance.attestation.tpm.judging.verify import AttestationKey
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, UncheckedEvidenceError


@dataclass(frozen=True)
class BoundAk:
    """An Azure report, and the attestation key that its runtime data name; hardware binds it if the
    report holds."""

    report: HclReport
    key: AttestationKey


def bound_key(azure: bytes) -> BoundAk | None:
    """The AK that an Azure report's runtime data name; None if they name none that can be read."""
    try:
        report = azure_abi.parse(azure_abi.split(azure)[0])
        named = report.attestation_key()
        return None if named is None else BoundAk(
            report, AttestationKey(rsa.RSAPublicNumbers(named[1], named[0]).public_key()))
    except (AttestationError, ValueError):
        return None


def check_binding(report: HclReport, quote: bytes) -> None:
    """Raise ForgedEvidenceError unless a TDX quote's report data name the report's runtime data."""
    if not _binds(quote, report):
        raise ForgedEvidenceError("Azure report: the runtime data is not what the TDX quote binds",
                                  code="azure-runtime-data")


def _binds(quote: bytes, report: HclReport) -> bool:
    data = abi.parse(abi.split(quote)[0]).body.report_data
    return hmac.compare_digest(data[:32], hashlib.sha256(report.runtime).digest())


def examine_report(record: Record, report: HclReport, path: Path, given: Means) -> None:
    """Verify the hardware behind a report in the file `path`, and that it binds the runtime data.
    """
    if report.kind == azure_abi.TDX:
        _examine_td_quote(record, report, path, given)
    else:
        claims = snp_judge.authentic(record, given)
        if claims.report.report_data[:32] != hashlib.sha256(report.runtime).digest():
            raise ForgedEvidenceError(
                "Azure report: the runtime data is not what the hardware report binds", code="azure-runtime-data")
        record.holds("runtime-data", "the runtime data is bound in the report")


def bind(record: Record, bound: BoundAk, path: Path | None, collateral: Collateral, at: datetime,
         roots: Roots) -> str:
    """Verify the hardware that binds the key which signed a TPM quote, and return it in words.

    `path` is a file in the folder where a TDX quote may lie. Raises as the hardware's own `verify`.
    """
    if bound.report.kind == azure_abi.TDX:
        record.claims["TPM quote"] = record.claims.pop("claims")
        kind = record.kind
        try:
            _examine_td_quote(record, bound.report, path, Means(b"", b"", collateral, at, roots))
        finally:
            record.kind = kind
        told = "a TDX quote of Intel hardware"
    else:
        hardware = origin.bound_by(bound.report, bound.key, collateral, at, roots)
        told = f"an SEV-SNP report of {hardware.product} hardware"
    record.holds("ak-bound-in-hardware", f"{told} names the AK")
    return told


def _examine_td_quote(record: Record, report: HclReport, path: Path | None, given: Means) -> None:
    quote, tail = abi.split(_td_quote_beside(path, report))
    record.holds("runtime-data", "the TDX quote's report data name the Azure report's runtime data")
    tdx_judge.authentic(record, Means(quote, given.bound, given.collateral, given.at, given.roots, tail))


def _td_quote_beside(path: Path | None, report: HclReport) -> bytes:
    """The TDX quote in a file's folder that names the report's runtime data. Raises
    UncheckedEvidenceError without one: a quote of another guest is a stray file."""
    others = []
    for each in files.beside(path):
        data = each.read_bytes()
        if tdx_judge.JUDGE.recognise(data) != tdx_judge.KIND:
            continue
        try:
            if _binds(data, report):
                return data
        except AttestationError:
            pass
        others.append(each.name)
    found = f"the TDX quote beside it ({', '.join(others[:8])}) is another guest's" if others else (
        "no TDX quote lies beside it")
    raise UncheckedEvidenceError(
        f"Azure report: a TDREPORT, which only the CPU that made it can check, and {found}", code="azure-td-quote",
        hint="put the TDX quote that the guest got for this report into the same folder, under any name")
