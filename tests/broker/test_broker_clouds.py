"""What the reference broker asks of machines on Azure and of NitroTPMs, before it releases a key."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.binding import Build
from appliance.attestation.case.measurements import Measurements
from appliance.attestation.collect import collect
from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
from appliance.attestation.collector import Interfaces
from appliance.attestation.evidence import Provider
from appliance.attestation.judge import verify
from appliance.attestation.nitro.collecting.collector import NitroProvider
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.boot.placement import bind
from appliance.keys.providers import FileKey
from appliance.platforms import NAMES
from appliance.policy import load
from examples.broker.rules import DECISIVE, WEAK, DeniedError, Rule
from tests.attestation import test_azure_verdict as azure
from tests.attestation import test_nitro as nitro
from tests.support import fake_nitro
from tests.support.fake_amd import NOW

NONCE, KEY, SESSION = b"\3" * 32, b"\4" * 32, BrokerSession(b"\5" * 32, b"\6" * 32)


def _claims(provider: Provider, policy: Path, roots: Roots, collateral: Collateral | None = None) -> verify.Claims:
    made = ReleaseAttestor(provider, load(policy).digest, bytes(48), Build(version="0.1.0")).attest(
        NONCE, KEY, SESSION)
    return verify.verify(made, collateral=collateral, at=NOW, roots=roots)


def _rule(policy: Path, platform: str, measured: Measurements, *keys: bytes) -> Rule:
    return Rule("a/b/c", FileKey(policy, 1), 1, frozenset({platform}), load(policy), measured, None, None,
                attestation_keys=frozenset(keys))


def _refused(rule: Rule, claims: verify.Claims) -> set[str]:
    try:
        rule.decide(claims, NONCE, KEY, NOW, session=SESSION)
    except DeniedError as denied:
        return set(denied.failed)
    return set()


@pytest.mark.parametrize(("machine", "refused"), [
    ({}, set()), ({"tdx": True}, set()), ({"fields": {"measurement": bytes(48)}}, {"paravisor"}),
    ({"tdx": True, "fields": {"mr_td": bytes(48)}}, {"paravisor"}), ({"fields": {"vmpl": 2}}, {"paravisor", "vmpl"}),
    ({"fields": {"policy": 1 << 17 | 1 << 19}}, {"debug"}), ({"revocation": False}, {"paravisor"})])
def test_an_enrolled_key_below_another_paravisor_gets_nothing(tmp_path: Path, machine: dict[str, Any],
                                                              refused: set[str]) -> None:
    """The policy names the paravisors; without AMD's list, or without a report of hardware, none is known."""
    policy = azure._policy(tmp_path)
    source = azure.AzureMachine(load(policy).digest, **machine)
    roots = Roots(amd=source.amd.roots, intel=source.intel.pins["root"], intel_der=source.intel.pins["root_der"])
    known = Collateral(documents=source.intel.collateral().documents,
                       crls=[source.amd.crl()] if source.revocation else [])
    claims = _claims(source, policy, roots, known)
    assert isinstance(claims.hardware, TpmClaims)
    rule = _rule(policy, "tpm", azure._image(), hashlib.sha256(claims.hardware.key.spki()).digest())
    assert refused == _refused(rule, claims)
    assert {"paravisor"} == _refused(rule, replace(claims, hardware=replace(claims.hardware, bound_by=None)))


def test_a_nitrotpm_is_judged_by_its_registers(tmp_path: Path) -> None:
    """The right image and policy get the key; another image, or measurements without such registers, none."""
    policy, tpm = nitro._policy(tmp_path), fake_nitro.NitroTpm(nitro.NITRO, nitro.BOOTED)
    with fake_nitro.listening(tpm) as device:
        provider = collect.provider(("aws-nitrotpm",), bytes(32), Interfaces(nitro=device))
        assert isinstance(provider, NitroProvider)
        early = _claims(provider, policy, nitro.NITRO.roots)  # before the boot measures the policy
        bind.bind(load(policy), provider)
        claims = _claims(provider, policy, nitro.NITRO.roots)
        tpm.banks[0x000C][11] = bytes(48)
        other = _claims(provider, policy, nitro.NITRO.roots)
        provider.close()
    rule = _rule(policy, "aws-nitrotpm", nitro.KNOWN)
    assert set() == _refused(rule, claims)
    assert {"pcr15", "measurement"} == _refused(rule, early)
    assert {"pcr11", "measurement"} == _refused(rule, other)
    assert {"pcr15", "measurement"} == _refused(replace(rule, measured=azure._image()), claims)


def test_every_platform_has_what_decides() -> None:
    """And each that its host can read must be spelt out."""
    assert set(NAMES) == set(DECISIVE)
    assert set(NAMES) - {"sev-snp", "tdx"} == set(WEAK)
