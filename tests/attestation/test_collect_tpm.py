"""TPM evidence from a real (software) TPM, judged by tpm2-tools; and its container, which has exactly one form."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from appliance.attestation import binding
from appliance.attestation.case.reading import parse
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.collect.collect import provider
from appliance.attestation.collector import Interfaces
from appliance.attestation.evidence import Evidence
from appliance.attestation.judge import verify
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm import container
from appliance.attestation.tpm.chip import client as tpm_client
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.container import TpmEvidence
from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509 import walks
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError
from tests.fuzz import collect_fuzz, driver
from tests.support import fake_tpm, swtpm
from tests.support.fake_tpm import NOW

POLICY, NONCE, DATA = b"\x07" * 48, bytes(range(32)), bytes(range(64))


@pytest.fixture(scope="module")
def tpm_path() -> Iterator[Path]:
    """A TPM with an endorsement key certificate."""
    with swtpm.running(manufactured=True) as path:
        yield path


def _extend(tpm: Tpm, pcr: int, digest: bytes) -> None:
    tpm.require(tpm_client.PCR_EXTEND, (pcr,), struct.pack(">IH", 1, 0x000B) + digest)


def _report(tpm_path: Path, folder: Path) -> TpmEvidence:
    """Evidence by the TPM, which answers DATA; whatever happens, the TPM is free for others afterwards."""
    with contextlib.closing(TpmProvider(tpm_path, folder / "none")) as source:
        return container.parse(source.report(DATA))


def test_tpm2_tools_accept_our_quote(tpm_path: Path, tmp_path: Path) -> None:
    """Our client's quote holds for tpm2_checkquote with the qualifying data, and with no other."""
    swtpm.tpm2_tools("tpm2_checkquote")
    evidence = _report(tpm_path, tmp_path)
    key = tpm_verify.load_key(evidence.key)
    assert key.area is not None
    assert key.area.attests
    pem = key.key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    said = {"public": pem, "message": evidence.quote, "signature": evidence.signature}
    data = container.qualifying_data(DATA)
    assert data == hashlib.sha256(b"appliance/tpm-quote/v1\n" + DATA).digest()
    assert swtpm.checkquote(tmp_path, **said, data=data)
    assert not swtpm.checkquote(tmp_path, **said, data=bytes(32))


def test_the_attestation_key_is_the_same_after_a_restart(tpm_path: Path, tmp_path: Path) -> None:
    """Our own key follows from the endorsement seed, so that a verifier may know it by itself."""
    keys = set()
    for _ in range(2):
        keys.add(_report(tpm_path, tmp_path).key)
    assert 1 == len(keys)


def test_registers_are_read_and_quoted_as_they_are(tpm_path: Path, tmp_path: Path) -> None:
    """An extended register shows in the evidence, by the TCG's own formula; the endorsement certificate is carried."""
    digest = hashlib.sha256(b"event").digest()
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        before = tpm_device.read_pcrs(tpm)
        assert list(range(24)) == list(before)
        _extend(tpm, 16, digest)
    evidence = _report(tpm_path, tmp_path)
    assert {**before, 16: hashlib.sha256(before[16] + digest).digest()} == evidence.values()["sha256"]
    assert evidence.ek_certificate is not None
    assert "TPM2B" not in str(walks.load(evidence.ek_certificate, "EK")[0].subject)
    assert evidence.log is None


@pytest.mark.parametrize(("measured", "explained"), [(b"kernel", {9: 0}), (b"another", {})])
def test_an_event_log_is_carried_and_replayed(tpm_path: Path, tmp_path: Path, measured: bytes,
                                              explained: dict[int, int]) -> None:
    """A log that gives the quoted values explains them; one that does not explains none, and the quote stands."""
    with contextlib.closing(Tpm(tpm_path)) as tpm:
        _extend(tpm, 9, hashlib.sha256(b"kernel").digest())
    path = tmp_path / "log"
    path.write_bytes(fake_tpm.event_log([(9, 1, measured)]))
    claims = verify.verify(parse(_attest(Interfaces(tpm=tpm_path, event_log=path))), at=NOW).hardware
    assert isinstance(claims, TpmClaims)
    assert claims.log is not None
    assert explained == claims.log.explained["sha256"]
    assert (9 in claims.log.unexplained["sha256"]) == (not explained)


def _attest(places: Interfaces) -> bytes:
    source = provider(("tpm",), bytes(32), places)
    state = BoundFacts(POLICY, b"\x02" * 48, binding.Build(version="0.1.0"))
    with contextlib.closing(source):  # type: ignore[type-var]
        return Attestor(source, state).attest(NONCE).to_json()


def test_tpm_evidence_verifies_and_is_never_genuine(tpm_path: Path, tmp_path: Path) -> None:
    """Whole: statement, nonce and registers hold; the verdict is not "genuine", since the TPM may be the host's."""
    places = Interfaces(tpm=tpm_path, event_log=tmp_path / "none")
    data = _attest(places)
    claims = verify.verify(parse(data), at=NOW)
    verdict = validate(claims, Expectations(platforms=frozenset({"tpm"}), nonce=NONCE, policy_sha384=POLICY, at=NOW))
    assert (True, False) == (verdict.met, verdict.genuine)
    outcomes = {finding.rule: finding.outcome for finding in verdict.findings}
    assert ("not checked", "holds", "not checked") == (
        outcomes["launch-policy"], outcomes["pcrs-covered"], outcomes["ak-bound-in-hardware"])
    found = examine(Material(data, tmp_path), at=NOW)
    assert ("cannot tell", "tpm-ak-origin") == (found.verdict, found.code)
    assert any("HOST TRUSTED" in warning for warning in found.warnings)
    assert any("EK CERTIFICATE: not proof" in warning for warning in found.warnings)
    assert isinstance(claims.hardware, tpm_verify.TpmClaims)
    assert ("AK, SHA-256", hashlib.sha256(claims.hardware.key.spki()).hexdigest()) in found.claims["keys"]
    for named, verdict in ((claims.hardware.key.spki(), "genuine"), (fake_tpm.pem(), "not genuine")):
        (tmp_path / "ak").write_bytes(named)
        assert verdict == examine(Material(data, tmp_path, key=tmp_path / "ak"), at=NOW).verdict


def _fake(**changes: object) -> TpmEvidence:
    """Evidence by a key in software, which answers DATA."""
    message = fake_tpm.quote(nonce=container.qualifying_data(DATA))
    parts = {"quote": message, "signature": fake_tpm.sign(message), "key": fake_tpm.public(),
             "pcrs": b"".join(fake_tpm.PCRS.values())}
    return TpmEvidence(**{**parts, **changes})  # type: ignore[arg-type]


def test_a_certified_key_leads_to_its_root() -> None:
    """The attestation key's certificate is followed to a pinned root; a certificate for another key is forged."""
    from appliance.attestation.tpm.judging import origin as tpm_origin
    from appliance.attestation.x509.judging.collateral import Collateral

    root = fake_tpm.certificate(fake_tpm.rsa_key("root"), "Root", "Root", fake_tpm.rsa_key("root"), ca=True)
    der = serialization.Encoding.DER
    ours = fake_tpm.certificate(fake_tpm.rsa_key("ak"), "AK", "Root", fake_tpm.rsa_key("root")).public_bytes(der)
    other = fake_tpm.certificate(fake_tpm.rsa_key("b"), "AK", "Root", fake_tpm.rsa_key("root")).public_bytes(der)
    roots = Roots(tpm={walks.fingerprint(root): "A Cloud"})
    collateral = Collateral(certificates=walks.load(root.public_bytes(der), "root"))
    claims = tpm_origin.verify(_fake(key_certificate=ours).to_bytes(), DATA, collateral, at=NOW, roots=roots)
    assert "A Cloud" == claims.root
    for roots_at_hand, at_hand in ((Roots(), collateral), (roots, Collateral())):
        assert None is tpm_origin.verify(
            _fake(key_certificate=ours).to_bytes(), DATA, at_hand, at=NOW, roots=roots_at_hand).root
    with pytest.raises(ForgedEvidenceError, match="another key"):
        tpm_origin.verify(_fake(key_certificate=other).to_bytes(), DATA, collateral, at=NOW, roots=roots)


def test_the_container_has_one_form() -> None:
    """Records in order, each once; what is read and written again is the same bytes."""
    data = _fake(log=b"log", ek_certificate=b"\x30").to_bytes()
    assert data == container.parse(data).to_bytes()
    assert (None, b"\x30") == (container.parse(data).without_log().log, container.parse(data).ek_certificate)


def _record(number: int, content: bytes) -> bytes:
    return struct.pack(">BI", number, len(content)) + content


HEAD, FOUR = container.MAGIC + b"\x01", b"".join(_record(number, b"x") for number in range(1, 5))


@pytest.mark.parametrize("data", [
    b"", HEAD[:5], container.MAGIC + b"\x02" + FOUR, HEAD, HEAD + _record(1, b"x"), HEAD + FOUR + _record(4, b"x"),
    HEAD + _record(2, b"x") + _record(1, b"x"), HEAD + FOUR + _record(9, b"x"), HEAD + FOUR + _record(0, b"x"),
    HEAD + FOUR + _record(5, b""), HEAD + FOUR + b"\x05\xff\xff\xff\xff", HEAD + FOUR + _record(6, bytes(8193)),
])
def test_other_forms_are_refused(data: bytes) -> None:
    """Anything else is malformed, or of a version that is named."""
    with pytest.raises(AttestationError):
        container.parse(data)


def test_values_are_just_the_quoted_ones() -> None:
    """Too few or too many bytes of PCR values, or a bank that stands twice, are malformed."""
    values = b"".join(fake_tpm.PCRS.values())
    assert fake_tpm.PCRS == _fake().values()["sha256"]
    for pcrs in (values[:-1], values + b"\0", b""):
        with pytest.raises(MalformedEvidenceError):
            _fake(pcrs=pcrs).values()


def test_every_flipped_byte_of_evidence_is_refused(tpm_path: Path, tmp_path: Path) -> None:
    """No byte of a container can change, but in the parts that nothing signs: the certificate and the event log."""
    raw = _report(tpm_path, tmp_path)
    data = TpmEvidence(raw.quote, raw.signature, raw.key, raw.pcrs).to_bytes()
    from appliance.attestation.tpm.judging import origin as tpm_origin
    from appliance.attestation.x509.judging.collateral import Collateral

    accepted = []
    for at in range(len(data)):
        flipped = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1:]
        try:
            tpm_origin.verify(flipped, DATA, Collateral(), at=NOW)
        except AttestationError:
            continue
        accepted.append(at)
    key_at = data.index(raw.key)
    # Of the key's public area the template's "unique" aside, attributes that change nothing, and its empty policy:
    # a flipped byte there is another key's name, which nothing here binds. It never changes the key or what it signs.
    assert all(key_at <= at < key_at + len(raw.key) for at in accepted)
    assert len(accepted) <= 8


def _serve(path: Path, answer: Callable[[bytes], bytes]) -> threading.Thread:
    """A TPM that answers whatever a test wants, once."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()

    def run() -> None:
        with server, server.accept()[0] as connection:
            connection.sendall(answer(connection.recv(4096)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("answer", [
    b"\x80\x01\x00\x00\x00\x0c" + bytes(4), b"\x80\x01\x00\x00\x00\x09\0\0\0\0", b"\x12\x34\x00\x00\x00\x0a" + bytes(4),
    b"\x80\x01\xff\xff\xff\xff" + bytes(5000), b"\x80\x01\x00\x00\x00\x0a\x00\x00\x01\x01",
    b"\x80\x02\x00\x00\x00\x0e" + bytes(4) + b"\xff\xff\xff\xff",
])
def test_a_lying_tpm_is_refused(tmp_path: Path, answer: bytes) -> None:
    """Answers that are cut off, too long, of odd form, or refusals, end in our error and in no other."""
    path = Path(os.path.relpath(tmp_path / "tpm"))
    _serve(path, lambda command: answer)
    with contextlib.closing(Tpm(path)) as tpm, pytest.raises(AttestationError):
        tpm_device.read_pcrs(tpm)


def test_evidence_of_the_wrong_platform_is_refused() -> None:
    """A TPM's container in evidence that calls itself simulated, and the other way round, is malformed."""
    value = Evidence(platform="tpm", notice=None, report="AAAA", statement={}, proof={"nonce": "00" * 16, "index": 0,
                                                                                         "path": ()})
    assert b"\0\0\0" == value.report_bytes()
    with pytest.raises(MalformedEvidenceError):
        container.parse(value.report_bytes())
    assert not tpm_abi.MAGIC.startswith(b"TPM")


def test_interfaces_survive_mutations() -> None:
    """Five thousand mutations of a TPM's answers, tables and reports raise nothing but attestation errors."""
    _, finding = driver.run(collect_fuzz.fuzz, collect_fuzz.seeds(), seconds=0, seed=1, least=5000)
    assert None is finding
