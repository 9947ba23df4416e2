"""`appliance verify`: every rule has a case that holds and one that is refused by its name, over real connections."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case import reading
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import Verdict, Verifier, ear, rules, target
from appliance.client.rules import ATTACKS, MEANINGS
from appliance.client.verdict import (
    AWS_TRUSTED,
    EXIT_CODES,
    FIRMWARE_PROVED,
    HOST_TRUSTED,
    INVALID,
    KEY_BOUND,
    NOT_MET,
    SIMULATED,
    UNCHECKED,
    VERIFIED,
)
from appliance.errors import ForgedEvidenceError, PolicyError, RejectedEvidenceError, UncheckedEvidenceError
from appliance.policy import load
from appliance.policy.bulletins import advice
from appliance.policy.digest import host_data
from appliance.policy.enforcement import places
from appliance.policy.explaining.checking import check_file
from appliance.policy.language.redacted import without_tenants
from appliance.signed.approvals import Approvals
from appliance.signed.desk import approve
from tests.signed.test_approvals import KEYS, block
from tests.support import extent, fake_amd
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_intel import FakeIntel
from tests.support.require import absent

AMD = FakeAmd("Genoa")
DEBUG, SMT = 1 << 19, 1 << 16
GUEST = 1 << 17


def _crl(amd: FakeAmd = AMD, **options: Any) -> Collateral:
    return Collateral(crls=[amd.crl(**options)])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeAppliance, Path]]:
    """An appliance on SEV-SNP, with nothing wrong."""
    with fake.snp(tmp_path_factory.mktemp("snp"), AMD) as found:
        yield found


@contextlib.contextmanager
def _altered(running: tuple[FakeAppliance, Path], **fields: Any) -> Iterator[None]:
    """Reports say something else for a while."""
    source = running[0].attestor._provider
    assert isinstance(source, fake.SnpSource)
    source.fields = fields
    try:
        yield
    finally:
        source.fields = {}


def _verifier(running: tuple[FakeAppliance, Path], **options: Any) -> Verifier:
    return fake.verifier(running[1], **{"roots": Roots(amd=AMD.roots), "collateral": _crl(), **options})


def _outcomes(verdict: Verdict) -> dict[str, str]:
    return {each.rule: each.outcome for each in verdict.findings}


def test_an_appliance_is_verified(running: tuple[FakeAppliance, Path]) -> None:
    """Everything that must hold, holds, and is said line by line; what was not checked is said as well."""
    verdict = _verifier(running).verify(running[0].url)
    assert (VERIFIED, 0, True, "") == (verdict.status, verdict.exit_code, verdict.verified, verdict.code)
    outcomes = _outcomes(verdict)
    assert {"holds"} == {outcomes[rule] for rule in (
        "signature", "statement", "certificate", "nonce", "tls-key", "platform", "policy", "launch-policy", "models",
        "measurement", "measurements", "debug", "vmpl", "tcb-reported", "revocation")}
    assert {"not checked"} == {outcomes[rule] for rule in ("self-test", "approvals")}
    text = str(verdict)
    proved, unproved = text.split("not proved:")
    assert "VERIFIED" in text.splitlines()[0]
    assert "tls-key               the TLS key of this connection is the one in the evidence" in proved
    assert "self-test" in unproved
    assert "TEST ROOTS" in text
    verdict.require()
    json.dumps(verdict.as_json())


def test_evidence_of_a_key_is_verified_with_a_warning(running: tuple[FakeAppliance, Path]) -> None:
    """Under schema 1 a verdict stays what it was. Its first lines say that whoever got the key can relay this, and the
    rule stands under what is not proved."""
    assert 1 == load(running[1]).policy.appliance.schema_version
    before, running[0].evidence = running[0].evidence, lambda nonce: running[0].attestor.attest(nonce).to_json()
    try:
        verdict = _verifier(running).verify(running[0].url)
    finally:
        running[0].evidence = before
    assert (VERIFIED, 0, "not checked") == (verdict.status, verdict.exit_code, _outcomes(verdict)["session"])
    first, unproved = str(verdict).split("\n\nproved:")[0], str(verdict).split("not proved:")[1]
    assert ("WARNING: the evidence is of the TLS key, not of this connection: whoever once got that key can relay "
            "it") in first
    assert "session" in unproved


REFUSALS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"policy": GUEST | DEBUG}, NOT_MET, "evidence-debug", "debug: debug: the host may decrypt the guest"),
    ({"policy": GUEST | SMT}, NOT_MET, "evidence-smt", "SMT is allowed"),
    ({"vmpl": 1}, NOT_MET, "evidence-vmpl", "wrong VMPL: vmpl: asked for by VMPL 1, at most VMPL 0"),
    ({"vmpl": 0xFFFFFFFF}, NOT_MET, "evidence-vmpl", "asked for by the host"),
    ({"measurement": b"\x12" * 48}, NOT_MET, "evidence-measurement", "wrong image or vCPU count: measurement: found"),
    ({"host_data": bytes(32)}, NOT_MET, "evidence-launch-policy", "another deployment: launch-policy"),
    ({"svn": 0, "current": bytes(8)}, NOT_MET, "evidence-tcb-current", "downgrade: tcb-current: snp 0 is below 10"),
    ({"launch": bytes(8)}, NOT_MET, "evidence-tcb-launch", "downgrade: tcb-launch"),
    ({"committed": bytes(8)}, NOT_MET, "evidence-tcb-committed", "downgrade: tcb-committed"),
    ({"reported": bytes(8)}, INVALID, "snp-tcb-mismatch", "REPORTED_TCB"),
    ({"chip_id": b"\x99" * 64}, INVALID, "snp-chip-id", "CHIP_ID"),
    ({"flags": 7 << 2}, INVALID, "report-unsigned", "no key signed it"),
    ({"version": 6}, UNCHECKED, "snp-version", "version 6 is not known"),
]


@pytest.mark.parametrize(("fields", "status", "code", "says"), REFUSALS, ids=[each[2] for each in REFUSALS])
def test_each_lie_of_a_report_is_refused_by_its_name(running: tuple[FakeAppliance, Path], fields: dict[str, Any],
                                                     status: str, code: str, says: str) -> None:
    """Signed by the right hierarchy, and still not what was asked for."""
    with _altered(running, **fields):
        verdict = _verifier(running).verify(running[0].url)
    assert (status, code) == (verdict.status, verdict.code)
    assert says in verdict.reason


def test_a_policy_in_the_image_needs_no_launch_field(running: tuple[FakeAppliance, Path]) -> None:
    """HOST_DATA of zeros is what placement boots for a baked policy: it will do where the measured image has this
    policy in it, and nowhere else. A field that names another policy never will."""
    baked, other = load(running[1]).digest.hex(), "77" * 48
    for fields, policy, launch, wanted in (
            ({"host_data": bytes(32)}, baked, fake.LAUNCH, (VERIFIED, "")),
            ({"host_data": bytes(32)}, None, fake.LAUNCH, (NOT_MET, "evidence-launch-policy")),
            ({"host_data": bytes(32)}, other, fake.LAUNCH, (NOT_MET, "evidence-launch-policy")),
            ({"host_data": bytes(32)}, baked, b"\x55" * 48, (NOT_MET, "evidence-launch-policy")),
            ({"host_data": bytes(31) + b"\1"}, baked, fake.LAUNCH, (NOT_MET, "evidence-launch-policy")),
            ({}, baked, fake.LAUNCH, (VERIFIED, ""))):
        with _altered(running, **fields):
            verdict = _verifier(running, known=fake.measured(policy=policy, launch=(launch,))).verify(running[0].url)
        assert wanted == (verdict.status, verdict.code), (fields, policy, launch)


def test_an_older_firmware_is_a_downgrade(tmp_path: Path) -> None:
    """A chip whose key was derived for an old TCB: everything is signed, and the floor of the policy is not met."""
    old = FakeAmd("Genoa", tcb={"snp": 9})
    with fake.snp(tmp_path, old) as running:
        verdict = _verifier(running, roots=Roots(amd=old.roots), collateral=_crl(old)).verify(running[0].url)
    assert (NOT_MET, "evidence-tcb-reported") == (verdict.status, verdict.code)
    assert "downgrade: tcb-reported: snp 9 is below 10" in verdict.reason


def test_a_replayed_answer_is_refused(running: tuple[FakeAppliance, Path]) -> None:
    """Evidence that answered somebody else's nonce, however genuine, is old."""
    server = running[0]
    old = server.attestor.attest(bytes(32)).to_json()
    before, server.evidence = server.evidence, lambda nonce: old
    try:
        verdict = _verifier(running).verify(server.url)
    finally:
        server.evidence = before
    assert (NOT_MET, "evidence-nonce") == (verdict.status, verdict.code)
    assert verdict.reason.startswith("replay: nonce: found 00000000")


def test_an_auditors_nonce_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The case as it was tried: `verify URL --nonce HEX --save FILE`. The saved evidence answers that nonce, over TLS
    and without, and an appliance that answers another one is refused."""
    nonce, saved = "5a" * 32, tmp_path / "evidence.json"
    for tls in (True, False):
        folder = tmp_path / str(tls)
        folder.mkdir()
        with fake.simulated(folder, tls=tls) as (server, path):
            words = ["verify", server.url, "--policy", str(path), "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}", "--save",
                     str(saved), "--nonce", nonce]
            assert 5 == main(words)
            assert nonce == json.loads(saved.read_text())["proof"]["nonce"]
            capsys.readouterr()
            assert 5 == main(["verify", str(saved), "--policy", str(path), "--nonce", nonce])
            assert 3 == main(["verify", str(saved), "--policy", str(path), "--nonce", "5b" * 32])
            assert "replay: nonce" in capsys.readouterr().out
            old = server.attestor.attest(bytes(32)).to_json()
            server.evidence = lambda _nonce, old=old: old  # type: ignore[misc]
            assert 3 == main([*words, "--json"])
            assert "evidence-nonce" == json.loads(capsys.readouterr().out)["code"]
            with pytest.raises(SystemExit):
                main([*words[:-1], "abc"])


def test_genuine_evidence_behind_another_key_is_a_splice(running: tuple[FakeAppliance, Path], tmp_path: Path) -> None:
    """A man in the middle with a key of his own passes on an appliance's answers: refused, whatever else holds."""
    middle = FakeAppliance(running[0].attestor, tmp_path, tls=True)  # its key was bound; the appliance's own is now not
    try:
        running[0].rotate()
        verdict = _verifier(running).verify(middle.url)
    finally:
        middle.stop()
    assert (NOT_MET, "evidence-tls-key") == (verdict.status, verdict.code)
    assert verdict.reason.startswith("splice: tls-key: found ")
    assert VERIFIED == _verifier(running).verify(running[0].url).status


def test_another_deployments_policy_is_refused(running: tuple[FakeAppliance, Path], tmp_path: Path) -> None:
    """A verifier that holds a policy with one number changed sees another deployment."""
    other = fake.write_policy(tmp_path, "sev-snp", evidence="sev_snp {\n min_tcb { snp = 11 }\n }")
    verdict = fake.verifier(other, roots=Roots(amd=AMD.roots), collateral=_crl()).verify(running[0].url)
    assert (NOT_MET, "evidence-policy") == (verdict.status, verdict.code)
    assert "fails" == _outcomes(verdict)["launch-policy"]
    served, held = load(running[1]).digest.hex(), load(other).digest.hex()
    assert (f"another deployment: policy: found {served[:16]}…, expected {held[:16]}… (policy_sha384 of the "
            "statement); launch-policy fails, too") == verdict.reason
    assert verdict.hint is not None
    assert "appliance digest FILE" in verdict.hint
    told = str(verdict)
    assert max(map(len, told.split("FAILED:")[1].split("\n\n")[0].splitlines())) <= 170
    assert {f"      found {served}", f"      expected {held}"} <= set(told.splitlines())
    assert ["policy_sha384 of the statement"] == [
        each["field"] for each in verdict.as_json()["findings"] if each["rule"] == "policy"]


def test_a_verdict_s_lines_are_read_by_people(running: tuple[FakeAppliance, Path]) -> None:
    """However much fails, the reason is a sentence with the first field that differs, and a hint is the next step."""
    with _altered(running, policy=GUEST | DEBUG | SMT, vmpl=1, measurement=b"\x12" * 48, host_data=bytes(32),
                  current=bytes(8), launch=bytes(8), committed=bytes(8)):
        verdict = _verifier(running).verify(running[0].url)
    assert NOT_MET == verdict.status
    assert len(verdict.reason) < 400
    assert verdict.hint
    assert max(map(len, str(verdict).split("FAILED:")[1].split("\n\n")[0].splitlines())) <= 200
    failed = {each.rule for each in verdict.findings if each.outcome == "fails"}
    assert {"debug", "smt", "vmpl", "measurement", "launch-policy", "tcb-current", "tcb-launch"} <= failed
    assert all(rules.field(rule) for rule in failed)


def test_each_field_that_a_rule_names_is_the_policy_s() -> None:
    """No rule names a field that the language does not have."""
    known = places()
    assert [] == [path for path in rules.FIELDS.values() if path not in known]


def test_a_self_test_that_is_known_is_compared(running: tuple[FakeAppliance, Path],
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """One of the digests that were given, or refused by the rule's name; without any it is shown, and not proved."""
    good, other = hashlib.sha384(b"self-test").digest(), bytes(48)
    verdict = _verifier(running, self_tests=frozenset((other, good))).verify(running[0].url)
    assert (VERIFIED, "holds") == (verdict.status, _outcomes(verdict)["self-test"])
    verdict = _verifier(running, self_tests=frozenset((other,))).verify(running[0].url)
    assert (NOT_MET, "evidence-self-test") == (verdict.status, verdict.code)
    assert good.hex() in str(_verifier(running).verify(running[0].url)).split("not proved:")[1]
    for text in ("", "00", "zz" * 48, "00" * 49):
        with pytest.raises(SystemExit, match="2"):
            main(["verify", running[0].url, "--policy", str(running[1]), "--self-test", text])
    assert "SHA-384" in capsys.readouterr().err


def test_wrong_number_of_vcpus(running: tuple[FakeAppliance, Path]) -> None:
    """The digest of three vCPUs is refused where one and two are predicted, and both are named."""
    known = fake.measured(launch=(b"\x41" * 48, b"\x42" * 48))
    verdict = _verifier(running, known=known).verify(running[0].url)
    assert (NOT_MET, "evidence-measurement") == (verdict.status, verdict.code)
    assert "predicted for 1, 2 vCPUs" in verdict.reason


def test_an_image_with_another_policy_in_it(running: tuple[FakeAppliance, Path]) -> None:
    """Measurements of an image that has a policy baked in are about that policy alone."""
    for policy, status in ((load(running[1]).digest.hex(), VERIFIED), ("00" * 48, NOT_MET)):
        verdict = _verifier(running, known=fake.measured(policy=policy)).verify(running[0].url)
        assert (status, verdict.code) == (verdict.status, "" if status == VERIFIED else "evidence-measured-policy")


def test_the_gate_of_the_image_is_named(running: tuple[FakeAppliance, Path]) -> None:
    """By its digest, out of the measurements; an image that has none is still verified, and it is said."""
    digest = "9a" * 32
    known = fake.measured()
    with_gate = known.model_copy(update={"image": {**known.image, "gate.bin": digest}})
    for measured, outcome, said in ((with_gate, "holds", f"sha256:{digest}, which keeps"),
                                    (known, "not checked", "the measurements name no gate.bin")):
        verdict = _verifier(running, known=measured).verify(running[0].url)
        [found] = [each for each in verdict.findings if each.rule == "gate"]
        assert (VERIFIED, outcome, True) == (verdict.status, found.outcome, said in found.detail)
        assert "gate" in str(verdict)


@pytest.mark.parametrize(("collateral", "status", "code"), [
    ({"serial": 7, "of": "SEV-Genoa"}, INVALID, "certificate-revoked"),
    ({"end": NOW - timedelta(hours=1)}, NOT_MET, "evidence-revocation"),
    ({"start": NOW + timedelta(hours=1)}, UNCHECKED, "unchecked-revocation"),
    ({"start": NOW - timedelta(days=340)}, VERIFIED, ""),
    ({"signer": "stranger"}, INVALID, "crl-signature"),
    (None, UNCHECKED, "unchecked-revocation"),
])
def test_revocation(running: tuple[FakeAppliance, Path], collateral: dict[str, Any] | None, status: str,
                    code: str) -> None:
    """A revoked VCEK, a list that has ended, one of the future, one in force that is old, a forged one, none."""
    found = Collateral() if collateral is None else _crl(**collateral)
    verdict = _verifier(running, collateral=found).verify(running[0].url)
    assert (status, code) == (verdict.status, verdict.code)


@pytest.mark.parametrize("found", [
    Collateral(), _crl(end=NOW - timedelta(hours=1)), _crl(start=NOW + timedelta(hours=1))])
def test_doing_without_revocation_is_said(running: tuple[FakeAppliance, Path], found: Collateral) -> None:
    """By an explicit wish alone, and said under what was not proved. A list that has ended is no worse than none."""
    verdict = _verifier(running, collateral=found, need_revocation=False).verify(running[0].url)
    assert VERIFIED == verdict.status
    assert "revocation" in str(verdict).split("not proved:")[1]


@pytest.mark.parametrize("at", [
    NOW + timedelta(days=2), NOW - timedelta(days=2), datetime(2034, 1, 1, tzinfo=NOW.tzinfo)])
def test_certificates_are_judged_at_a_time(running: tuple[FakeAppliance, Path], at: datetime) -> None:
    """Neither the connection's certificate nor the vendor's is valid out of its time."""
    verdict = _verifier(running).verify(running[0].url, at=at)
    assert (UNCHECKED, "certificate-expired") == (verdict.status, verdict.code)


def test_a_certificate_by_somebody_else_is_refused(running: tuple[FakeAppliance, Path]) -> None:
    """RA-TLS certificates are self-signed; an authority's name or signature on one is not."""
    mine, other = fake.key(), fake.key()
    try:
        for der in (fake.certificate(mine, signer=other), fake.certificate(mine, signer=other, issuer="An Authority")):
            running[0].rotate(mine, der=der)
            verdict = _verifier(running).verify(running[0].url)
            assert (INVALID, "certificate-signature") == (verdict.status, verdict.code)
    finally:
        running[0].rotate()


def test_other_models_are_refused(tmp_path: Path) -> None:
    """A model more, a model less, other weights: each is named."""
    path = fake.write_policy(tmp_path, "sev-snp")
    policy = load(path)
    source = fake.SnpSource(AMD, host_data(policy.digest))
    for models in ({}, {"demo": "ab" * 32}, {"demo": fake.MODEL, "spy": "ab" * 32}):
        server = FakeAppliance(fake.attestor(source, policy, models=models), tmp_path)
        try:
            verdict = _verifier((server, path)).verify(server.url)
        finally:
            server.stop()
        assert (NOT_MET, "evidence-models") == (verdict.status, verdict.code)


def test_measurements_must_be_given(running: tuple[FakeAppliance, Path]) -> None:
    """Without them nothing says what runs: not verified, and the hint says what to give."""
    verifier = _verifier(running)
    verdict = Verifier(replace(verifier.reference, known=None), clock=lambda: NOW).verify(running[0].url)
    assert (UNCHECKED, "unchecked-measurement") == (verdict.status, verdict.code)
    assert "--measurements" in (verdict.hint or "")


def test_roots_are_the_vendors_unless_named(running: tuple[FakeAppliance, Path]) -> None:
    """The hierarchy of tests is nobody's by default."""
    verdict = _verifier(running, roots=Roots()).verify(running[0].url)
    assert (INVALID, "chain-root") == (verdict.status, verdict.code)


def test_simulated_evidence_is_never_verified(tmp_path: Path) -> None:
    """It has a verdict of its own, over TLS and over plain HTTP, and no other policy takes it."""
    for tls in (True, False):
        folder = tmp_path / str(tls)
        folder.mkdir()
        with fake.simulated(folder, tls=tls) as (server, path):
            verdict = fake.verifier(path, roots=Roots()).verify(server.url)
            assert (SIMULATED, 5, False) == (verdict.status, verdict.exit_code, verdict.verified)
            assert "PROVES NOTHING" in str(verdict)
            with pytest.raises(RejectedEvidenceError) as caught:
                verdict.require()
            assert "simulated" == caught.value.code
            verdict.require(SIMULATED)
            hard = fake.verifier(fake.write_policy(tmp_path, "sev-snp"), roots=Roots()).verify(server.url)
            assert (NOT_MET, "evidence-platform") == (hard.status, hard.code)


@pytest.mark.parametrize(("fields", "options", "status", "code"), [
    ({}, {}, VERIFIED, ""),
    ({"td15": True, "version": 5}, {}, VERIFIED, ""),
    ({"mr_td": b"\x23" * 48}, {}, NOT_MET, "evidence-mrtd"),
    ({"rtmr2": bytes(48)}, {}, NOT_MET, "evidence-rtmr2"),
    ({"mr_config_id": bytes(48)}, {}, NOT_MET, "evidence-launch-policy"),
    ({"attributes": 1 << 28 | 1}, {}, NOT_MET, "evidence-debug"),
    ({"td15": True, "version": 5, "service": b"\x05" * 48}, {}, NOT_MET, "evidence-service-td"),
    ({}, {"status": "OutOfDate"}, NOT_MET, "evidence-tcb-status"),
    ({}, {"issued": NOW - timedelta(days=60)}, UNCHECKED, "tdx-collateral-time"),
    ({}, {"pck_revokes": 3}, INVALID, "certificate-revoked"),
])
def test_tdx(tmp_path: Path, fields: dict[str, Any], options: dict[str, Any], status: str, code: str) -> None:
    """The same over TDX: what Intel's hardware says, and what Intel says of the hardware."""
    intel = FakeIntel(options)
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest, fields), policy), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        verdict = fake.verifier(path, roots=roots, collateral=intel.collateral()).verify(server.url)
    finally:
        server.stop()
    assert (status, code) == (verdict.status, verdict.code)


SERVICE = b"\x05" * 47 + b"\x06"
TDX_FIELDS = [
    (f'service_tds = ["{SERVICE.hex()}"]', {"service": SERVICE}, {"service": b"\x06" * 48}, "service-td"),
    (f'mr_seam = ["{SERVICE.hex()}"]', {"mr_seam": SERVICE}, {}, "mrseam"),
    (f'min_tee_tcb_svn = "0301{"00" * 14}"', {}, {"tee_tcb_svn": b"\x02\x01" + bytes(14)}, "tee-tcb-svn"),
    ('xfam = "0x00000000000000e7"', {}, {"xfam": 0x602E7}, "xfam"),
    ('tcb_grace = "400d"', {}, {"tee_tcb_svn": b"\x02\x01" + bytes(14)}, "tcb-status"),
]


@pytest.mark.parametrize(("line", "good", "bad", "rule"), TDX_FIELDS, ids=[each[-1] for each in TDX_FIELDS])
def test_each_field_of_schema_2_on_tdx(tmp_path: Path, line: str, good: dict[str, Any], bad: dict[str, Any],
                                       rule: str) -> None:
    """A TD that meets the field is verified, one that does not is refused by its rule and no other."""
    def level(svn: int, date: str, status: str) -> dict[str, Any]:
        return {"tcb": {"isvsvn": svn}, "tcbDate": date, "tcbStatus": status}
    intel = FakeIntel({"module_levels": [  # below 3 out of date, as of three years ago where the time of grace is asked
        level(3, "2026-01-01T00:00:00Z", "OutOfDate" if rule == "tcb-status" else "UpToDate"),
        level(2, "2023-01-01T00:00:00Z", "OutOfDate" if rule == "tcb-status" else "UpToDate")]})
    path = fake.write_policy(tmp_path, "tdx", evidence=f"tdx {{\n {line}\n }}")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    policy = load(path)
    found = []
    for fields in (good, bad):
        source = fake.TdxSource(intel, policy.digest, {"version": 5, "td15": True, **fields})
        server = FakeAppliance(fake.attestor(source, policy), tmp_path)
        roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
        try:
            verdict = fake.verifier(path, roots=roots, collateral=intel.collateral()).verify(server.url)
        finally:
            server.stop()
        found.append((verdict.status, [each.rule for each in verdict.findings if each.outcome == "fails"]))
    assert [(VERIFIED, []), (NOT_MET, [rule])] == found


SNP_FIELDS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None, str, str]] = [
    ('min_tcb "genoa" { launch_mitigations = "0xb" }', {"mitigations": (0xB, 0)}, {"mitigations": (1, 0xB)},
     {"version": 4}, "launch-mitigations", "hardware"),
    ('min_tcb "genoa" { current_mitigations = "0xb" }', {"mitigations": (0, 0xF)}, {"mitigations": (0xB, 1)},
     {"version": 3}, "current-mitigations", "hardware"),
    ("committed_is_current = true", {}, {"committed_version": (1, 1, 1)}, None, "committed-is-current", "hardware"),
    ("min_report_version = 5", {}, {"version": 4}, None, "report-version", "hardware"),
    ("page_swap_disabled = true", {"policy": GUEST | 1 << 25}, {}, {"version": 2}, "page-swap", "runtime-opaque"),
    ("tio = false", {}, {"platform": 1 << 7}, {"version": 4}, "tio", "configuration"),
    ('products = ["siena"]', {"cpuid": fake_amd.SIENA}, {}, {"version": 2}, "product", "instance-identity"),
]


@pytest.mark.parametrize(("line", "good", "bad", "silent", "rule", "about"), SNP_FIELDS,
                         ids=[each[4] for each in SNP_FIELDS])
def test_each_field_of_schema_2_on_sev_snp(tmp_path: Path, line: str, good: dict[str, Any], bad: dict[str, Any],
                                           silent: dict[str, Any] | None, rule: str, about: str) -> None:
    """A guest that meets the field is verified; one that does not, or cannot show it, is refused by its rule alone."""
    path = fake.write_policy(tmp_path, "sev-snp", evidence=f"sev_snp {{\n {line}\n }}")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    policy = load(path)
    for fields in (good, bad, silent):
        if fields is None:
            continue
        source = fake.SnpSource(AMD, host_data(policy.digest), {"version": 5, **fields})
        server = FakeAppliance(fake.attestor(source, policy), tmp_path)
        try:
            verdict = fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=_crl()).verify(server.url)
        finally:
            server.stop()
        failed = [each.rule for each in verdict.findings if each.outcome == "fails"]
        assert ((VERIFIED, []) if fields is good else (NOT_MET, [rule])) == (verdict.status, failed)
        if fields is not good:
            assert f"evidence-{rule}" == verdict.code
            vector = ear.claims(verdict)["submods"][ear.SUBMODULE]["ear_trustworthiness_vector"]
            assert {about: ear.CONTRAINDICATED} == vector


@pytest.mark.parametrize(("rtmrs", "status"), [
    (fake.RTMRS, VERIFIED), ((None, fake.RTMRS[1], None, None), NOT_MET)], ids=["proved", "not predicted"])
def test_a_policy_in_the_image_needs_no_mrconfigid(tmp_path: Path, rtmrs: tuple[bytes | None, ...],
                                                   status: str) -> None:
    """Zeros will do on TDX only where the registers that cover kernel, command line and so the root are proved."""
    intel = FakeIntel()
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    policy = load(path)
    source = fake.TdxSource(intel, policy.digest, {"mr_config_id": bytes(48)})
    server = FakeAppliance(fake.attestor(source, policy), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        verdict = fake.verifier(path, roots=roots, collateral=intel.collateral(),
                                known=fake.measured(policy=policy.digest.hex(), rtmrs=rtmrs)).verify(server.url)
    finally:
        server.stop()
    assert status == verdict.status


def test_a_register_that_nobody_predicted_leaves_tdx_unchecked(tmp_path: Path) -> None:
    """MRTD alone is the firmware: without the registers of kernel and command line nothing is verified."""
    intel = FakeIntel()
    path = fake.write_policy(tmp_path, "tdx", evidence="")
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, load(path).digest), load(path)), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        verdict = fake.verifier(path, roots=roots, collateral=intel.collateral(),
                                known=fake.measured(rtmrs=(None, b"\x31" * 48, None, None))).verify(server.url)
    finally:
        server.stop()
    assert (UNCHECKED, "unchecked-rtmr2") == (verdict.status, verdict.code)


def test_approvals_are_counted_and_shown(tmp_path: Path) -> None:
    """Two of three signed: shown by name; one alone: refused; no file: not checked."""
    path = fake.write_policy(tmp_path, "simulated", kind="ra-tls", more=block())
    policy = load(path)
    made = fake.attestor(SimulatedProvider(policy.host_data), policy).attest(bytes(32)).to_json()
    for names, status, outcome in ((("alice", "bob"), SIMULATED, "holds"), (("bob",), NOT_MET, "fails"),
                                   (None, SIMULATED, "not checked")):
        found = None if names is None else Approvals(
            policy_sha384=policy.digest.hex(), approvals=tuple(approve(KEYS[name], name, policy.digest)
                                                               for name in names))
        verdict = fake.verifier(path, roots=Roots(), approvals=found).verify_evidence(made)
        assert (status, outcome) == (verdict.status, _outcomes(verdict)["approvals"])
        assert names is None or all(name in str(verdict) for name in names)


def test_a_copy_without_tenants_verifies_the_same(tmp_path: Path) -> None:
    """A client that must not see other tenants has the same digest, and so the same verdict."""
    path = fake.write_policy(tmp_path, "simulated", kind="ra-tls")
    copy = tmp_path / "copy.hcl"
    copy.write_text(without_tenants(load(path)))
    assert "ab" * 32 not in copy.read_text()
    policy = load(path)
    made = fake.attestor(SimulatedProvider(policy.host_data), policy).attest(bytes(32)).to_json()
    verdict = fake.verifier(copy, roots=Roots()).verify_evidence(made, nonce=bytes(32))
    assert (SIMULATED, "holds") == (verdict.status, _outcomes(verdict)["policy"])


def test_nobody_there(tmp_path: Path) -> None:
    """No connection, no TLS, no evidence, too much of it: could not check, each with its own code."""
    path = fake.write_policy(tmp_path, "simulated", kind="ra-tls")
    verifier = fake.verifier(path, roots=Roots())
    assert "unreachable" == verifier.verify("https://127.0.0.1:1").code
    with fake.simulated(tmp_path, tls=False) as (server, _):
        verdict = verifier.verify(server.url.replace("http:", "https:"))
        assert (UNCHECKED, "unreachable") == (verdict.status, verdict.code)
        server.evidence = lambda nonce: b" " * (reading.MAX_EVIDENCE_BYTES + 1)
        verdict = verifier.verify(server.url)
        assert (INVALID, "evidence-malformed") == (verdict.status, verdict.code)
        with pytest.raises(ForgedEvidenceError):
            verdict.require()
    with pytest.raises(UncheckedEvidenceError):
        verifier.verify("https://127.0.0.1:1").require(SIMULATED)


@pytest.mark.parametrize(("text", "found"), [
    ("https://a.example:8443", "https://a.example:8443"), ("https://a.example", "https://a.example:443"),
    ("https://a.example/v1/", "https://a.example:443"), ("HTTPS://[::1]:1/", "https://[::1]:1"),
    ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"), ("http://localhost:1", "http://localhost:1"),
    ("http://[::1]:2", "http://[::1]:2"),
    ("http://a.example", None), ("http://10.0.0.1:80", None), ("https://", None), ("https://u@a.example", None),
    ("https://a.example/v2", None), ("https://a.example/?x=1", None), ("https://a.example:99999", None),
    ("ftp://a.example", None), ("https://[::1", None), ("https://a.example:0", None),
])
def test_urls(text: str, found: str | None) -> None:
    """What is a URL of an appliance; plain HTTP never leaves the machine."""
    if found is None:
        with pytest.raises(PolicyError):
            target.endpoint(text)
    else:
        assert found == str(target.endpoint(text))


@pytest.mark.parametrize("text", [r"C:\e.json", "c:/e.json", "./https", "e.json", r"\\host\e.json"])
def test_paths_are_no_urls(text: str) -> None:
    """A drive letter is no scheme."""
    assert not target.is_url(text)


def test_exit_codes_are_distinct() -> None:
    """Nine words, eight codes, since two words trust the host; only one of them is success."""
    assert EXIT_CODES == {
        VERIFIED: 0, INVALID: 1, UNCHECKED: 2, NOT_MET: 3, HOST_TRUSTED: 4, FIRMWARE_PROVED: 4, SIMULATED: 5,
        KEY_BOUND: 6, AWS_TRUSTED: 7}


def _files(folder: Path, running: tuple[FakeAppliance, Path]) -> list[str]:
    """What a person holds, as files; the words for a command line."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from appliance.attestation.case import measurements

    builder = Ed25519PrivateKey.from_private_bytes(b"\x09" * 32)
    data = fake.measured().to_json()
    (folder / "measurements.json").write_bytes(data)
    (folder / "measurements.json.sig").write_bytes(measurements.sign(data, builder))
    (folder / "root.pem").write_bytes(AMD.ark.public_bytes(Encoding.PEM))
    (folder / "collateral").mkdir()
    (folder / "collateral/list.crl").write_bytes(AMD.crl().public_bytes(Encoding.DER))
    return ["--policy", str(running[1]), "--measurements", str(folder / "measurements.json"),
            "--builder-key", f"ed25519:{builder.public_key().public_bytes_raw().hex()}",
            "--collateral", str(folder / "collateral"), "--unsafe-root", str(folder / "root.pem"),
            "--at", f"{NOW:%Y-%m-%dT%H:%M:%SZ}"]


def test_the_command_line(running: tuple[FakeAppliance, Path], tmp_path: Path,
                          capsys: pytest.CaptureFixture[str]) -> None:
    """Online today; saved; and from the saved file, as an auditor would a year later, as of today."""
    words, saved = _files(tmp_path, running), tmp_path / "evidence.json"
    assert 0 == main(["verify", running[0].url, *words, "--save", str(saved)])
    assert "VERIFIED" in capsys.readouterr().out
    assert 0 == main(["verify", str(saved), *words, "--json"])
    found = json.loads(capsys.readouterr().out)
    outcomes = {each["rule"]: each["outcome"] for each in found["findings"]}
    assert ("verified", "not checked", "not checked") == (found["verdict"], outcomes["nonce"], outcomes["tls-key"])
    assert 0 == main(["verify", str(saved), *words, "--nonce", found["nonce"]])
    digest = hashlib.sha384(b"self-test").hexdigest()
    assert 0 == main(["verify", str(saved), *words, "--self-test", "00" * 48, "--self-test", digest])
    assert 3 == main(["verify", str(saved), *words, "--self-test", "00" * 48])
    assert 3 == main(["verify", str(saved), *words, "--nonce", "00" * 32])
    assert "replay" in capsys.readouterr().out
    saved.write_bytes(saved.read_bytes().replace(b'"generation":', b'"generation":1'))
    assert 1 == main(["verify", str(saved), *words])
    assert 2 == main(["verify", str(tmp_path / "absent.json"), *words])
    assert 0 == main(["verify", running[0].url, *words, "--nonce", "00" * 32])


def test_a_year_of_lists_that_live_a_year(running: tuple[FakeAppliance, Path], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """AMD's list of one day is fresh on each day until its next update, and stale on the day after."""
    words, saved = _files(tmp_path, running)[:-2], tmp_path / "evidence.json"
    at = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
    assert 0 == main(["verify", running[0].url, *words, "--at", at, "--save", str(saved)])
    lived = timedelta(days=371)
    listed = AMD.crl(start=NOW, end=NOW + lived).public_bytes(Encoding.DER)
    (tmp_path / "collateral/list.crl").write_bytes(listed)
    capsys.readouterr()
    days = {day: main(["verify", str(saved), *words, "--at", f"{NOW + timedelta(days=day):%Y-%m-%dT%H:%M:%SZ}"])
            for day in {*extent.some(range(lived.days + 2), 12), lived.days - 1, lived.days}}
    assert {day: 0 if day < lived.days else 3 for day in days} == days
    assert "has ended" in capsys.readouterr().out
    last = f"{NOW + lived + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
    assert 0 == main(["verify", str(saved), *words, "--at", last, "--without-revocation"])


MILAN = "2605.12990"


@pytest.mark.parametrize(("evidence", "warned"), [
    ("", True), ('sev_snp {\n products = ["genoa"]\n }', False), ('sev_snp {\n products = ["milan"]\n }', True)])
def test_a_policy_that_accepts_milan_is_warned_of(tmp_path: Path, evidence: str, warned: bool) -> None:
    """By default (of schema 1) or by name, whichever line answers, and the exit code stays."""
    amd = FakeAmd("Milan" if "milan" in evidence else "Genoa")
    with fake.snp(tmp_path, amd, evidence=evidence) as (appliance, policy):
        verdict = fake.verifier(policy, roots=Roots(amd=amd.roots), collateral=_crl(amd)).verify(appliance.url)
    assert warned == any(MILAN in d.summary for d in advice.diagnostics(check_file(policy)) if d.severity == "warning")
    assert VERIFIED == verdict.status
    assert warned == (MILAN in str(verdict).split("not proved:")[1])


@pytest.mark.parametrize("pattern", ["hidden", "leaks"])
def test_a_verdict_names_what_the_disk_is_told(tmp_path: Path, pattern: str) -> None:
    """A policy that says "leaks" stands under what is not proved, with its model; the verdict stays good."""
    amd = FakeAmd("Genoa")
    with fake.snp(tmp_path, amd, model=f'access_pattern = "{pattern}"') as (appliance, policy):
        verdict = fake.verifier(policy, roots=Roots(amd=amd.roots), collateral=_crl(amd)).verify(appliance.url)
    assert VERIFIED == verdict.status
    assert (pattern == "leaks") == ("access-pattern" in _outcomes(verdict))
    assert (pattern == "leaks") == ('of demo says "leaks"' in str(verdict).split("not proved:")[1])


def _broken(folder: Path) -> dict[str, Path]:
    """Places that cannot be read, or hold nothing, or nonsense."""
    (folder / "empty").write_bytes(b"")
    (folder / "noise").write_bytes(bytes(range(256)) * 9)
    (folder / "loop").symlink_to(folder / "loop")
    return {"absent": folder / "absent", "folder": folder / "collateral", "loop": folder / "loop",
            "empty": folder / "empty", "noise": folder / "noise", "below a file": folder / "empty" / "x"}


UNREADABLE = ("absent", "folder", "loop", "below a file")
ARGUMENTS = ("--policy", "--measurements", "--builder-key", "--approvals", "--collateral", "--ak", "--unsafe-root",
             "--save", "--ear", "--ear-key", "--nonce", "--at")


@pytest.mark.parametrize("argument", ["FILE", *ARGUMENTS])
def test_every_way_to_fail_has_its_code_and_is_json(running: tuple[FakeAppliance, Path], tmp_path: Path, argument: str,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Each file in turn absent, a folder, a loop of links, empty or noise: exit code 2, or 1 for evidence that is none;
    and one object on standard output, whose code is the exit code. Never a traceback, never 0."""
    words, saved = _files(tmp_path, running), tmp_path / "evidence.json"
    saved.write_bytes(running[0].attestor.attest(bytes(32)).to_json())
    for kind, place in _broken(tmp_path).items():
        if argument == "FILE":
            line = ["verify", str(place), *words]
        elif argument in ("--ear-key", "--nonce", "--at"):
            line = ["verify", str(saved), *words, "--ear", str(tmp_path / "ear"), argument, str(place)]
        else:
            line = ["verify", str(saved), *words, argument, str(place)]
        if argument in ("--nonce", "--at"):  # bad usage: argparse's own word
            with pytest.raises(SystemExit, match="2"):
                main([*line, "--json"])
            continue
        code = main([*line, "--json"])
        out, err = capsys.readouterr()
        found = json.loads(out)
        assert code == found["exit_code"], (argument, kind)
        assert "Traceback" not in err
        expected = {1} if argument == "FILE" and kind not in UNREADABLE else {2}
        if argument in ("--save", "--ear") and kind in ("absent", "empty", "noise", "loop"):
            expected = {0}  # it is written over, or made
        elif argument == "--collateral" and kind == "folder":
            expected = {0}
        assert code in expected, (argument, kind, out, err)
        assert found["verdict"] == {0: VERIFIED, 1: INVALID, 2: UNCHECKED}[code]
        assert set(found) == set(_verifier(running).verify_evidence(b"").as_json())


def test_evidence_through_a_pipe(running: tuple[FakeAppliance, Path], tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell's <(…) gives it; a reader of the output that goes away early gets no traceback, and no answer."""
    words, pipe = _files(tmp_path, running), tmp_path / "pipe"
    os.mkfifo(pipe)
    data = running[0].attestor.attest(bytes(32)).to_json()
    thread = threading.Thread(target=lambda: pipe.write_bytes(data))
    thread.start()
    assert 0 == main(["verify", str(pipe), *words, "--json"])
    thread.join()
    assert "verified" == json.loads(capsys.readouterr().out)["verdict"]
    (tmp_path / "evidence.json").write_bytes(data)
    with subprocess.Popen([sys.executable, "-m", "appliance", "verify", str(tmp_path / "evidence.json"), *words],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert b"" == process.stderr.read()
        assert 2 == process.wait(30)


ALONE = """
import os, socket, sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nothing())
from appliance.cli.main import main
from appliance.client import Verifier
assert os.geteuid() != 0
code = main(sys.argv[1:])
print(sorted(each for each in sys.modules if each in ('appliance.engine', 'appliance.models', 'appliance.service')))
sys.exit(code)
"""
EXTRAS = {"numpy", "numba", "llvmlite", "litestar", "uvicorn", "msgspec", "structlog", "httpx", "openai", "dcap_qvl"}


def test_a_verifier_needs_neither_root_nor_network_nor_engine(running: tuple[FakeAppliance, Path],
                                                              tmp_path: Path) -> None:
    """As a user without privileges, in a namespace without a network, with the base installation's packages alone."""
    words, saved = _files(tmp_path, running), tmp_path / "evidence.json"
    assert 0 == main(["verify", running[0].url, *words, "--save", str(saved)])
    unshare = ["unshare", "--user", "--net"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        absent("user namespaces (unshare of util-linux, and a kernel that lets it)")
    program = ALONE.replace("{absent}", repr(EXTRAS))
    done = subprocess.run([*unshare, sys.executable, "-c", program, "verify", str(saved), *words],
                          capture_output=True, text=True, timeout=600, check=False)
    assert 0 == done.returncode, done.stderr
    assert "VERIFIED" in done.stdout
    assert "[]" == done.stdout.splitlines()[-1]


def test_measurements_are_the_builders_or_explicitly_taken(running: tuple[FakeAppliance, Path], tmp_path: Path,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    """No key: asked for one. Another's key: refused. Explicitly unsigned: taken, and said."""
    words = _files(tmp_path, running)
    at = words.index("--builder-key")
    bare = words[:at] + words[at + 2:]
    assert 2 == main(["verify", running[0].url, *bare])
    assert "measurements-unsigned" in capsys.readouterr().err
    assert 2 == main(["verify", running[0].url, *bare, "--builder-key", "ed25519:" + "8a" * 32])
    assert "measurements-signature" in capsys.readouterr().err
    assert 0 == main(["verify", running[0].url, *bare, "--measurements-unsigned"])
    unproved = capsys.readouterr().out.split("not proved:")[1]
    assert "taken as given, unsigned; rebuild them" in unproved
    assert "predict OUT, with the builder's --firmware and --golden" in unproved  # or the bytes differ
    assert 2 == main(["verify", running[0].url, *words, "--measurements-unsigned"])
    assert "contradict each other" in capsys.readouterr().err
    none = [word for word in words if word not in ("--measurements", words[words.index("--measurements") + 1])]
    assert 2 == main(["verify", running[0].url, *none])
    assert "measurements-absent" in capsys.readouterr().err


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
def test_a_time_that_utc_does_not_have_is_bad_usage(time: str, running: tuple[FakeAppliance, Path], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """Not a traceback, whose exit code says that the evidence is invalid."""
    with pytest.raises(SystemExit) as caught:
        main(["verify", running[0].url, *_files(tmp_path, running), "--at", time])
    assert 2 == caught.value.code
    assert "is not a time such as" in capsys.readouterr().err


def test_vendors_own_evidence_is_not_enough(tmp_path: Path) -> None:
    """A bare report is bound to no statement: nothing can be said about a policy."""
    path = fake.write_policy(tmp_path, "sev-snp")
    report = tmp_path / "report.bin"
    report.write_bytes(AMD.report())
    verdict = fake.verifier(path, roots=Roots(amd=AMD.roots)).verify_file(report)
    assert (UNCHECKED, "no-statement") == (verdict.status, verdict.code)


def test_every_rule_is_in_the_reference() -> None:
    """Whoever reads the name of a rule finds it."""
    text = (Path(__file__).parents[2] / "docs/reference/verify.md").read_text()
    assert set() == {rule for rule in MEANINGS if f"`{rule}`" not in text}
    assert set() == set(ATTACKS) - set(MEANINGS)
    assert all(f"| {code} | `{status}` |" in text for status, code in EXIT_CODES.items())


def test_an_option_that_there_is_not(tmp_path: Path) -> None:
    """A misspelt option of a verifier is refused before any file is read, not passed over."""
    options = {"need_revocation": True, "colateral": tmp_path}
    with pytest.raises(TypeError, match="no option colateral; there are builder_key, "):
        Verifier.from_files(tmp_path / "none.hcl", **options)  # type: ignore[arg-type]
