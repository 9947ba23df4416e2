"""Whose TPM it is: a quote proves what it says only as far as somebody vouches for the key, for clients and brokers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.measured.first import PREDICTED_PCRS
from appliance.attestation.tpm import container
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.boot.placement import bind as placement
from appliance.client import Verdict, Verifier
from appliance.client.reference import KnownImage, Reference, enrolled
from appliance.client.verdict import EXIT_CODES, HOST_TRUSTED, NOT_MET, UNCHECKED, VERIFIED
from appliance.errors import MalformedEvidenceError
from appliance.policy import load
from examples.broker.config import read
from examples.broker.rules import ConfigError, DeniedError, Rule
from tests.attestation.test_collect_cloud import Azure
from tests.support import fake_appliance as fake
from tests.support import swtpm
from tests.support.brokers import Authority
from tests.support.fake_amd import NOW
from tests.support.fake_appliance import FakeAppliance

EVIDENCE = "smt = true\n sev_snp {\n min_tcb { snp = 1 }\n }"
ZERO = "00" * 32


class Machine:
    """A TPM, and an appliance that quotes by it, under a policy that it measured into PCR 15."""

    def __init__(self, folder: Path, socket: Path, *platforms: str, evidence: str = EVIDENCE, schema: int = 1) -> None:
        self.policy = fake.write_policy(folder, *platforms, evidence=evidence)
        self.policy.write_text(self.policy.read_text().replace("schema = 1", f"schema = {schema}"))
        tpm = Tpm(socket)
        placement.measure(load(self.policy), tpm)
        self.pcrs = tpm_device.read_pcrs(tpm)
        tpm.close()
        self.provider = TpmProvider(socket, folder / "none")
        key = container.parse(self.provider.report(bytes(64))).key
        self.key, self.key_file = hashlib.sha256(tpm_verify.load_key(key).spki()).digest(), folder / "ak.pub"
        self.key_file.write_bytes(key)
        self.server = FakeAppliance(fake.attestor(self.provider, load(self.policy)), folder)

    def measured(self, *, launch: bytes = fake.LAUNCH, **pcrs: str) -> Measurements:
        """Measurements of what this machine started; `pcr4="…"` says that it was something else."""
        values = {str(number): [pcrs.get(f"pcr{number}", self.pcrs[number].hex())] for number in PREDICTED_PCRS}
        golden = [{"machine": "this", "firmware_sha256": ZERO, "pcrs": {
            str(number): self.pcrs[number].hex() for number in (0, 7)}}]
        found = fake.measured(launch=(launch,), policy=load(self.policy).digest.hex()).model_dump(mode="json")
        return Measurements.model_validate({**found, "tpm": {
            "bank": "sha256", "pcrs": values, "golden": golden, "events": []}})

    def verify(self, measured: Measurements | None = None, policy: Path | None = None, **options: object) -> Verdict:
        """A client's verdict."""
        return self.verifier(measured, policy, **options).verify(self.server.url)

    def verifier(self, measured: Measurements | None = None, policy: Path | None = None,
                 **options: object) -> Verifier:
        """A client's verifier."""
        reference = Reference(load(policy or self.policy), KnownImage(measured or self.measured(), b"\1" * 32))
        return Verifier(replace(reference, **options), clock=lambda: NOW)  # type: ignore[arg-type]

    def close(self) -> None:
        """End it."""
        self.server.stop()
        self.provider.close()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose key nobody certified."""
    with swtpm.running() as socket:
        found = Machine(tmp_path_factory.mktemp("tpm"), socket, "tpm")
        try:
            yield found
        finally:
            found.close()


def test_a_key_that_nobody_vouches_for_gives_no_verdict(machine: Machine) -> None:
    """Its fingerprint is told, so that it can be enrolled."""
    verdict = machine.verify()
    assert (UNCHECKED, "unchecked-ak-origin") == (verdict.status, verdict.code)
    assert f"sha256:{machine.key.hex()}" in verdict.reason


def test_an_enrolled_key_gives_host_trusted_and_no_more(machine: Machine) -> None:
    """By fingerprint or by file; the verdict and its exit code are never those of "verified"."""
    for named in (f"sha256:{machine.key.hex()}", str(machine.key_file)):
        verdict = machine.verify(attestation_keys=frozenset({enrolled(named)}))
        assert (HOST_TRUSTED, 4, False) == (verdict.status, verdict.exit_code, verdict.verified)
        assert "THE HOST IS TRUSTED" in str(verdict)
    assert EXIT_CODES[HOST_TRUSTED] != EXIT_CODES[VERIFIED]
    for named in ("sha256:", "sha256:zz", f"sha256:{'00' * 31}"):
        with pytest.raises(MalformedEvidenceError):
            enrolled(named)


def test_what_a_client_refuses_by_name(machine: Machine, tmp_path: Path) -> None:
    """Another TPM's key, another image, another machine's firmware, another policy in PCR 15."""
    mine = frozenset({machine.key})
    golden = machine.measured().model_dump(mode="json")
    golden["tpm"]["golden"][0]["pcrs"]["7"] = "11" * 32
    other = fake.write_policy(tmp_path, "tpm", evidence="smt = true")
    for code, verdict in (
            ("evidence-ak-origin", machine.verify(attestation_keys=frozenset({bytes(32)}))),
            ("evidence-pcr4", machine.verify(machine.measured(pcr4="11" * 32), attestation_keys=mine)),
            ("evidence-golden-pcrs", machine.verify(Measurements.model_validate(golden), attestation_keys=mine)),
            ("evidence-policy", machine.verify(policy=other, attestation_keys=mine))):
        assert (NOT_MET, code) == (verdict.status, verdict.code), verdict
    assert "pcr15" in verdict.reason
    assert any(each.rule == "pcr15" and each.detail.startswith("found ") for each in verdict.findings)


def broker_rule(machine: Machine, folder: Path, more: str) -> Rule:
    """The rule of a broker that knows this machine's image."""
    Authority().write(folder)
    (folder / "model.key").touch(0o600)
    (folder / "model.key").write_text("07" * 32)
    (folder / "measurements.json").write_bytes(machine.measured().to_json())
    (folder / "broker.toml").write_text(
        'certificate = "server.pem"\nprivate_key = "server.key"\n[[release]]\nresource = "a/b/c"\nversion = 1\n'
        f'key_file = "model.key"\npolicy = "{machine.policy}"\nplatforms = ["tpm"]\nhost_trusted = true\n'
        f'measurements = "measurements.json"\n{more}\n')
    [rule] = read(folder / "broker.toml").rules
    return rule


@pytest.mark.parametrize(("more", "reason"), [
    ("attestation_keys = ['sha256:{key}']", ""), ("", "ak-origin: not checked"),
    ("attestation_keys = ['sha256:" + "00" * 32 + "']", "ak-origin: key sha256:{key}, not among those enrolled")])
def test_a_broker_gives_no_key_to_anybodys_tpm(machine: Machine, tmp_path: Path, more: str, reason: str) -> None:
    """PCR values are public: a quote by a key that nobody enrolled or certified could be made without a TPM."""
    from appliance.attestation.binding import Build
    from appliance.attestation.collect.release import BrokerSession, ReleaseAttestor
    from appliance.attestation.judge import verify

    rule = broker_rule(machine, tmp_path, more.format(key=machine.key.hex()))
    nonce, spki, session = b"\3" * 32, b"\4" * 32, BrokerSession(b"\5" * 32, b"\6" * 32)
    made = ReleaseAttestor(machine.provider, load(machine.policy).digest, bytes(48), Build(version="0.1.0")).attest(
        nonce, spki, session)
    claims = verify.verify(made, at=NOW)
    if not reason:
        rule.decide(claims, nonce, spki, NOW, session=session)
        return
    with pytest.raises(DeniedError) as denied:
        rule.decide(claims, nonce, spki, NOW, session=session)
    assert reason.format(key=machine.key.hex()) in str(denied.value)


@pytest.mark.parametrize("wrong", ["7", "'sha256:00'", "'00'"])
def test_a_broker_refuses_malformed_fingerprints(machine: Machine, tmp_path: Path, wrong: str) -> None:
    """They are found when the broker starts."""
    with pytest.raises(ConfigError):
        broker_rule(machine, tmp_path, f"attestation_keys = [{wrong}]")


def test_any_guest_can_name_any_key(tmp_path: Path) -> None:
    """Whoever has SEV-SNP hardware can start a guest of their own and have its report name a key of their own: that
    vouches for nothing, and does no harm beside a cloud's certificate."""
    with swtpm.running() as socket:
        cloud = Azure(socket)
        machine = Machine(tmp_path, socket, "tpm")
        launched = cloud.amd.report()[0x90:0xC0]  # MEASUREMENT
        options = {"collateral": cloud.collateral(), "need_revocation": False}
        try:
            certified = machine.verify(machine.measured(launch=launched), roots=cloud.roots, **options)
            nobody = machine.verify(roots=replace(cloud.roots, tpm={}), **options)
        finally:
            machine.close()
    assert HOST_TRUSTED == certified.status, certified
    assert "names it that is not the policy's" in str(certified)
    assert (UNCHECKED, "unchecked-ak-origin") == (nobody.status, nobody.code)
