"""Confidential VMs on Azure: hardware reports Microsoft's paravisor, which counts where the policy names it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import socket
import struct
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case.measurements import Measurements
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.findings import Finding
from appliance.attestation.tpm import container
from appliance.attestation.tpm.collecting import td_quote
from appliance.attestation.tpm.container import TpmEvidence
from appliance.attestation.tpm.judging import origin
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import judge
from appliance.client.judge import Question
from appliance.client.verdict import Verdict
from appliance.errors import ApplianceError, MalformedEvidenceError
from appliance.policy import load
from appliance.policy.digest import policy_pcr
from tests.support import envelopes, expected, fake_tpm
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW, FakeAmd
from tests.support.fake_intel import FakeIntel

PARAVISOR, ID_KEY = hashlib.sha384(b"paravisor").digest(), hashlib.sha384(b"Microsoft").digest()
LISTED = f'paravisor_measurements = ["{PARAVISOR.hex()}"]'
SIGNED = f'id_key_sha384 = "{ID_KEY.hex()}"'
SOURCE = 'source = "https://example.org/paravisors"'
RUNTIME = envelopes.runtime()
QUESTION = Question("x", NOW, bytes(32), bytes(32))


def _image() -> Measurements:
    """An image whose policy comes at launch."""
    return Measurements.model_validate({**expected.document(), "policy_sha384": None})


@dataclass
class AzureMachine(Provider):
    """A provider of what an Azure VM shows; `fields` change the hardware's report, `pcrs` the registers."""

    policy_sha384: bytes
    tdx: bool = False
    fields: dict[str, Any] = field(default_factory=dict)
    pcrs: dict[int, bytes] = field(default_factory=dict)
    revocation: bool = True
    amd: FakeAmd = field(default_factory=lambda: envelopes.AMD)
    intel: FakeIntel = field(default_factory=lambda: envelopes.INTEL)

    @property
    def platform(self) -> str:
        """The TPM is what signs."""
        return "tpm"

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        """A TPM's quote, and the hardware's report on the paravisor that holds it."""
        measured = _image().tpm
        assert measured is not None
        golden = measured.golden[0].pcrs
        values = {number: bytes(32) for number in range(24)} | {
            number: next(iter(each)) for number, each in measured.accepted().items()} | {
            int(name): bytes.fromhex(value) for name, value in golden.items()} | {
            15: policy_pcr(self.policy_sha384)} | self.pcrs
        message = fake_tpm.quote(values, nonce=container.qualifying_data(report_data))
        bound = hashlib.sha256(RUNTIME).digest() + bytes(32)
        said = {"report_data": bound, "mr_td" if self.tdx else "measurement": PARAVISOR, **self.fields}
        hardware = bytes(1184) if self.tdx else self.amd.report(**{"id_key": ID_KEY, **said})
        report = (b"HCLA" + bytes(28) + hardware + bytes(8)
                  + struct.pack("<III", 4 if self.tdx else 2, 1, len(RUNTIME)) + RUNTIME)
        evidence = TpmEvidence(message, fake_tpm.sign(message), fake_tpm.public(),
                               b"".join(value for _, value in sorted(values.items())), azure_report=report,
                               td_quote=self.intel.quote(**said) if self.tdx else None)
        return ReportWithCollateral(evidence.to_bytes(), tuple(
            each.public_bytes(Encoding.DER) for each in (self.amd.leaf, self.amd.ask, self.amd.ark)))


def _policy(folder: Path, azure: str | None = f"{LISTED}\n {SOURCE}", rest: str = "smt = true\n") -> Path:
    folder.mkdir(exist_ok=True)
    snp = 'sev_snp {\n products = ["milan"]\n }'
    block = "" if azure is None else f"azure {{\n {azure}\n }}\n"
    path = fake.write_policy(folder, "tpm", evidence=f"{rest}{block}{snp}")
    path.write_text(path.read_text().replace("schema = 1", "schema = 2"))
    return path


def _verdict(folder: Path, policy: Path, question: Question = QUESTION, *, key_bound: bool = False,
             **machine: Any) -> Verdict:
    source = AzureMachine(load(policy).digest, **machine)
    amd, intel = source.amd, source.intel
    crls = [x509.load_der_x509_crl(amd.crl().public_bytes(Encoding.DER))] if source.revocation else []
    known = Collateral(documents=intel.collateral().documents, crls=crls)
    roots = Roots(amd=amd.roots, intel=intel.pins["root"], intel_der=intel.pins["root_der"])
    evidence = fake.attestor(source, load(policy), spki_sha256=bytes(32)).attest(bytes(32)).to_json()
    reference = fake.verifier(policy, roots=roots, known=_image(), collateral=known, key_bound=key_bound).reference
    return judge.judge(evidence, reference, question)


def _named(verdict: Verdict, rule: str) -> Finding:
    return next(each for each in verdict.findings if each.rule == rule)


def _failing(verdict: Verdict) -> list[str]:
    return [each.rule for each in verdict.findings if each.outcome == "fails"]


@pytest.mark.parametrize("machine", [{}, {"tdx": True}], ids=["snp", "tdx"])
def test_a_named_paravisor_is_verified_by_its_name(tmp_path: Path, machine: dict[str, Any]) -> None:
    """Hardware, paravisor, registers and policy hold: exit 0, and the first line says who is trusted."""
    verdict = _verdict(tmp_path, _policy(tmp_path), **machine)
    assert ("verified", 0) == (verdict.status, verdict.exit_code), verdict
    assert verdict.reason.endswith("; Microsoft's paravisor trusted")
    assert "https://example.org/paravisors" in _named(verdict, "paravisor").detail
    assert "holds" == _named(verdict, "ak-bound-in-hardware").outcome
    assert "not checked" == _named(verdict, "paravisor-report").outcome  # it has no nonce


@pytest.mark.parametrize(("key_bound", "code", "status"), [(False, 6, "verified, to a key"), (True, 0, "verified")])
def test_evidence_of_a_key_is_as_on_other_hardware(tmp_path: Path, key_bound: bool, code: int, status: str) -> None:
    """Evidence that names no session of a connection with one: 6 as on SEV-SNP, unless the verifier takes it."""
    policy = _policy(tmp_path)
    policy.write_text(policy.read_text().replace("service {", 'service {\n session_binding = "key"\n', 1))
    verdict = _verdict(tmp_path, policy, replace(QUESTION, session=b"\7" * 32), key_bound=key_bound)
    assert (code, status, "not checked") == (verdict.exit_code, verdict.status, _named(verdict, "session").outcome)
    assert verdict.reason.endswith("; Microsoft's paravisor trusted")


def test_no_list_trusts_no_paravisor(tmp_path: Path) -> None:
    """Without the block a guest on Azure is as any with a TPM of its host's: never exit 0."""
    verdict = _verdict(tmp_path, _policy(tmp_path, None))
    assert (2, "unchecked-ak-origin") == (verdict.exit_code, verdict.code)
    assert "paravisor" not in {each.rule for each in verdict.findings}


@pytest.mark.parametrize(("azure", "machine", "failing"), [
    (LISTED, {"fields": {"measurement": bytes(47) + b"\1"}}, ["paravisor"]),
    (LISTED, {"tdx": True, "fields": {"mr_td": bytes(47) + b"\1"}}, ["paravisor"]),
    (f"{LISTED}\n {SIGNED}", {"fields": {"id_key": bytes(47) + b"\1"}}, ["paravisor"]),
    (f"{LISTED}\n {SIGNED}", {"tdx": True}, ["paravisor"]),
    (f"{LISTED}\n {SIGNED}", {"fields": {"id_key": bytes(48)}}, ["paravisor"]),
    (LISTED, {"fields": {"vmpl": 2}}, ["paravisor"]),
    (LISTED, {"fields": {"policy": 1 << 17 | 1 << 19}}, ["debug"]),
    (LISTED, {"tdx": True, "fields": {"attributes": 1 << 28 | 1}}, ["debug"]),
    (LISTED, {"pcrs": {11: bytes(32)}}, ["pcr11", "measurement"]),
    (LISTED, {"pcrs": {0: bytes(32)}}, ["golden-pcrs", "measurement"]),
    (LISTED, {"pcrs": {15: bytes(32)}}, ["pcr15", "measurement"]),
], ids=range(11))
def test_each_part_is_judged(tmp_path: Path, azure: str, machine: dict[str, Any], failing: list[str]) -> None:
    """Another paravisor or signer, a report of the guest's own level, debug, and each register: by its name."""
    verdict = _verdict(tmp_path, _policy(tmp_path, f"{azure}\n {SOURCE}"), **machine)
    assert (3, set(failing)) == (verdict.exit_code, set(_failing(verdict))), verdict


def test_hyper_threading_fails_unless_the_policy_takes_it(tmp_path: Path) -> None:
    """As with any report of AMD's; clouds have it on."""
    verdict = _verdict(tmp_path, _policy(tmp_path, rest=""), fields={"policy": 1 << 17 | 1 << 16, "platform": 1})
    assert ["smt"] == _failing(verdict)


def test_a_key_vouches_for_no_paravisor(tmp_path: Path) -> None:
    """Microsoft's key signs guests without a paravisor, too, whose own reports at VMPL 0 name any key of a TPM. So a
    measurement is always asked for, and HOST_DATA is that of no such guest."""
    with pytest.raises(ApplianceError, match="paravisor_measurements"):
        load(_policy(tmp_path, f"{SIGNED}\n {SOURCE}"))
    both = _policy(tmp_path, f"{LISTED}\n {SIGNED}\n {SOURCE}")
    assert 0 == _verdict(tmp_path, both).exit_code
    for fields in ({"measurement": b"\x55" * 48}, {"host_data": b"\x66" * 32}):
        verdict = _verdict(tmp_path, both, fields=fields)
        assert (3, ["paravisor"]) == (verdict.exit_code, _failing(verdict)), verdict


def test_without_revocation_lists_nothing_is_verified(tmp_path: Path) -> None:
    """AMD's list is needed, as for a report that comes by itself."""
    verdict = _verdict(tmp_path, _policy(tmp_path), revocation=False)
    assert "not checked" == _named(verdict, "paravisor").outcome
    assert verdict.exit_code in (2, 4)


def test_a_quote_of_another_guest_is_forged(tmp_path: Path) -> None:
    """The TD quote beside the report names other runtime data."""
    verdict = _verdict(tmp_path, _policy(tmp_path), tdx=True, fields={"report_data": bytes(64)})
    assert (1, "azure-runtime-data") == (verdict.exit_code, verdict.code)


@pytest.mark.parametrize(("azure", "says"), [
    (SOURCE, "paravisor_measurements"), (f"paravisor_measurements = []\n {SOURCE}", "0 items"), (LISTED, "source"),
    (f"{LISTED}\n {SOURCE}\n other = 1", "other")])
def test_a_list_names_paravisors_and_where_they_are_from(tmp_path: Path, azure: str, says: str) -> None:
    """An empty block, one without a source, and a field that nobody knows."""
    with pytest.raises(ApplianceError, match=says):
        load(_policy(tmp_path, azure))


def test_a_list_is_for_a_tpms_platform(tmp_path: Path) -> None:
    """Beside another platform it would decide nothing."""
    path = _policy(tmp_path)
    path.write_text(path.read_text().replace('["tpm"]', '["sev-snp"]'))
    with pytest.raises(ApplianceError, match="platforms are others"):
        load(path)


def test_a_container_with_a_td_quote_is_of_version_2() -> None:
    """Version 1 has no such record, and version 2 has no other sense than to carry it."""
    machine = AzureMachine(bytes(48), tdx=True)
    data = machine.collect(bytes(64)).report
    assert (2, data) == (data[7], container.parse(data).to_bytes())
    old = AzureMachine(bytes(48)).collect(bytes(64)).report
    assert (1, old) == (old[7], container.parse(old).to_bytes())
    for changed in (data[:7] + b"\1" + data[8:], old[:7] + b"\2" + old[8:]):
        with pytest.raises(MalformedEvidenceError):
            container.parse(changed)
    claims = origin.verify(data, bytes(64), Collateral(documents=machine.intel.collateral().documents), at=NOW,
                           roots=Roots(intel=machine.intel.pins["root"]))
    assert PARAVISOR == claims.bound_by.quote.body.mr_td  # type: ignore[union-attr]
    assert json.loads(RUNTIME)["keys"][0]["kid"] == "HCLAkPub"


def _service(answer: bytes) -> tuple[tuple[str, int], list[bytes]]:
    """A quoting service on the loopback that answers one request, and what it was sent."""
    server, seen = socket.create_server(("127.0.0.1", 0)), []

    def serve() -> None:
        connection, _ = server.accept()
        with connection, server:
            request = b""
            while b"\r\n\r\n" not in request or len(request.partition(b"\r\n\r\n")[2]) < int(
                    request.lower().partition(b"content-length:")[2].split(b"\r\n")[0]):
                request += connection.recv(65536)
            seen.append(request)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname(), seen


def _answer(value: object, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n\r\n" + json.dumps(value).encode()


def test_the_hosts_service_quotes_the_td_report() -> None:
    """It is sent the TDREPORT of the Azure report, and gives what is carried as it is."""
    report = b"HCLA" + bytes(28) + bytes(range(256)) * 4 + bytes(160) + bytes(8) + struct.pack("<II", 4, 1)
    quote = envelopes.INTEL.quote()
    place, seen = _service(_answer({"quote": envelopes.b64url(quote)}))
    assert quote == td_quote.of(report, place)
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /acc/tdquote HTTP/1.0\r\n")
    assert bytes(range(256)) * 4 == base64.urlsafe_b64decode(json.loads(body)["report"] + "==")


@pytest.mark.parametrize("answer", [
    b"", _answer({"quote": "BAAC"}, b"500 No"), _answer({"quote": "*"}), _answer({"quote": 1}), _answer([]),
    _answer({}), _answer({"quote": ""}), _answer({"quote": "A" * (1 << 15)}),
    b"HTTP/1.1 200 OK\r\n\r\n{", b"\xff" * 99])
def test_other_answers_of_the_service_are_no_quote(answer: bytes) -> None:
    """Errors, other types, too much, noise: the evidence is then without a quote."""
    report = b"HCLA" + bytes(28 + 1184 + 8)
    place, _ = _service(answer)
    assert None is td_quote.of(report + struct.pack("<II", 4, 1), place)


def test_a_service_that_drips_is_waited_for_no_longer() -> None:
    """One deadline for the whole answer, however often a byte comes: a boot does not stall."""
    server, over = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def drip() -> None:
        connection, _ = server.accept()
        with server, connection, contextlib.suppress(OSError):
            while not over.wait(0.02):
                connection.sendall(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    asked = threading.Thread(target=td_quote.of, daemon=True, args=(
        b"HCLA" + bytes(28 + 1184 + 8) + struct.pack("<II", 4, 1), server.getsockname(), 0.5))
    asked.start()
    asked.join(30)
    assert not asked.is_alive()
    over.set()
    thread.join()


def test_no_service_is_asked_for_other_hardware() -> None:
    """An SEV-SNP report is whole; where nothing listens there is no quote."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
    assert None is td_quote.of(b"HCLA" + bytes(1220) + struct.pack("<II", 2, 1), place)
    assert None is td_quote.of(b"HCLA" + bytes(1220) + struct.pack("<II", 4, 1), place)
