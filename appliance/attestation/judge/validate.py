"""Policy on claims: whether authentic evidence is the evidence that was asked for.

Every rule is judged and every failure told; a rule without an expectation is reported as not checked, so that
what was proved and what was not can be read side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from appliance.attestation.binding import KeyReleaseStatement, ServeStatement, Statement
from appliance.attestation.evidence import SIMULATED
from appliance.attestation.findings import Finding, same
from appliance.attestation.judge.verify import TPM, Claims
from appliance.attestation.snp import validate as snp_validate
from appliance.attestation.snp.validate import SnpExpected
from appliance.attestation.snp.verify import SnpClaims
from appliance.attestation.tdx import validate as tdx_validate
from appliance.attestation.tdx.validate import TdxExpected
from appliance.attestation.tdx.verify import TdxClaims
from appliance.attestation.tpm import validate as tpm_validate
from appliance.attestation.tpm.validate import TpmExpected
from appliance.attestation.tpm.verify import TpmClaims
from appliance.errors import RejectedEvidenceError
from appliance.policy.digest import host_data
from appliance.policy.schema.platform import Evidence

__all__ = ["Expected", "Finding", "Verdict", "validate"]


@dataclass(frozen=True)
class Expected:
    """What the verifier wants to see. `platforms` and `policy_sha384` are always checked, `nonce` unless it is None.

    `models` maps each policy name to its plaintext SHA-256 and must match the loaded set exactly; None is not
    checked. `tls_spki_sha256` is the key of the connection at hand (32 bytes); `self_test_sha384` 48 bytes.
    `release_spki_sha256` (32 bytes) asks for a `key-release/v1` statement about that key in place of a `serve/v1` one.
    `hardware` is the policy's `tee.evidence`, `snp`, `tdx` and `tpm` the expected measurements, `at` the time to judge
    the age of collateral by; they matter for hardware platforms only. `baked`: the images that `snp` and `tdx` name
    have the policy in them, so that a launch field of zeros, which names no other, will do where the image is proved.
    """

    platforms: frozenset[str]
    nonce: bytes | None
    policy_sha384: bytes
    models: Mapping[str, bytes] | None = None
    tls_spki_sha256: bytes | None = None
    self_test_sha384: bytes | None = None
    release_spki_sha256: bytes | None = None
    hardware: Evidence = field(default_factory=Evidence)
    snp: SnpExpected = field(default_factory=SnpExpected)
    tdx: TdxExpected = field(default_factory=TdxExpected)
    tpm: TpmExpected = field(default_factory=TpmExpected)
    at: datetime | None = None
    baked: bool = False


@dataclass(frozen=True)
class Verdict:
    """All findings. `genuine` is false for a simulated report whatever it says, and for a TPM: it may be the host's."""

    findings: tuple[Finding, ...]
    platform: str

    @property
    def met(self) -> bool:
        """Whether no rule failed."""
        return all(finding.outcome != "fails" for finding in self.findings)

    @property
    def genuine(self) -> bool:
        """Whether hardware stands behind it: never so for the simulated platform, nor for a TPM alone."""
        return self.met and self.platform not in (SIMULATED, TPM)

    def require(self) -> None:
        """Raise RejectedEvidenceError naming each failed rule."""
        failed = [f"{finding.rule}: {finding.detail}" for finding in self.findings if finding.outcome == "fails"]
        if failed:
            raise RejectedEvidenceError("; ".join(failed), code=f"evidence-{self._first_failed()}")

    def _first_failed(self) -> str:
        return next(finding.rule for finding in self.findings if finding.outcome == "fails")


def _models(statement: ServeStatement, wanted: Mapping[str, bytes] | None) -> Finding:
    if wanted is None:
        return Finding("models", "not checked")
    found = {model.name: model.sha256 for model in statement.models}
    expected = {name: digest.hex() for name, digest in wanted.items()}
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if not wrong:
        return Finding("models", "holds")
    return Finding("models", "fails", "; ".join(
        f"{name}: found {found.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}" for name in wrong))


# The findings that prove an image, with its verity root and so the policy in it, on the platforms with a launch field.
_IMAGE: Mapping[type, tuple[str, ...]] = {SnpClaims: ("measurement",), TdxClaims: ("mrtd", "rtmr1", "rtmr2")}


def _launch_policy(claims: Claims, expected: Expected, hardware: tuple[Finding, ...]) -> Finding:
    """What the launch field must hold: TDX takes the policy digest whole, the others what stands for it; or zeros, for
    a policy in the image that `hardware` proves."""
    rule, digest = "launch-policy", expected.policy_sha384
    if isinstance(claims.hardware, TpmClaims):
        return Finding(rule, "not checked", "a TPM has no launch field; its registers tell what was booted")
    if expected.baked and claims.host_data and not any(claims.host_data):
        proved = {each.rule for each in hardware if each.outcome == "holds"}
        if set(_IMAGE.get(type(claims.hardware), (rule,))) <= proved:
            return Finding(rule, "holds", "zeros: the policy is in the measured image")
    return same(rule, claims.host_data, digest if isinstance(claims.hardware, TdxClaims) else host_data(digest))


def _hardware(claims: Claims, expected: Expected) -> tuple[Finding, ...]:
    """The vendor's claims by the policy's rules; report data and launch field were compared already."""
    hardware = claims.hardware
    if hardware is None:
        return ()
    if isinstance(hardware, TpmClaims):
        return tpm_validate.validate(hardware, expected.tpm, expected.hardware.tpm)
    if expected.at is None:
        return (Finding("hardware", "fails", "no time to judge the age of collateral by"),)
    if isinstance(hardware, SnpClaims):
        return snp_validate.validate(hardware, expected.snp, expected.hardware, at=expected.at)
    return tdx_validate.validate(hardware, expected.tdx, expected.hardware, at=expected.at)


def validate(claims: Claims, expected: Expected) -> Verdict:
    """Judge every rule on the claims of a statement."""
    statement, hardware = claims.statement, _hardware(claims, expected)
    allowed = claims.platform in expected.platforms
    findings = [
        Finding("platform", "holds" if allowed else "fails",
                f"{claims.platform}, allowed: {', '.join(sorted(expected.platforms)) or 'none'}"),
        same("nonce", claims.nonce, expected.nonce),
        same("policy", bytes.fromhex(statement.policy_sha384), expected.policy_sha384),
        _launch_policy(claims, expected, hardware),
        same("self-test", bytes.fromhex(statement.self_test_sha384), expected.self_test_sha384),
    ]
    return Verdict((*findings, *_of_its_kind(statement, expected), *hardware), claims.platform)


def _of_its_kind(statement: Statement, expected: Expected) -> tuple[Finding, ...]:
    """What only one kind of statement says; the other kind where this one was expected fails."""
    release = expected.release_spki_sha256 is not None
    if isinstance(statement, ServeStatement) and not release:
        spki = None if statement.tls_spki_sha256 is None else bytes.fromhex(statement.tls_spki_sha256)
        return (same("tls-key", spki, expected.tls_spki_sha256), _models(statement, expected.models))
    if isinstance(statement, KeyReleaseStatement) and release:
        return (same("release-key", bytes.fromhex(statement.release_spki_sha256), expected.release_spki_sha256),)
    wanted = "key-release" if release else "serve"
    return (Finding("statement", "fails", f"{statement.type} where a {wanted} statement was expected"),)
