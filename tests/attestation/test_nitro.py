"""AWS NitroTPM: documents of the hypervisor, real and of the tests' own, and what a verdict makes of them."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from appliance.attestation.case import measurements
from appliance.attestation.case.record import Record
from appliance.attestation.collect import collect
from appliance.attestation.collector import Interfaces
from appliance.attestation.judge import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.measured import events
from appliance.attestation.measured.nitro import NITRO_PCRS
from appliance.attestation.nitro.collecting.collector import NitroProvider
from appliance.attestation.nitro.judging import abi, verify
from appliance.attestation.trust.roots import VENDORS
from appliance.boot.placement import bind
from appliance.client import judge
from appliance.client.judge import Question
from appliance.client.verdict import Verdict
from appliance.errors import ApplianceError, BootError, MalformedEvidenceError
from appliance.policy import load
from tests.support import envelopes, fake_nitro
from tests.support import fake_appliance as fake
from tests.support.fake_amd import NOW
from tests.support.fake_nitro import NULL, FakeNitro, NitroTpm, cbor
from tests.support.rows import document

GOLDEN = Path(__file__).parents[1] / "goldens/nitro/document.b64"
SIGNED_AT = datetime(2026, 2, 3, 10, 12, 2, tzinfo=UTC)  # as the document says: 1770113522437 ms
NITRO = FakeNitro()


def _examine(data: bytes, at: datetime = NOW, **options: Any) -> Record:
    roots = options.pop("roots", NITRO.roots)
    return examine.examine(Material(data, Path("x"), roots=roots, **options), at=at)


def _real() -> bytes:
    return base64.b64decode(GOLDEN.read_text())


def test_a_real_document_is_genuine_at_its_time() -> None:
    """AWS's own: its root is the pinned one, and what it says of the instance is shown."""
    outcome = _examine(_real(), SIGNED_AT, roots=VENDORS)
    assert ("genuine", True) == (outcome.verdict, outcome.reason.startswith("measured boot, AWS trusted")), outcome
    assert "the chain leads to the pinned root AWS Nitro Enclaves Root-G1" in outcome.proved
    claims = dict(outcome.claims["claims"])
    assert ("i-01cfb383223e42522-tpm0000000000000000", "1770113522437") == (claims["module_id"], claims["timestamp"])
    assert any(each.startswith("AWS TRUSTED") for each in outcome.warnings)
    later = _examine(_real(), SIGNED_AT + timedelta(hours=4), roots=VENDORS)
    assert ("cannot tell", "certificate-expired") == (later.verdict, later.code)
    nonce = bytes.fromhex("230af3f7c0ec43ccf99a4cab47ac61469a36ea74b1e79740fdf8ccfc8f56161a")
    assert "the document answers the nonce" in _examine(_real(), SIGNED_AT, roots=VENDORS, nonce=nonce).proved
    assert "nonce-other" == _examine(_real(), SIGNED_AT, roots=VENDORS, nonce=bytes(32)).code


def test_a_real_machine_measures_as_predicted() -> None:
    """PCR 2, 3 and 6 take a separator, and PCR 7 the variables of a machine without keys of Secure Boot."""
    found = abi.parse(_real()).pcrs
    separator = events.extend([hashlib.sha384(bytes(4)).digest()], "sha384")
    assert [separator] * 3 == [found[number] for number in (2, 3, 6)]
    assert events.secure_boot_off("sha384") == found[7]


def test_each_byte_is_signed() -> None:
    """A flipped bit anywhere: never genuine. Of the real document every seventh byte, of ours all that are not in
    certificates."""
    for data, at, roots in ((_real(), SIGNED_AT, VENDORS), (NITRO.document(), NOW, NITRO.roots)):
        for place in range(0, len(data), 41):
            changed = data[:place] + bytes((data[place] ^ 1,)) + data[place + 1:]
            assert "genuine" != _examine(changed, at, roots=roots).verdict, place


@pytest.mark.parametrize(("data", "verdict", "code"), [
    (NITRO.document(), "genuine", ""),
    (NITRO.sign(cbor(NITRO.members()), tag=True), "genuine", ""),
    (FakeNitro().document(), "cannot tell", "evidence-unchecked"),
    (NITRO.document(certificate=FakeNitro().members()["certificate"]), "not genuine", "report-signature"),
    (NITRO.document(cabundle=FakeNitro().members()["cabundle"]), "not genuine", "chain-signature"),
    (NITRO.document(cabundle=NITRO.members()["cabundle"][:1]), "cannot tell", "evidence-unchecked"),
    (NITRO.document(cabundle=[b"\x30\x03\x02\x01\x01"]), "not genuine", "evidence-malformed"),
    (NITRO.document(timestamp=int((NOW + timedelta(days=1)).timestamp() * 1000)), "not genuine", "chain-authority"),
    (NITRO.document(timestamp=1 << 63), "not genuine", "evidence-malformed"),
    (NITRO.document(digest="SHA256"), "cannot tell", "tpm-algorithm"),
    (NITRO.document(extra=b""), "not genuine", "evidence-malformed"),
    (NITRO.document(nonce=bytes(1025)), "not genuine", "evidence-malformed"),
    (NITRO.document({24: bytes(48)}), "not genuine", "evidence-malformed"),
    (NITRO.document({4: bytes(32)}), "not genuine", "evidence-malformed"),
    (NITRO.sign(cbor({**NITRO.members(), "module_id": NULL})), "not genuine", "evidence-malformed"),
    (NITRO.sign(cbor(NITRO.members()), unprotected={4: b"k"}), "not genuine", "evidence-malformed"),
    (NITRO.document() + b"\0", "not genuine", "evidence-malformed"),
    (NITRO.document()[:-1], "not genuine", "evidence-malformed"),
    (NITRO.sign(cbor({"pcrs": {0: bytes(48)}, "module_id": "i-0-enc0"})), "cannot tell", "evidence-enclave"),
    (NITRO.sign(b"\xbf" + cbor("a") + b"\xf6" + cbor("a") + b"\xf6\xff"), "not genuine", "evidence-malformed"),
], ids=range(20))
def test_a_document_is_what_aws_specifies(data: bytes, verdict: str, code: str) -> None:
    """Another hypervisor, stray or absent authorities, other members, sizes and times: each by its code."""
    outcome = _examine(data)
    assert (verdict, code) == (outcome.verdict, outcome.code), outcome


def test_a_document_in_dstacks_envelope_is_judged() -> None:
    """In SCALE, with what nobody judges behind it; a signature of somebody else stays one."""
    outcome = _examine(b"\x00\x04" + envelopes.sized(NITRO.document()) + b"\x00rest")
    assert ("genuine", "dstack attestation: AWS NitroTPM document") == (outcome.verdict, outcome.kind), outcome
    other = NITRO.document(certificate=FakeNitro().members()["certificate"])
    assert "report-signature" == _examine(b"\x00\x04" + envelopes.sized(other)).code


def test_only_a_certificate_for_signatures_signs() -> None:
    """An authority of AWS's is no hypervisor, and a key for other uses signs nothing."""
    for nitro in (FakeNitro(leaf_is_authority=True), FakeNitro(leaf_signs=False)):
        assert "chain-authority" == _examine(nitro.document(), roots=nitro.roots).code


def _prediction(pcrs: dict[int, bytes]) -> dict[str, Any]:
    return {"bank": "sha384", "pcrs": {str(number): [pcrs[number].hex()] for number in NITRO_PCRS}}


BOOTED = {**fake_nitro.RESET,
          **{number: hashlib.sha384(bytes((number,))).digest() for number in (2, 3, 4, 6, 7, 9, 11)}}
KNOWN = measurements.SourcedMeasurements.model_validate({**document([], []), "nitro": _prediction(BOOTED)})


def _policy(folder: Path, platform: str = "aws-nitrotpm", name: str = "hard") -> Path:
    folder.mkdir(exist_ok=True)
    path = fake.write_policy(folder, "tpm", evidence="")
    path.write_text(path.read_text().replace('["tpm"]', f'["{platform}"]').replace("schema = 1", "schema = 2").replace(
        '"hard"', f'"{name}"'))
    return path


def _machine(tmp_path: Path, tpm: NitroTpm) -> tuple[bytes, Path]:
    """The evidence of a machine that has booted under a policy, and the policy."""
    policy = _policy(tmp_path)
    with fake_nitro.listening(tpm) as device:
        provider = collect.provider(("aws-nitrotpm",), bytes(32), Interfaces(nitro=device))
        assert isinstance(provider, NitroProvider)
        assert "measured in PCR 15" == bind.bind(load(policy), provider)
        found = fake.attestor(provider, load(policy), spki_sha256=bytes(32)).attest(bytes(32)).to_json()
        provider.close()
    return found, policy


def _judged(evidence: bytes, policy: Path, known: measurements.Measurements | None = KNOWN) -> Verdict:
    reference = fake.verifier(policy, roots=NITRO.roots, known=known).reference
    return judge.judge(evidence, reference, Question("x", NOW, bytes(32), bytes(32)))


def test_a_machine_on_ec2_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    """Collected from a NitroTPM, bound to the policy in both banks, judged by its registers: AWS is trusted, exit 7."""
    tpm = NitroTpm(NITRO, BOOTED)
    evidence, policy = _machine(tmp_path, tpm)
    verdict = _judged(evidence, policy)
    assert ("measured boot, AWS trusted", 7) == (verdict.status, verdict.exit_code), verdict
    assert {"not checked"} == {each.outcome for each in verdict.findings if each.rule == "aws-trusted"}
    digest = load(policy).digest
    assert hashlib.sha384(bytes(48) + digest).digest() == tpm.banks[0x000C][15]
    assert any(tpm.banks[0x000B][15])
    assert tpm.nv is None
    with pytest.raises(ApplianceError) as caught:
        verdict.require()
    assert ("aws-trusted", True) == (caught.value.code, "--accept aws-trusted" in (caught.value.hint or ""))


def _failing(verdict: Verdict) -> set[str]:
    return {each.rule for each in verdict.findings if each.outcome == "fails"}


@pytest.mark.parametrize("number", NITRO_PCRS)
def test_each_register_tells_of_the_boot(tmp_path: Path, number: int) -> None:
    """Another value in any of them: the policy is not met, by that register's name."""
    booted = {**BOOTED, number: hashlib.sha384(b"other").digest()}
    verdict = _judged(*_machine(tmp_path, NitroTpm(NITRO, booted)))
    assert (3, {f"pcr{number}", "measurement"}) == (verdict.exit_code, _failing(verdict))


def test_a_register_tells_of_the_policy(tmp_path: Path) -> None:
    """Evidence of a machine under one policy, judged by another: PCR 15 says so, and not only the statement."""
    evidence, _ = _machine(tmp_path, NitroTpm(NITRO, BOOTED))
    verdict = _judged(evidence, _policy(tmp_path / "other", name="soft"))
    assert {"policy", "pcr15", "measurement"} == _failing(verdict)


def test_registers_that_are_not_in_the_evidence_fail(tmp_path: Path) -> None:
    """A document without them is no way around."""
    few = {number: value for number, value in BOOTED.items() if number in (0, 4, 15)}
    verdict = _judged(*_machine(tmp_path, NitroTpm(NITRO, few)))
    assert {"pcr2", "pcr11", "pcr13", "measurement"} <= _failing(verdict)


def test_without_registers_of_a_nitrotpm_nothing_is_told(tmp_path: Path) -> None:
    """Measurements of version 1, and of version 2 without them."""
    evidence, policy = _machine(tmp_path, NitroTpm(NITRO, BOOTED))
    for known in (fake.measured(), measurements.SourcedMeasurements.model_validate(document([], []))):
        verdict = _judged(evidence, policy, known)
        assert (2, "unchecked-measurement") == (verdict.exit_code, verdict.code), verdict


def test_a_policy_that_takes_tpms_takes_no_nitrotpm(tmp_path: Path) -> None:
    """AWS's word is asked for by name."""
    evidence, _ = _machine(tmp_path, NitroTpm(NITRO, BOOTED))
    assert "platform" in _failing(_judged(evidence, _policy(tmp_path / "other", "tpm")))


@pytest.mark.parametrize(("tpm", "code"), [
    (NitroTpm(NITRO, refuses=True), "nitro-absent"),
    (NitroTpm(NITRO, answer=b"\xa1\x65Error\x6fInvalidArgument"), "nitro-answer"),
    (NitroTpm(NITRO, answer=b"\xa1\x6bAttestation\xa1\x68document\x59\xff\xff"), "evidence-malformed"),
])
def test_answers_of_a_device_are_untrusted(tpm: NitroTpm, code: str) -> None:
    """A TPM of somebody else, an error of AWS's, a length beyond the buffer; the index is given back."""
    with fake_nitro.listening(tpm) as device:
        provider = NitroProvider(device)
        with pytest.raises(ApplianceError) as caught:
            provider.collect(bytes(64))
        assert (code, None) == (caught.value.code, tpm.nv)


def test_an_index_that_was_left_is_taken_again() -> None:
    """Of a process that ended between request and answer."""
    tpm = NitroTpm(NITRO)
    tpm.nv = bytearray(fake_nitro.BUFFER)
    with fake_nitro.listening(tpm) as device:
        report = NitroProvider(device).report(bytes(range(64)))
    assert bytes(range(64)) == verify.verify(report, at=NOW, root=NITRO.root).document.user_data


def test_a_register_that_something_else_extended_stops_the_boot(tmp_path: Path) -> None:
    """In the bank that AWS signs."""
    tpm = NitroTpm(NITRO)
    tpm.banks[0x000C][15] = bytes(47) + b"\1"
    policy = load(_policy(tmp_path))
    with fake_nitro.listening(tpm) as device, pytest.raises(BootError, match="PCR 15"):
        bind.bind(policy, NitroProvider(device))


def test_predicted_registers_are_those_of_the_format() -> None:
    """All of them, PCR 12 and 13 zero; others are refused."""
    log = [events.BootEvent(4, 4, "x", {"sha384": bytes(48)})]
    found = events.nitro(log)
    assert hashlib.sha384(bytes(96)).hexdigest() == found.pcrs["4"][0]
    whole = {**document([], []), "nitro": found.model_dump(mode="json")}
    for change in ({"4": None}, {"12": ["11" * 48]}, {"5": ["11" * 48]}):
        pcrs = {name: value for name, value in {**whole["nitro"]["pcrs"], **change}.items() if value is not None}
        with pytest.raises(MalformedEvidenceError):
            measurements.parse(json.dumps({**whole, "nitro": {"bank": "sha384", "pcrs": pcrs}}, sort_keys=True,
                                          separators=(",", ":")).encode())


def test_mutated_documents_raise_nothing_else() -> None:
    """1,000 of them."""
    rng, whole = random.Random(1), NITRO.document()
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            place = rng.randrange(len(data))
            data[place:place + rng.randrange(3)] = rng.randbytes(rng.randrange(3)) or struct.pack(">H", 0xBFFF)
        assert "genuine" != _examine(bytes(data)).verdict or bytes(data) == whole
