"""How each platform's evidence is judged: one row each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from appliance import platforms
from appliance.attestation.findings import Finding
from appliance.attestation.judge.expected import Expected
from appliance.attestation.simulated import verify as simulated_verify
from appliance.attestation.snp import validate as snp_validate
from appliance.attestation.snp import verify as snp_verify
from appliance.attestation.tdx import validate as tdx_validate
from appliance.attestation.tdx import verify as tdx_verify
from appliance.attestation.tpm import origin as tpm_origin
from appliance.attestation.tpm import validate as tpm_validate
from appliance.attestation.trust import Roots
from appliance.attestation.x509.collateral import Collateral
from appliance.errors import UncheckedEvidenceError
from appliance.policy.digest import host_data


@dataclass(frozen=True)
class AuthenticReport:
    """An authentic report's report data, launch field and claims."""

    report_data: bytes
    host_data: bytes
    hardware: Any = None


@dataclass(frozen=True)
class Given:
    """What a report is verified with. `bound`: what a quote has to answer, 64 bytes."""

    raw: bytes
    bound: bytes
    collateral: Collateral
    at: datetime | None
    roots: Roots

    def time(self, platform: str) -> datetime:
        """The time to judge certificates by. Raises UncheckedEvidenceError without one."""
        if self.at is None:
            raise UncheckedEvidenceError(
                f"platform: {platform} evidence needs a time to be verified at", code="collateral-absent")
        return self.at


@dataclass(frozen=True)
class Judge:
    """A platform's row: `verify` gives authentic claims, `validate` judges them by a policy.

    `launch` is what the launch field must hold for a policy digest of 48 bytes; None where there is no such field.
    `image` names the findings that prove an image, and with its verity root the policy in it.
    """

    verify: Callable[[Given], AuthenticReport]
    validate: Callable[[Any, Expected], tuple[Finding, ...]]
    launch: Callable[[bytes], bytes] | None
    image: tuple[str, ...] = ()


def _snp(given: Given) -> AuthenticReport:
    found = snp_verify.verify(given.raw, given.collateral, at=given.time("sev-snp"), roots=given.roots.amd)
    return AuthenticReport(found.report.report_data, found.report.host_data, found)


def _tdx(given: Given) -> AuthenticReport:
    found = tdx_verify.verify(given.raw, given.collateral, at=given.time("tdx"), root=given.roots.intel,
                              root_der=given.roots.intel_der)
    return AuthenticReport(found.quote.body.report_data, found.quote.body.mr_config_id, found)


def _tpm(given: Given) -> AuthenticReport:
    found = tpm_origin.verify(given.raw, given.bound, given.collateral, at=given.at, roots=given.roots)
    return AuthenticReport(given.bound, b"", found)


def _simulated(given: Given) -> AuthenticReport:
    return AuthenticReport(*simulated_verify.verify(given.raw))


def _by_time(judge: Callable[..., tuple[Finding, ...]], which: str) -> Callable[[Any, Expected], tuple[Finding, ...]]:
    """A validator that judges the age of collateral."""
    def validate(claims: Any, expected: Expected) -> tuple[Finding, ...]:
        if expected.at is None:
            return (Finding("hardware", "fails", "no time to judge the age of collateral by"),)
        return judge(claims, getattr(expected, which), expected.hardware, at=expected.at)

    return validate


JUDGES: Mapping[str, Judge] = {
    platforms.SNP.name: Judge(_snp, _by_time(snp_validate.validate, "snp"), host_data, ("measurement",)),
    platforms.TDX.name: Judge(_tdx, _by_time(tdx_validate.validate, "tdx"), bytes, ("mrtd", "rtmr1", "rtmr2")),
    platforms.TPM.name: Judge(
        _tpm, lambda claims, expected: tpm_validate.validate(claims, expected.tpm, expected.hardware.tpm), None),
    platforms.SIMULATED.name: Judge(_simulated, lambda _claims, _expected: (), host_data, ("launch-policy",)),
}
