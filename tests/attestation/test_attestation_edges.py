"""The edges of evidence: verdicts that must not be met, the last byte of each limit, and who may be called genuine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation import binding, merkle
from appliance.attestation.case import event_log as tpm_log
from appliance.attestation.case import reading
from appliance.attestation.case.reading import MAX_EVIDENCE_BYTES, parse
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.evidence import Evidence
from appliance.attestation.judge.validate import Finding, Judgement
from appliance.attestation.simulated import abi as simulated_abi
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm.judging import files as tpm_files
from appliance.attestation.x509 import walks
from appliance.codec import der
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, RejectedEvidenceError, UncheckedEvidenceError
from tests.support import fake_tpm

POLICY = hashlib.sha384(b"policy").digest()
NONCE = bytes(range(32))
AUDIT_KEY = bytes(range(32, 64))


@pytest.fixture(scope="module")
def attestor() -> Attestor:
    """An attestor of the simulated platform, with an audit key and no model."""
    state = BoundFacts(POLICY, POLICY, binding.Build(version="1"), audit_key_ed25519=AUDIT_KEY)
    return Attestor(SimulatedProvider(bytes(32)), state)


@pytest.mark.parametrize(("outcomes", "platform", "met", "genuine"), [
    (["holds", "not checked"], "sev-snp", True, True),
    (["holds", "not checked"], "simulated", True, False),
    (["holds", "fails"], "sev-snp", False, False),
    (["fails", "holds"], "tdx", False, False),
    (["fails"], "simulated", False, False),
])
def test_a_verdict_is_met_by_no_failure_and_genuine_by_hardware(
        outcomes: list[Any], platform: str, met: bool, genuine: bool) -> None:
    """One failed rule is enough to refuse, and the simulated platform is genuine whatever holds never."""
    verdict = Judgement(tuple(Finding(f"rule-{number}", outcome) for number, outcome in enumerate(outcomes)), platform)
    assert (met, genuine) == (verdict.met, verdict.genuine)
    if met:
        verdict.require()
    else:
        with pytest.raises(RejectedEvidenceError):
            verdict.require()


@pytest.mark.parametrize("report", ["QR==", "QQ==QQ==", "Q", ""])
def test_report_bytes_have_one_text(attestor: Attestor, report: str) -> None:
    """A report whose base64 is not the one form of its bytes is refused before any of it is read."""
    evidence = attestor.attest(NONCE).model_copy(update={"report": report})
    with pytest.raises(MalformedEvidenceError, match="report is not base64"):
        evidence.report_bytes()


def _padded(evidence: Evidence, size: int) -> bytes:
    data = evidence.to_json()
    return data[:-1] + b" " * (size - len(data)) + b"}"


def test_evidence_may_be_a_mebibyte_and_no_byte_more(attestor: Attestor) -> None:
    """The limit on evidence is 2^20 bytes, that many included."""
    evidence = attestor.attest(NONCE)
    assert 1 << 20 == MAX_EVIDENCE_BYTES
    assert evidence == parse(_padded(evidence, 1 << 20))
    with pytest.raises(MalformedEvidenceError, match="at most 1048576"):
        parse(_padded(evidence, (1 << 20) + 1))


@pytest.mark.parametrize(("path", "wrongs"), [
    (("platform",), ["", "sgx", "Simulated", None, 7]),
    (("notice",), ["x" * 257, 7, ["x"]]),
    (("report",), ["A" * ((1 << 19) + 4), "QQ==\n", "-_==", "QQ===", 7, None]),
    (("statement",), ["x", ["x"], None]),
    (("proof", "nonce"), ["ab" * 15, "ab" * 65, "AB" * 16, "ab" * 16 + "a", "zz" * 16, 7]),
    (("proof", "index"), [-1, 1 << 16, "0", True, None]),
    (("proof", "path"), [["ab" * 31], ["AB" * 32], ["ab" * 32] * 17, "", None]),
    (("more",), [None]),
    (("proof", "more"), [None]),
])
def test_every_part_of_evidence_has_one_form(attestor: Attestor, path: tuple[str, ...], wrongs: list[Any]) -> None:
    """A part of another type, spelling or length is refused and never coerced, as is a part too many."""
    good = attestor.attest(NONCE).to_json()
    for wrong in wrongs:
        changed = json.loads(good)
        part = changed
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = wrong
        with pytest.raises(MalformedEvidenceError):
            parse(json.dumps(changed).encode())


@pytest.mark.parametrize(("path", "value"), [
    (("notice",), "x" * 256), (("report",), "A" * (1 << 17)), (("proof", "nonce"), "ab" * 64),
    (("proof", "index"), 65535), (("proof", "path"), ["ab" * 32] * 16)])
def test_the_largest_part_of_evidence_is_read(attestor: Attestor, path: tuple[str, ...], value: Any) -> None:
    """The last value within each limit passes the format's check; whether it proves anything is asked later."""
    changed = json.loads(attestor.attest(NONCE).to_json())
    part = changed if len(path) == 1 else changed[path[0]]
    part[path[-1]] = value
    assert changed == json.loads(parse(json.dumps(changed).encode()).to_json())


def test_the_audit_key_is_bound(attestor: Attestor) -> None:
    """The statement carries the audit log's key as it was given."""
    assert AUDIT_KEY.hex() == attestor.statement(binding.Nonces.over([NONCE])).audit_key_ed25519
    assert "simulated" == attestor.platform


@pytest.mark.parametrize(("size", "good"), [(15, False), (16, True), (64, True), (65, False)])
def test_nonces_are_16_to_64_bytes(attestor: Attestor, size: int, good: bool) -> None:
    """The first and last length that pass, and those beside them, raw and as text."""
    nonce = bytes(range(200, 200 + min(size, 32))) + bytes(max(0, size - 32))
    for given in (nonce, nonce.hex()):
        if good:
            assert nonce.hex() == attestor.attest(given).proof.nonce
            continue
        with pytest.raises(MalformedEvidenceError) as caught:
            attestor.attest(given)
        assert caught.value.code in {"nonce-length", "nonce-encoding"}


@pytest.mark.parametrize(("place", "size"), [("report_data", 64), ("host_data", 32), ("public_key", 32),
                                             ("signature", 64)])
def test_each_part_of_a_simulated_report_is_read_where_the_format_puts_it(place: str, size: int) -> None:
    """The parts follow each other after 32 bytes of magic and 4 of version, by docs/formats/report-data.md."""
    report = bytearray(simulated_abi.unsigned(bytes(64), bytes(32), bytes(32)) + bytes(64))
    at = {"report_data": 36, "host_data": 100, "public_key": 132, "signature": 164}[place]
    content = bytes(range(1, size + 1))
    report[at:at + size] = content
    parsed = simulated_abi.parse(bytes(report))
    assert content == getattr(parsed, place)
    assert bytes(report[:164]) == parsed.signed
    for other in {"report_data", "host_data", "public_key", "signature"} - {place}:
        assert not any(getattr(parsed, other))


def test_a_tree_holds_65536_leaves() -> None:
    """The largest tree is made and its last leaf proves itself; the limit is the documented one."""
    tree = merkle.HashTree([b""] * 65535 + [b"last"])
    assert 65536 == tree.size
    assert merkle.included(b"last", 65535, 65536, tree.proof(65535), tree.root)
    assert not merkle.included(b"last", 65536, 65537, tree.proof(65535), tree.root)


@pytest.mark.parametrize(("count", "good"), [(256, True), (257, False)])
def test_a_statement_names_at_most_256_models(attestor: Attestor, count: int, good: bool) -> None:
    """The last number of models that a statement may name, and the first that it may not."""
    statement = attestor.statement(binding.Nonces.over([NONCE])).model_dump(mode="json")
    statement["models"] = [{"name": f"m{number:03}", "sha256": "ab" * 32, "sealed_header_sha256": None}
                           for number in range(count)]
    if good:
        parsed = reading.parse_statement(statement)
        assert isinstance(parsed, binding.ServeStatement)
        assert count == len(parsed.models)
        assert 64 == len(binding.report_data(parsed))
        return
    with pytest.raises(MalformedEvidenceError, match="models"):
        reading.parse_statement(statement)


def test_the_notice_of_a_measured_boot() -> None:
    """Evidence of a virtual TPM says that its host is trusted; of the simulated platform, that it proves nothing."""
    class Measured(SimulatedProvider):
        platform = "tpm"

    for provider, said in ((Measured(bytes(32)), "HOST TRUSTED"), (SimulatedProvider(bytes(32)), "PROVES NOTHING")):
        evidence = Attestor(provider, BoundFacts(POLICY, POLICY, binding.Build(version="1"))).attest(NONCE)
        assert said in str(evidence.notice)


def test_the_signature_beside_a_quote(tmp_path: Path) -> None:
    """The one that is named as the quote, or else the only one; with two others there is none."""
    quote = tmp_path / "quote.msg"
    quote.write_bytes(tpm_abi.MAGIC)
    (tmp_path / "b.sig").write_bytes(b"b")
    assert b"b" == tpm_files.gather(quote).signature
    (tmp_path / "a.sig").write_bytes(b"a")
    with pytest.raises(UncheckedEvidenceError, match="no signature beside it"):
        tpm_files.gather(quote)
    (tmp_path / "quote.sig").write_bytes(b"own")
    assert b"own" == tpm_files.gather(quote).signature


def test_issuers_whose_key_fits_come_first() -> None:
    """Of two authorities of one name, the one that signed; of another name, none."""
    keys = [fake_tpm.ec_key(name) for name in ("one", "two")]
    ours, other = (fake_tpm.certificate(key, "CA", "CA", key, ca=True) for key in keys)
    stranger = fake_tpm.certificate(keys[0], "Stranger", "Stranger", keys[0], ca=True)
    child = fake_tpm.certificate(keys[1], "child", "CA", keys[0])
    assert ours == walks.issuer_of(child, [stranger, other, ours])
    assert ours == walks.issuer_of(child, [ours, other])
    assert None is walks.issuer_of(child, [stranger])
    with pytest.raises(ForgedEvidenceError, match="the signature is not by"):
        walks.issuer_of(child, [stranger, other])


def test_the_largest_event_log_is_read() -> None:
    """The last size within the limit; one byte more is refused before any of it is read."""
    log = fake_tpm.event_log([])
    whole = log + bytes(tpm_log.MAX_LOG_BYTES - len(log))
    assert tpm_log.parse(log) == tpm_log.parse(whole)
    with pytest.raises(MalformedEvidenceError, match="at most"):
        tpm_log.parse(whole + b"\0")


def test_the_algorithm_beside_a_signature_is_the_signed_one() -> None:
    """The copy beside the signature is not signed: another there is no certificate, and no revocation list."""
    leaf = fake_tpm.certificate(fake_tpm.rsa_key("ak"), "AK", "Root", fake_tpm.rsa_key("root"))
    data = leaf.public_bytes(Encoding.DER)
    algorithm = der.elements(der.only(data, der.SEQUENCE).content)[1].whole
    altered = bytearray(data)
    altered[data.rindex(algorithm) + 4] ^= 1
    assert (True, False) == (der.algorithm_is_signed(data), der.algorithm_is_signed(bytes(altered)))
