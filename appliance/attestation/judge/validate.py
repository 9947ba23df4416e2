"""Policy on claims: whether authentic evidence is the evidence that was asked for.

Every rule is judged and every failure told; a rule without an expectation is reported as not
checked, so that what was proved and what was not can be read side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.attestation.binding import ServeStatement, SessionReleaseStatement, Statement
from appliance.attestation.case import machine
from appliance.attestation.case.expected import Expectations
from appliance.attestation.findings import Finding, same
from appliance.attestation.judge.halves import JUDGES
from appliance.attestation.judge.verify import Claims
from appliance.errors import RejectedEvidenceError
from appliance.platforms import TEES

__all__ = ["Expectations", "Finding", "Judgement", "validate"]


@dataclass(frozen=True)
class Judgement:
    """Findings by rules that every platform has (`common`) and by those of its own (`hardware`).

    `genuine` is false for a simulated report whatever it says, and for a TPM: it may be the host's.
    """

    common: tuple[Finding, ...]
    platform: str
    hardware: tuple[Finding, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings."""
        return (*self.common, *self.hardware)

    @property
    def met(self) -> bool:
        """Whether no rule failed."""
        return all(finding.outcome != "fails" for finding in self.findings)

    @property
    def genuine(self) -> bool:
        """Whether hardware stands behind it: never so for the simulated platform, nor for a TPM
        alone."""
        return self.met and self.platform in TEES

    def require(self) -> None:
        """Raise RejectedEvidenceError naming each failed rule."""
        failed = [f"{finding.rule}: {finding.detail}" for finding in self.findings if finding.outcome == "fails"]
        if failed:
            raise RejectedEvidenceError("; ".join(failed), code=f"evidence-{self._first_failed()}")

    def _first_failed(self) -> str:
        return next(finding.rule for finding in self.findings if finding.outcome == "fails")


def _models(statement: ServeStatement, wanted: Mapping[str, bytes] | None, may_lack: frozenset[str]) -> Finding:
    """Every model must be there but for those that `may_lack`, which come and go, and no other."""
    if wanted is None:
        return Finding("models", "not checked")
    found = {model.name: model.sha256 for model in statement.models}
    expected = {name: digest.hex() for name, digest in wanted.items()}
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    lacking = [name for name in wrong if name not in found and name in may_lack]
    wrong = [name for name in wrong if name not in lacking]
    if not wrong:
        return Finding("models", "holds", f"not loaded: {', '.join(lacking)}" if lacking else "")
    return Finding("models", "fails", "; ".join(
        f"{name}: found {found.get(name, 'nothing')}, expected {expected.get(name, 'nothing')}" for name in wrong))


def _launch_policy(claims: Claims, expected: Expectations, hardware: tuple[Finding, ...]) -> Finding:
    """The launch field must hold the platform's form of the policy digest, or zeros for a policy in
    the image that `hardware` proves."""
    rule, judge = "launch-policy", JUDGES[claims.platform]
    if judge.launch is None:
        return Finding(rule, "not checked", "a TPM has no launch field; its registers tell what was booted")
    if expected.baked and claims.host_data and not any(claims.host_data):
        proved = {each.rule for each in hardware if each.outcome == "holds"}
        if set(judge.image) <= proved:
            return Finding(rule, "holds", "zeros: the policy is in the measured image")
        if judge.firmware in proved:
            return Finding(rule, "not checked", "zeros: the policy is in the image, which the report does not cover")
    return same(rule, claims.host_data, judge.launch(expected.policy_sha384))


def _machine(claims: Claims, expected: Expectations) -> tuple[Finding, ...]:
    """Judge which machine it is, if the policy demands listed ones."""
    if expected.hardware.machines is None:
        return () if claims.hardware is None else (Finding(machine.RULE, "not checked"),)
    names = JUDGES[claims.platform].names(claims.hardware, expected)
    return (machine.judge(names, expected.machines, expected.at),)


def validate(claims: Claims, expected: Expectations) -> Judgement:
    """Judge every rule on the claims of a statement."""
    statement = claims.statement
    hardware = JUDGES[claims.platform].validate(claims.hardware, expected)  # report data and launch field apart
    allowed = claims.platform in expected.platforms
    findings = [
        Finding("platform", "holds" if allowed else "fails",
                f"{claims.platform}, allowed: {', '.join(sorted(expected.platforms)) or 'none'}"),
        same("nonce", claims.nonce, expected.nonce),
        same("policy", bytes.fromhex(statement.policy_sha384), expected.policy_sha384),
        _launch_policy(claims, expected, hardware),
        same("self-test", bytes.fromhex(statement.self_test_sha384), expected.self_test_sha384),
        *_machine(claims, expected),
    ]
    return Judgement((*findings, *_session(claims, expected), *_of_its_kind(statement, expected)), claims.platform,
                     hardware)


def _session(claims: Claims, expected: Expectations) -> tuple[Finding, ...]:
    """Judge whose TLS session evidence is of. Evidence of a key alone may be a relay's."""
    if expected.session is None:
        return ()
    if claims.session is None:
        key = "TLS" if isinstance(claims.statement, ServeStatement) else "release"
        return (Finding("session", "not checked", f"the evidence is of the {key} key, not of this connection: "
                        "whoever once got that key can relay it"),)
    if claims.session != expected.session:
        return (Finding("session", "fails", "the evidence is of another connection than this one: somebody in between "
                        "asked for it there, and passed it on"),)
    return (Finding("session", "holds"),)


def _of_its_kind(statement: Statement, expected: Expectations) -> tuple[Finding, ...]:
    """Judge the fields of one kind of statement; the other kind fails where this one was expected.
    """
    release = expected.release_spki_sha256 is not None
    if isinstance(statement, ServeStatement) and not release:
        spki = None if statement.tls_spki_sha256 is None else bytes.fromhex(statement.tls_spki_sha256)
        return (same("tls-key", spki, expected.tls_spki_sha256), _models(statement, expected.models, expected.may_lack))
    if not isinstance(statement, ServeStatement) and release:
        found = same("release-key", bytes.fromhex(statement.release_spki_sha256), expected.release_spki_sha256)
        if not isinstance(statement, SessionReleaseStatement):
            return (found,)
        return (found, same("broker-key", bytes.fromhex(statement.broker_spki_sha256), expected.broker_spki_sha256))
    wanted = "key-release" if release else "serve"
    return (Finding("statement", "fails", f"{statement.type} where a {wanted} statement was expected"),)
