"""How each platform's evidence is judged: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from appliance import platforms
from appliance.attestation.findings import Finding
from appliance.attestation.judge import reports
from appliance.attestation.judge.expected import Expected
from appliance.attestation.judge.record import Record
from appliance.attestation.judge.reports import Given
from appliance.attestation.simulated import verify as simulated_verify
from appliance.attestation.snp import validate as snp_validate
from appliance.attestation.snp.verify import SnpClaims
from appliance.attestation.tdx import validate as tdx_validate
from appliance.attestation.tpm import origin as tpm_origin
from appliance.attestation.tpm import validate as tpm_validate
from appliance.policy.digest import host_data


@dataclass(frozen=True)
class AuthenticReport:
    """An authentic report's report data, launch field and claims."""

    report_data: bytes
    host_data: bytes
    hardware: Any = None


@dataclass(frozen=True)
class Judge:
    """A platform's row: `verify` gives authentic claims and records its steps, `validate` judges
    them by a policy.

    `signer` says in words who signed authentic claims. `launch` is what the launch field must hold
    for a policy digest of 48 bytes; None where there is no such field. `image` names the findings
    that prove an image, and with its verity root the policy in it.
    """

    verify: Callable[[Record, Given], AuthenticReport]
    validate: Callable[[Any, Expected], tuple[Finding, ...]]
    signer: Callable[[Any], str]
    launch: Callable[[bytes], bytes] | None
    image: tuple[str, ...] = ()


def _snp(record: Record, given: Given) -> AuthenticReport:
    found = reports.snp(record, given)
    return AuthenticReport(found.report.report_data, found.report.host_data, found)


def _tdx(record: Record, given: Given) -> AuthenticReport:
    found = reports.tdx(record, given)
    return AuthenticReport(found.quote.body.report_data, found.quote.body.mr_config_id, found)


def _tpm(_record: Record, given: Given) -> AuthenticReport:
    found = tpm_origin.verify(given.raw, given.bound, given.collateral, at=given.at, roots=given.roots)
    return AuthenticReport(given.bound, b"", found)


def _simulated(record: Record, given: Given) -> AuthenticReport:
    record.warnings.append(platforms.SIMULATED.notice)
    return AuthenticReport(*simulated_verify.verify(given.raw))


def _by_time(judge: Callable[..., tuple[Finding, ...]], which: str) -> Callable[[Any, Expected], tuple[Finding, ...]]:
    """A validator that judges the age of collateral."""
    def validate(claims: Any, expected: Expected) -> tuple[Finding, ...]:
        if expected.at is None:
            return (Finding("hardware", "fails", "no time to judge the age of collateral by"),)
        return judge(claims, getattr(expected, which), expected.hardware, at=expected.at)

    return validate


def _snp_signer(claims: SnpClaims) -> str:
    return f"AMD SEV-SNP, {claims.product}, {claims.signing_key.upper()}"


JUDGES: Mapping[str, Judge] = {
    platforms.SNP.name: Judge(
        _snp, _by_time(snp_validate.validate, "snp"), _snp_signer, host_data, ("measurement",)),
    platforms.TDX.name: Judge(
        _tdx, _by_time(tdx_validate.validate, "tdx"), lambda claims: f"Intel TDX, FMSPC {claims.tcb.fmspc}", bytes,
        ("mrtd", "rtmr1", "rtmr2")),
    platforms.TPM.name: Judge(
        _tpm, lambda claims, expected: tpm_validate.validate(claims, expected.tpm, expected.hardware.tpm),
        lambda _claims: "by the attestation key in the evidence", None),
    platforms.SIMULATED.name: Judge(
        _simulated, lambda _claims, _expected: (), lambda _claims: "by a throw-away key: PROVES NOTHING", host_data,
        ("launch-policy",)),
}
