"""The appliance's own evidence on hardware platforms, end to end under hierarchies of ours: good, and each attack."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from appliance.attestation import binding, evidence
from appliance.attestation.case import reading
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.evidence import ReportWithCollateral
from appliance.attestation.judge.validate import Expectations, Judgement, validate
from appliance.attestation.judge.verify import verify
from appliance.attestation.snp.judging.validate import SnpExpectations
from appliance.attestation.tdx.judging.validate import TdxExpectations
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.errors import AttestationError, ForgedEvidenceError, UncheckedEvidenceError
from appliance.policy.digest import host_data
from appliance.policy.schema.platform import LineTcb, Requirements, SevSnp
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel

POLICY, SELF_TEST = hashlib.sha384(b"policy").digest(), hashlib.sha384(b"self-test").digest()
NONCE, SPKI = bytes(range(32)), hashlib.sha256(b"spki").digest()
MEASUREMENT = b"\x21" * 48


@dataclass
class SnpProvider:
    """Reports of our own AMD-shaped hierarchy; `fields` go into each report."""

    fake: FakeAmd = field(default_factory=lambda: FakeAmd("Genoa"))
    fields: dict[str, Any] = field(default_factory=dict)
    platform: str = "sev-snp"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A report over this report data."""
        return ReportWithCollateral(self.fake.report(version=5, **{
            "report_data": report_data, "host_data": host_data(POLICY), "measurement": MEASUREMENT, **self.fields}))


@dataclass
class TdxProvider:
    """Quotes of our own Intel-shaped hierarchy."""

    fake: FakeIntel = field(default_factory=FakeIntel)
    platform: str = "tdx"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A quote over this report data."""
        return ReportWithCollateral(self.fake.quote(report_data=report_data, mr_config_id=POLICY, mr_td=MEASUREMENT))


def _evidence(provider: evidence.Provider, nonce: bytes = NONCE, spki: bytes = SPKI) -> evidence.Evidence:
    state = BoundFacts(POLICY, SELF_TEST, binding.Build(version="0.1.0"), tls_spki_sha256=spki)
    return reading.parse(Attestor(provider, state).attest(nonce).to_json())


def _judge(provider: SnpProvider, policy: Requirements | None = None, *, nonce: bytes = NONCE, spki: bytes = SPKI,
           known: Collateral | None = None, **changes: Any) -> Judgement:
    claims = verify(_evidence(provider, nonce, spki), collateral=known or provider.fake.collateral(), at=NOW,
                    roots=Roots(amd=provider.fake.roots))
    facts: dict[str, Any] = {
        "platforms": frozenset({"sev-snp"}), "nonce": NONCE, "policy_sha384": POLICY, "tls_spki_sha256": SPKI,
        "hardware": policy or Requirements(), "at": NOW,
        "own": {"sev-snp": SnpExpectations(measurements=[MEASUREMENT])}, **changes}
    return validate(claims, Expectations(**facts))


def _failed(verdict: Judgement) -> list[str]:
    return [finding.rule for finding in verdict.findings if finding.outcome == "fails"]


def test_snp_evidence_is_genuine_and_meets_the_policy() -> None:
    """Everything holds, and this time hardware (ours) stands behind it."""
    verdict = _judge(SnpProvider())
    assert ([], True) == (_failed(verdict), verdict.genuine)


def test_tdx_evidence_is_genuine_and_meets_the_policy() -> None:
    """The same on TDX, where MRCONFIGID carries the policy digest whole."""
    provider = TdxProvider()
    roots = Roots(intel=provider.fake.pins["root"], intel_der=provider.fake.pins["root_der"])
    claims = verify(_evidence(provider), collateral=provider.fake.collateral(), at=NOW, roots=roots)
    verdict = validate(claims, Expectations(
        frozenset({"tdx"}), NONCE, POLICY, own={"tdx": TdxExpectations(mr_tds=[MEASUREMENT])}, at=NOW))
    assert ([], True) == (_failed(verdict), verdict.genuine)


OLD = FakeAmd("Genoa", tcb={"microcode": 10})
FLOOR = Requirements(sev_snp=SevSnp.model_construct(
    **{**SevSnp().__dict__, "floors": (LineTcb(product="genoa", microcode=11),)}))


@pytest.mark.parametrize(("provider", "changes", "rules"), [
    (SnpProvider(), {"nonce": b"an old nonce, 16"}, ["nonce"]),
    (SnpProvider(), {"spki": hashlib.sha256(b"another key").digest()}, ["tls-key"]),
    (SnpProvider(fake=OLD), {"policy": FLOOR}, ["tcb-reported", "tcb-current", "tcb-committed", "tcb-launch"]),
    (SnpProvider(fields={"policy": 1 << 17 | 1 << 19}), {}, ["debug"]),
    (SnpProvider(fields={"vmpl": 1}), {}, ["vmpl"]),
    (SnpProvider(fields={"measurement": b"\x22" * 48}), {}, ["measurement"]),
    (SnpProvider(fields={"host_data": host_data(SELF_TEST)}), {}, ["launch-policy"]),
    (SnpProvider(), {"policy_sha384": SELF_TEST}, ["policy", "launch-policy"]),
    (SnpProvider(), {"platforms": frozenset({"tdx"})}, ["platform"]),
    (SnpProvider(), {"at": None}, ["hardware"]),
])
def test_each_attack_fails_its_rule(provider: SnpProvider, changes: dict[str, Any], rules: list[str]) -> None:
    """Replay, splice, downgrade, debug, wrong VMPL, wrong image or vCPU count, another deployment's policy."""
    policy = changes.pop("policy", None)
    assert rules == _failed(_judge(provider, policy, **changes))


def test_a_revoked_vcek_is_refused() -> None:
    """A list that the root signed names the chip's certificate."""
    provider = SnpProvider()
    known = provider.fake.collateral()
    known.crls.append(provider.fake.crl(serial=7, of="SEV-Genoa"))
    with pytest.raises(ForgedEvidenceError) as caught:
        _judge(provider, known=known)
    assert "certificate-revoked" == caught.value.code


def test_a_report_does_not_carry_over_to_another_statement() -> None:
    """Valid hardware evidence spliced onto other words is forged."""
    provider = SnpProvider()
    one, other = _evidence(provider), _evidence(provider, b"another nonce 16")
    with pytest.raises(ForgedEvidenceError) as caught:
        verify(one.model_copy(update={"report": other.report}), collateral=provider.fake.collateral(), at=NOW,
               roots=Roots(amd=provider.fake.roots))
    assert "report-data-mismatch" == caught.value.code


def test_evidence_under_our_root_is_nothing_to_a_real_verifier() -> None:
    """Without naming our hierarchy the roots are the vendors'."""
    provider = SnpProvider()
    with pytest.raises(ForgedEvidenceError) as caught:
        verify(_evidence(provider), collateral=provider.fake.collateral(), at=NOW)
    assert "chain-root" == caught.value.code


def test_hardware_evidence_needs_collateral_and_a_time() -> None:
    """Neither is guessed."""
    provider = SnpProvider()
    for known, at in ((None, NOW), (provider.fake.collateral(), None)):
        with pytest.raises(UncheckedEvidenceError):
            verify(_evidence(provider), collateral=known, at=at)


def test_certificates_expire() -> None:
    """The same evidence is refused when its chain is out of date."""
    provider = SnpProvider()
    with pytest.raises(AttestationError, match="valid from"):
        verify(_evidence(provider), collateral=provider.fake.collateral(), at=NOW + timedelta(days=4000),
               roots=Roots(amd=provider.fake.roots))
