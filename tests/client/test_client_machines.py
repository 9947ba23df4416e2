"""The rule `machine`: evidence of a listed machine is accepted, that of any other refused by its name."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.binding import ServeStatement
from appliance.attestation.case import machine, reading
from appliance.attestation.case.certified import CertifiedEvidence
from appliance.attestation.case.machine import Custody, MachineId, MachineList
from appliance.attestation.case.reading import parse
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tpm.judging import ek
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.cli.main import main
from appliance.client import Verdict, Verifier
from appliance.client.judge import certificate_evidence
from appliance.client.verdict import HOST_TRUSTED, NOT_MET, SIMULATED, UNCHECKED, VERIFIED
from appliance.policy import load
from appliance.policy.digest import host_data
from appliance.signed import machines
from tests.attestation.test_tpm_trust import Machine
from tests.support import fake_appliance as fake
from tests.support import machine_lists as lists
from tests.support import swtpm
from tests.support.fake_amd import CHIP, NOW, TURIN_CHIP, FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.fake_intel import FakeIntel
from tests.support.tpm_maker import Maker
from tests.support.vectors import need

PPID, INSTANCE, OTHER = b"\x01" * 16, b"\x02" * 16, b"\x09" * 64
Entry = Mapping[str, Any]
LISTED, STRANGER = lists.entry("chip-id", CHIP), lists.entry("chip-id", OTHER)


def _policy(folder: Path, *platforms: str, demand: str = lists.DEMAND, evidence: str = "") -> Path:
    """A policy of schema 2 that demands listed machines."""
    path = fake.write_policy(folder, *platforms, evidence=f"{evidence}\n {demand}")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    return path


@contextlib.contextmanager
def _snp(folder: Path, amd: FakeAmd, demand: str = lists.DEMAND, **fields: Any) -> Iterator[tuple[FakeAppliance, Path]]:
    path = _policy(folder, "sev-snp", demand=demand, evidence="sev_snp { }")
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.SnpSource(amd, host_data(policy.digest), fields), policy), folder)
    try:
        yield server, path
    finally:
        server.stop()


def _verifier(path: Path, roots: Roots, collateral: Collateral) -> Verifier:
    return fake.verifier(path, roots=roots, collateral=collateral,
                         machines=machines.machines_of(load(path).policy, path.parent))


def _found(verdict: Verdict) -> tuple[str, str]:
    """Outcome and detail of the rule."""
    [found] = [each for each in verdict.findings if each.rule == "machine"]
    return found.outcome, found.detail


SNP: list[tuple[str, dict[str, Any], tuple[Entry, ...], str, str, str]] = [
    ("listed", {}, (STRANGER, LISTED), VERIFIED, "holds", f"chip-id {CHIP.hex()}, held by: rack 1; list of version 3"),
    ("Turin's 8 bytes", {"product": "Turin"}, (lists.entry("chip-id", TURIN_CHIP),), VERIFIED, "holds", "held by"),
    ("not listed", {}, (STRANGER,), NOT_MET, "fails", f"chip-id {CHIP.hex()}: not among the 1 machines"),
    ("an empty list", {}, (), NOT_MET, "fails", "not among the 0 machines"),
    ("in time", {}, (lists.entry("chip-id", CHIP, not_after="2026-06-01T00:00:00Z"),), VERIFIED, "holds", "held by"),
    ("ended", {}, (lists.entry("chip-id", CHIP, not_after="2026-05-31T23:59:59Z"),), NOT_MET, "fails",
     "its entry ended on 2026-05-31T23:59:59Z"),
    ("masked", {"chip_id": bytes(64)}, (LISTED,), NOT_MET, "fails", "cannot be shown: the host masks CHIP_ID"),
    ("VLEK", {"vlek": True}, (LISTED,), NOT_MET, "fails", "cannot be shown: a VLEK signed the report"),
]


@pytest.mark.parametrize(("fields", "entries", "status", "outcome", "says"), [each[1:] for each in SNP],
                         ids=[each[0] for each in SNP])
def test_snp(tmp_path: Path, fields: dict[str, Any], entries: tuple[Any, ...], status: str, outcome: str,
             says: str) -> None:
    """The chip that signed, over a real connection. A name that is not listed is told, so that it can be added."""
    own = dict(fields)
    amd = FakeAmd(own.pop("product", "Genoa"), vlek=own.pop("vlek", False))
    lists.write(tmp_path, *entries)
    with _snp(tmp_path, amd, **own) as (server, path):
        verdict = _verifier(path, Roots(amd=amd.roots), Collateral(crls=[amd.crl()])).verify(server.url)
    assert (status, outcome) == (verdict.status, _found(verdict)[0]), verdict
    assert says in _found(verdict)[1]
    if status == NOT_MET:
        assert ("evidence-machine", True) == (verdict.code, verdict.reason.startswith("another machine: machine: "))
        assert ["machine"] == [each.rule for each in verdict.findings if each.outcome == "fails"]


def test_without_a_list_nothing_is_verified(tmp_path: Path) -> None:
    """A verifier that has none says where it comes from, and does not send; a policy that demands none asks nothing."""
    amd = FakeAmd("Genoa")
    for demand, status, code in ((lists.DEMAND, UNCHECKED, "unchecked-machine"), ("", VERIFIED, "")):
        with _snp(tmp_path, amd, demand) as (server, path):
            verdict = _verifier(path, Roots(amd=amd.roots), Collateral(crls=[amd.crl()])).verify(server.url)
        assert (status, code, "not checked") == (verdict.status, verdict.code, _found(verdict)[0])
        told = f"chip-id {CHIP.hex()}" in verdict.reason, "--machines FILE" in (verdict.hint or "")
        assert (bool(code), bool(code)) == told


TDX: list[tuple[str, dict[str, Any], Any, str, str]] = [
    ("PPID", {}, lists.entry("ppid", PPID), VERIFIED, f"ppid {PPID.hex()}, held by"),
    ("platform", {}, lists.entry("platform-instance-id", INSTANCE), VERIFIED, "platform-instance-id 0202"),
    ("platform alone", {"ppid": bytes(16)}, lists.entry("platform-instance-id", INSTANCE), VERIFIED, "held by"),
    ("PPID of a processor's authority", {"pck_lacks": 6}, lists.entry("ppid", PPID), VERIFIED, "held by"),
    ("one name under the other's kind", {}, lists.entry("ppid", INSTANCE), NOT_MET, "not among the 1"),
    ("neither", {}, lists.entry("ppid", b"\x09" * 16), NOT_MET,
     f"ppid {PPID.hex()} and platform-instance-id {INSTANCE.hex()}: not among"),
    ("no name", {"ppid": bytes(16), "pck_lacks": 6}, lists.entry("ppid", PPID), NOT_MET,
     "cannot be shown: the PCK has neither"),
]


@pytest.mark.parametrize(("options", "entry", "status", "says"), [each[1:] for each in TDX],
                         ids=[each[0] for each in TDX])
def test_tdx(tmp_path: Path, options: dict[str, Any], entry: Any, status: str, says: str) -> None:
    """Either name of the platform, as Intel certified it."""
    intel = FakeIntel(options)
    path = _policy(tmp_path, "tdx")
    policy = load(path)
    lists.write(tmp_path, entry)
    server = FakeAppliance(fake.attestor(fake.TdxSource(intel, policy.digest), policy), tmp_path)
    roots = Roots(intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    try:
        verdict = _verifier(path, roots, intel.collateral()).verify(server.url)
    finally:
        server.stop()
    assert (status, "holds" if status == VERIFIED else "fails") == (verdict.status, _found(verdict)[0]), verdict
    assert says in _found(verdict)[1]


@pytest.fixture(scope="module")
def tpm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, bytes, Path]]:
    """A machine whose TPM has a certificate by a maker, the name of its endorsement key, and the maker's folder."""
    folder, maker = tmp_path_factory.mktemp("tpm"), Maker()
    with swtpm.running() as socket:
        certificate = maker.furnish(socket, chain=True)
        found = Machine(folder, socket, "tpm", evidence=f"smt = true\n {lists.DEMAND}", schema=2)
        try:
            yield (found, ek.name_of(certificate.public_bytes(Encoding.DER)), maker.folder(folder / "makers"))
        finally:
            found.close()


def _tpm_list(folder: Path, machine: Machine, value: bytes) -> MachineList:
    lists.write(folder, lists.entry("ek-sha256", value, "edge box"))
    found = machines.machines_of(load(machine.policy).policy, folder)
    assert found is not None
    return found


def test_tpm(tpm: tuple[Machine, bytes, Path], tmp_path: Path) -> None:
    """The endorsement key that a challenge shows. Without one, a certificate in the evidence is anybody's, also where
    the quoting key is enrolled; and evidence that was kept cannot be challenged."""
    own, name, makers = tpm
    listed, roots = _tpm_list(tmp_path, own, name), collateral_folder.ek_roots(makers)
    good = own.verify(machines=listed, ek_roots=roots)
    assert (HOST_TRUSTED, "holds") == (good.status, _found(good)[0]), good
    assert f"ek-sha256 {name.hex()}, held by: edge box" in _found(good)[1]
    other = own.verify(machines=_tpm_list(tmp_path, own, b"\x07" * 32), ek_roots=roots)
    assert (NOT_MET, "evidence-machine") == (other.status, other.code), other
    assert name.hex() in other.reason
    enrolled = own.verify(machines=listed, attestation_keys=frozenset({own.key}))
    assert good.raw is not None
    kept = own.verifier(machines=listed, attestation_keys=frozenset({own.key})).verify_evidence(good.raw)
    for verdict in (enrolled, kept):
        assert (NOT_MET, "evidence-machine") == (verdict.status, verdict.code), verdict
        assert "cannot be shown: no challenge has shown which endorsement key" in verdict.reason
    assert (UNCHECKED, "unchecked-machine") == (lambda each: (each.status, each.code))(own.verify(ek_roots=roots))


def test_a_certificates_evidence_awaits_the_challenge(tpm: tuple[Machine, bytes, Path], tmp_path: Path) -> None:
    """What a TPM's certificate carries is judged before the challenge: the machine is the connection's to show."""
    own, name, makers = tpm
    listed, roots = _tpm_list(tmp_path, own, name), collateral_folder.ek_roots(makers)
    reference = own.verifier(machines=listed, ek_roots=roots).reference
    raw = own.verify(machines=listed, ek_roots=roots).raw
    assert raw is not None
    carried = parse(raw)
    statement = reading.statement_of(carried)
    assert isinstance(statement, ServeStatement)
    found = certificate_evidence(CertifiedEvidence(
        carried, statement, bytes.fromhex(statement.tls_spki_sha256 or ""), bytes.fromhex(carried.proof.nonce), (), NOW,
        NOW), reference, NOW)
    assert "holds" == found.outcome, found


def test_simulated_evidence_names_no_machine(tmp_path: Path) -> None:
    """Whatever is listed."""
    from appliance.attestation.simulated.collecting.collector import SimulatedProvider

    path = _policy(tmp_path, "simulated")
    policy = load(path)
    lists.write(tmp_path, LISTED)
    made = fake.attestor(SimulatedProvider(policy.host_data), policy).attest(bytes(32)).to_json()
    verdict = _verifier(path, Roots(), Collateral()).verify_evidence(made, at=NOW)
    assert (NOT_MET, True) == (verdict.status, "cannot be shown" in verdict.reason)
    plain = load(_policy(tmp_path, "simulated", demand=""))
    made = fake.attestor(SimulatedProvider(plain.host_data), plain).attest(bytes(32)).to_json()
    assert SIMULATED == _verifier(plain.path, Roots(), Collateral()).verify_evidence(made, at=NOW).status


def test_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list beside the policy counts, else the one that is named; what is no list of the policy's is an error."""
    amd = FakeAmd("Genoa")
    path = _policy(tmp_path, "sev-snp", evidence="sev_snp { }")
    policy = load(path)
    source = fake.SnpSource(amd, host_data(policy.digest))
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence/e.json").write_bytes(fake.attestor(source, policy).attest(bytes(32)).to_json())
    (tmp_path / "evidence/list.crl").write_bytes(amd.crl().public_bytes(Encoding.DER))
    (tmp_path / "ark.pem").write_bytes(amd.ark.public_bytes(Encoding.PEM))
    (tmp_path / "m.json").write_bytes(fake.measured().to_json())
    words = ["verify", str(tmp_path / "evidence/e.json"), "--policy", str(path), "--measurements",
             str(tmp_path / "m.json"), "--measurements-unsigned", "--unsafe-root", str(tmp_path / "ark.pem"),
             "--nonce", "00" * 32, "--at", f"{NOW:%Y-%m-%d}", "--json"]

    def verify(*more: str) -> dict[str, Any]:
        main([*words, *more])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    found = verify()
    assert (2, "unchecked-machine") == (found["exit_code"], found["code"])
    assert "machines" in found["hint"]
    lists.write(tmp_path, STRANGER)
    assert (3, "evidence-machine") == (lambda each: (each["exit_code"], each["code"]))(verify())
    lists.write(tmp_path, LISTED, file="newer.json", version=4)
    found = verify("--machines", str(tmp_path / "newer.json"))
    assert (0, None) == (found["exit_code"], found["code"]), found
    for file, options, code in (("newer.json", {"version": 2}, "machines-version"),
                                ("newer.json", {"name": "soft"}, "machines-other"), ("none", {}, "machines-absent")):
        if file != "none":
            lists.write(tmp_path, LISTED, file=file, **options)  # type: ignore[arg-type]
        found = verify("--machines", str(tmp_path / file))
        assert (2, code) == (found["exit_code"], found["code"])
    words[words.index(str(path))] = str(_policy(tmp_path, "sev-snp", demand="", evidence="sev_snp { }"))
    assert "machines-unused" == verify("--machines", str(tmp_path / "newer.json"))["code"]


@pytest.mark.parametrize("report", ["genoa_v5_mit0b_report.bin", "genoa_v5_mit01_report.bin", "milan_report.bin",
                                    "turin_attestation_report.bin"])
def test_real_reports(report: str) -> None:
    """Of real chips: listed it holds, and among other real chips it fails by its name."""
    path, at = need(f"snp/{report}"), datetime.fromisoformat("2026-07-01T00:00:00+00:00")
    record = examine(Material(path.read_bytes(), path, collateral_folder.load(path.parent)), at=at)
    assert "genuine" == record.verdict
    assert record.names is not None
    chip = path.read_bytes()[0x1A0:0x1E0]

    def judged(*chips: bytes) -> tuple[str, str]:
        listed = MachineList(1, {MachineId("chip-id", each): Custody("a lab") for each in chips})
        found = machine.judge(record.names or "", listed, at)
        return found.outcome, found.detail

    assert "holds" == judged(chip, CHIP)[0]
    outcome, detail = judged(CHIP)
    assert ("fails", True) == (outcome, f"chip-id {chip.hex()}: not among" in detail)


def test_a_real_clouds_key_names_no_chip() -> None:
    """A report of a real VLEK has a CHIP_ID, which its key does not vouch for."""
    path = need("snp/trustee-test-vlek-report.bin")
    record = examine(Material(path.read_bytes(), path, collateral_folder.load(path.parent)),
                     at=datetime.fromisoformat("2025-06-01T00:00:00+00:00"))
    assert ("genuine", "a VLEK signed the report, which is a cloud's key and not a chip's") == (
        record.verdict, record.names)
