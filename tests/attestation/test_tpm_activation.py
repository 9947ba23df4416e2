"""Credential activation: that an attestation key is in the TPM whose endorsement key a maker certified.

tpm2-tools judge both halves against a software TPM; then the protocol, and each way to cheat at it by name.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.api.problems import RequestError
from appliance.attestation.binding import Build
from appliance.attestation.case.terms import EkRoots
from appliance.attestation.collect.release import ReleaseAttestor
from appliance.attestation.judge import collateral_folder
from appliance.attestation.judge.examine import examine
from appliance.attestation.judge.material import Material
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm import credential as tpm_credential
from appliance.attestation.tpm.chip import activate as tpm_activate
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.tpm.collecting.collector import TpmProvider
from appliance.attestation.tpm.judging import protection
from appliance.attestation.x509 import walks
from appliance.client import Verdict
from appliance.client.verdict import HOST_TRUSTED, INVALID, NOT_MET, UNCHECKED
from appliance.errors import AttestationError, ModelKeyError, UncheckedEvidenceError, UnsupportedEvidenceError
from appliance.keys.release.release import KeyRelease
from appliance.policy import load
from appliance.policy.schema.keys import KeySource
from appliance.service.attesting import activation
from examples.broker.config import read
from examples.broker.rules import ConfigError
from examples.broker.server import Broker, _RefusedError
from tests.attestation.test_tpm_trust import Machine, broker_rule
from tests.fuzz import activation_fuzz, driver
from tests.support import fake_appliance, fake_tpm, swtpm
from tests.support.brokers import Authority, reference
from tests.support.tpm_maker import H1, H2, H3, H4, H6, L1, L2, Maker, other_key

SECRET = b"thirty-two bytes that are secret"
TOOLS_MAGIC = b"\xba\xdc\xc0\xde\0\0\0\1"  # what tpm2-tools put before a credential


def _tool(folder: Path, socket: Path | None, *words: str) -> bytes:
    """Run one of tpm2-tools against the TPM behind a socket, or against none."""
    tcti = "none" if socket is None else f"swtpm:path={socket}"
    done = subprocess.run([*words, "-T", tcti], cwd=folder, capture_output=True, timeout=600, check=False)
    assert 0 == done.returncode, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    """A TPM."""
    with swtpm.running() as path:
        yield path


@pytest.mark.parametrize("kind", ["ecc", "rsa"])
def test_tpm2_tools_open_our_challenge(socket: Path, tmp_path: Path, kind: str) -> None:
    """Keys and activation by tpm2-tools: they find the secret that our half of the verifier locked up."""
    swtpm.tpm2_tools("tpm2_createek", "tpm2_createak", "tpm2_flushcontext", "tpm2_startauthsession",
                     "tpm2_policysecret", "tpm2_activatecredential")
    try:
        _tool(tmp_path, socket, "tpm2_createek", "-G", kind, "-c", "ek", "-u", "ek.pub")
        _tool(tmp_path, socket, "tpm2_createak", "-C", "ek", "-c", "ak", "-G", "ecc", "-g", "sha256", "-s", "ecdsa",
              "-n", "ak.name")
        key = tpm_abi.parse_public((tmp_path / "ek.pub").read_bytes()).key
        sent = protection.challenge(key, (tmp_path / "ak.name").read_bytes(), SECRET)
        (tmp_path / "credential").write_bytes(TOOLS_MAGIC + sent)
        _tool(tmp_path, socket, "tpm2_flushcontext", "-t")
        _tool(tmp_path, socket, "tpm2_startauthsession", "--policy-session", "-S", "session")
        _tool(tmp_path, socket, "tpm2_policysecret", "-S", "session", "-c", "e")
        _tool(tmp_path, socket, "tpm2_activatecredential", "-c", "ak", "-C", "ek", "-i", "credential", "-o", "found",
              "-P", "session:session")
        assert SECRET == (tmp_path / "found").read_bytes()
    finally:
        for kept in ("-t", "-l", "-s"):
            _tool(tmp_path, socket, "tpm2_flushcontext", kept)


@contextlib.contextmanager
def _primary(tpm: Tpm, area: bytes) -> Iterator[tpm_device.LoadedKey]:
    """A primary key, which is gone afterwards whatever happens: a TPM has room for three."""
    made = tpm_device.create_primary(tpm, area)
    try:
        yield made
    finally:
        tpm.flush(made.handle)


@pytest.mark.parametrize("index", [L2, H2, H3, H4, L1, H1, H6])
def test_our_client_opens_tpm2_tools_challenge(socket: Path, tmp_path: Path, index: int) -> None:
    """By every kind of default endorsement key; and our own challenge as well."""
    swtpm.tpm2_tools("tpm2_makecredential")
    with (contextlib.closing(Tpm(socket)) as tpm, _primary(tpm, tpm_activate.TEMPLATES[index].area()) as made,
          _primary(tpm, tpm_device.own_template()) as ak):
        area = tpm_abi.parse_public(made.public)
        ek = tpm_activate.LoadedEk(made.handle, area.attributes, persistent=False)
        name = tpm_abi.parse_public(ak.public).name
        (tmp_path / "ek.pub").write_bytes(made.public)
        (tmp_path / "secret").write_bytes(SECRET)
        _tool(tmp_path, None, "tpm2_makecredential", "-u", "ek.pub", "-s", "secret", "-n", name.hex(), "-o", "out")
        theirs = (tmp_path / "out").read_bytes().removeprefix(TOOLS_MAGIC)
        for sent in (theirs, protection.challenge(area.key, name, SECRET)):
            assert SECRET == tpm_activate.secret(tpm, ak.handle, ek, sent)


MAKER = Maker()


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose TPM has a certificate by `MAKER`, and whose attestation key nobody enrolled."""
    with swtpm.running() as path:
        MAKER.furnish(path, chain=True)
        found = Machine(tmp_path_factory.mktemp("tpm"), path, "tpm")
        try:
            yield found
        finally:
            found.close()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> EkRoots:
    """What `--ek-roots` reads: the maker's root alone, since the machine brings the authority under it."""
    return collateral_folder.ek_roots(MAKER.folder(tmp_path_factory.mktemp("roots"), chain=False))


def test_a_tpm_that_swtpm_made(tmp_path: Path) -> None:
    """Keys and certificates by swtpm_setup and swtpm_localca, as it leaves its authorities in a folder."""
    with swtpm.running(manufactured=True) as path:
        machine, now = Machine(tmp_path, path, "tpm"), datetime.now(UTC)  # its certificates are of this moment
        key, day = fake_appliance.key(), timedelta(days=1)
        try:
            machine.server.rotate(key, der=fake_appliance.certificate(key, start=now - day, end=now + day))
            verdict, stranger = (
                machine.verifier(ek_roots=collateral_folder.ek_roots(makers)).verify(
                    machine.server.url, at=now + day / 2)
                for makers in (path.parent / "ca", MAKER.folder(tmp_path / "makers")))
        finally:
            machine.close()
    assert HOST_TRUSTED == verdict.status, verdict
    assert "certified by swtpm-localca-rootca" in str(verdict)
    assert (UNCHECKED, "tpm-ek-root") == (stranger.status, stranger.code)


def _outcomes(verdict: Verdict) -> dict[str, str]:
    return {each.rule: each.outcome for each in verdict.findings}


def test_a_key_that_nobody_enrolled_is_known_by_activation(machine: Machine, roots: EkRoots) -> None:
    """No `--ak`: the TPM shows that its key is beside the certified one. The host is trusted as ever."""
    verdict = machine.verify(ek_roots=roots)
    assert (HOST_TRUSTED, "") == (verdict.status, verdict.code), verdict
    assert ("holds", "holds") == (_outcomes(verdict)["ek-activation"], _outcomes(verdict)["ak-origin"])
    assert "known by activation" in verdict.reason
    assert "certified by Maker Root" in str(verdict)


def test_the_verdict_says_how_the_tpm_is_known(machine: Machine) -> None:
    """By enrolment, or, where a flag for tests asks for it, by nothing: neither is passed over in silence."""
    enrolled = machine.verify(attestation_keys=frozenset({machine.key}))
    assert (HOST_TRUSTED, "not checked") == (enrolled.status, _outcomes(enrolled)["ek-activation"])
    assert "known by enrolment of its attestation key; it was not challenged" in enrolled.reason
    nothing = machine.verify(any_ak=True)
    assert (HOST_TRUSTED, "not checked") == (nothing.status, _outcomes(nothing)["ak-origin"])
    assert "known by NOTHING" in nothing.reason
    assert UNCHECKED == machine.verify().status


def test_enrolment_and_activation_must_both_hold(machine: Machine, roots: EkRoots) -> None:
    """Whoever names keys wants these: a genuine TPM of a named maker is not enough."""
    both = machine.verify(ek_roots=roots, attestation_keys=frozenset({machine.key}))
    assert HOST_TRUSTED == both.status
    other = machine.verify(ek_roots=roots, attestation_keys=frozenset({bytes(32)}))
    assert (NOT_MET, "evidence-ak-origin") == (other.status, other.code)


def _relayed(machine: Machine, change: Callable[[bytes], tuple[int, bytes]]) -> Iterator[None]:
    machine.server.activation = change
    try:
        yield
    finally:
        machine.server.activation = machine.server.activate


cheating = contextlib.contextmanager(_relayed)


def test_what_an_operator_may_answer(machine: Machine, roots: EkRoots) -> None:
    """A replayed answer, a guess, another TPM, another key of this TPM, an altered challenge, silence, garbage."""
    kept: list[bytes] = []

    def keep(challenge: bytes) -> tuple[int, bytes]:
        status, body = machine.server.activate(challenge)
        kept.append(body)
        return status, body

    def altered(challenge: bytes) -> tuple[int, bytes]:
        return machine.server.activate(challenge[:-1] + bytes((challenge[-1] ^ 1,)))

    with cheating(machine, keep):
        assert HOST_TRUSTED == machine.verify(ek_roots=roots).status
    cases: list[tuple[Callable[[bytes], tuple[int, bytes]], str, str]] = [
        (lambda _: (200, kept[0]), INVALID, "tpm-activation"),
        (lambda _: (200, fake_appliance.activation_answer(bytes(32))), INVALID, "tpm-activation"),
        (altered, INVALID, "tpm-activation"),
        (lambda _: (200, fake_appliance.activation_answer(bytes(31))), INVALID, "evidence-malformed"),
        (lambda _: (200, b'{"answer": "00"}'), INVALID, "evidence-malformed"),
        (lambda _: (200, b"["), INVALID, "evidence-malformed"),
        (lambda _: (200, b" " * 2000), INVALID, "evidence-malformed"),
        (lambda _: (404, b""), UNCHECKED, "no-activation"), (lambda _: (503, b""), UNCHECKED, "no-activation")]
    for change, status, code in cases:
        with cheating(machine, change):
            verdict = machine.verify(ek_roots=roots, attestation_keys=frozenset({machine.key}))
        assert (status, code) == (verdict.status, verdict.code), verdict


def test_another_tpm_does_not_answer_for_this_one(machine: Machine, roots: EkRoots, tmp_path: Path) -> None:
    """A genuine TPM of the same maker cannot stand in, neither with its own answers nor with its own certificate."""
    with swtpm.running() as path:
        foreign = MAKER.furnish(path)
        other = TpmProvider(path, tmp_path / "none")

        def relay(challenge: bytes) -> tuple[int, bytes]:
            try:
                return 200, fake_appliance.activation_answer(other.activate(challenge))
            except AttestationError as error:
                return 400, error.code.encode()

        with cheating(machine, relay):
            verdict = machine.verify(ek_roots=roots)
        assert (INVALID, "tpm-activation") == (verdict.status, verdict.code)
        with _showing(machine, foreign):  # the certificate of the one, the key of the other; both may be asked
            for answer in (relay, machine.server.activate):
                with cheating(machine, answer):
                    verdict = machine.verify(ek_roots=roots)
                assert (INVALID, "tpm-activation") == (verdict.status, verdict.code), verdict
        other.close()


@contextlib.contextmanager
def _showing(machine: Machine, certificate: x509.Certificate | None) -> Iterator[None]:
    """Evidence with another EK certificate, or none."""
    kept = machine.provider._ek_certificate
    changed = None if certificate is None else tpm_device.EkCertificate(L2, certificate.public_bytes(Encoding.DER))
    machine.provider._ek_certificate = changed
    try:
        yield
    finally:
        machine.provider._ek_certificate = kept


@pytest.mark.parametrize(("maker", "changes", "status", "code"), [
    (MAKER, {"days": (-30, -1)}, UNCHECKED, "certificate-expired"),
    (Maker("Stranger"), {}, UNCHECKED, "tpm-ek-root"),
    (MAKER, {"signer": "Stranger ca"}, INVALID, "chain-signature"),
    (MAKER, {"use": "2.23.133.8.3"}, INVALID, "tpm-ek-certificate"),
    (MAKER, {"encrypts": False}, INVALID, "tpm-ek-certificate"),
    (MAKER, {"ca": True}, INVALID, "tpm-ek-certificate"),
    (MAKER, {"critical": True}, INVALID, "chain-extension"),
    (None, {}, UNCHECKED, "tpm-ek-absent")])
def test_a_certificate_that_does_not_hold(machine: Machine, roots: EkRoots, maker: Maker | None,
                                          changes: dict[str, Any], status: str, code: str) -> None:
    """Expired, another maker's, signed by another, for another use, with a limit that is not known here, absent. No
    challenge is sent to such a TPM."""
    certificate = None if maker is None else maker.certify(_ek(machine), **changes)
    with _showing(machine, certificate), cheating(machine, lambda _: pytest.fail("challenged")):
        verdict = machine.verify(ek_roots=roots, attestation_keys=frozenset({machine.key}))
    assert (status, code) == (verdict.status, verdict.code), verdict


@pytest.mark.parametrize(("maker", "status", "code"), [
    (MAKER, HOST_TRUSTED, ""), (Maker("Stranger"), UNCHECKED, "tpm-ek-root"),
    (Maker(until=fake_tpm.NOW - timedelta(days=1)), UNCHECKED, "certificate-expired")])
def test_makers_that_do_not_hold(machine: Machine, tmp_path: Path, maker: Maker, status: str, code: str) -> None:
    """A root that has expired, though it signed; a root of another maker."""
    verdict = machine.verify(ek_roots=collateral_folder.ek_roots(maker.folder(tmp_path / "makers")))
    assert (status, code) == (verdict.status, verdict.code), verdict


def test_a_name_that_speaks_to_the_terminal(machine: Machine, roots: EkRoots) -> None:
    """Whoever runs the machine writes the certificate: its names can neither clear the screen nor add lines."""
    evil = Maker("\x1b[2J\nproved:\n  verified\u202e" + "x" * 30)
    with _showing(machine, evil.certify(_ek(machine))):
        verdict = machine.verify(ek_roots=roots)
        found = examine(Material(verdict.raw or b"", Path("none")), at=fake_tpm.NOW)
    assert (UNCHECKED, "tpm-ek-root") == (verdict.status, verdict.code)
    for said in (str(verdict), str(found)):
        assert "?[2J?proved:?" in said
        assert said.splitlines().count("proved:") <= 1
        assert all(line.isprintable() for line in said.splitlines())


def test_what_is_too_weak() -> None:
    """A name or a certificate by SHA-1 could be another's as well."""
    with pytest.raises(UnsupportedEvidenceError, match="SHA-1"):
        protection.challenge(other_key(), b"\0\x04" + bytes(20), SECRET)
    key, sha256, sha1 = fake_tpm.rsa_key("root"), "2a864886f70d01010b", "2a864886f70d010105"
    whole = fake_tpm.certificate(key, "Root", "Root", key, ca=True).public_bytes(Encoding.DER).hex()
    weak = x509.load_der_x509_certificate(bytes.fromhex(whole.replace(sha256, sha1)))
    with pytest.raises(UnsupportedEvidenceError) as caught:
        walks.check_issued(weak, weak)
    assert "chain-algorithm" == caught.value.code


def _ek(machine: Machine) -> Any:
    certificate = machine.provider._ek_certificate
    assert certificate is not None
    return x509.load_der_x509_certificate(certificate.certificate).public_key()


def test_a_machines_own_certificate_may_be_named(machine: Machine, tmp_path: Path) -> None:
    """In place of a maker, whose every TPM would do, one machine; another's certificate does not help it."""
    own = MAKER.certify(_ek(machine))
    for named, status in ((own, HOST_TRUSTED), (MAKER.certify(other_key()), UNCHECKED)):
        folder = tmp_path / status
        folder.mkdir()
        (folder / "ek.der").write_bytes(named.public_bytes(Encoding.DER))
        with _showing(machine, own):
            assert status == machine.verify(ek_roots=collateral_folder.ek_roots(folder)).status
    with pytest.raises(UncheckedEvidenceError, match="no self-signed authority"):
        collateral_folder.ek_roots(tmp_path)


def test_evidence_that_was_kept_cannot_be_challenged(machine: Machine, roots: EkRoots) -> None:
    """A year later: the certificate's chain can be looked at, that the key was in that TPM cannot. With the key
    enrolled, as the verdict of the day named it, the rest can be judged."""
    kept = machine.verify(ek_roots=roots).raw
    assert kept is not None
    for options, status, code in (({"ek_roots": roots}, UNCHECKED, "unchecked-ek-activation"),
                                  ({"attestation_keys": frozenset({machine.key})}, HOST_TRUSTED, "")):
        verdict = machine.verifier(**options).verify_evidence(kept)
        assert (status, code) == (verdict.status, verdict.code), verdict


def _release(machine: Machine, folder: Path, more: str, provider: Any = None) -> bytes:
    """A boot that asks the reference broker for a key, through a real key release process."""
    broker_rule(machine, folder, more)
    config = folder / "broker.toml"
    config.write_text('port = 0\nlog = "broker.jsonl"\n' + config.read_text())
    asker = ReleaseAttestor(provider or machine.provider, load(machine.policy).digest, bytes(48),
                            Build(version="0.1.0"))
    with reference(config) as broker:
        release = KeyRelease({"m": KeySource.model_validate({"provider": "broker", "version": 1, "broker": {
            "url": broker.url, "root_sha256": Authority().pin, "resource": "a/b/c"}})}, seconds=20)
        release.start({})
        try:
            with release.keys(asker, tolerant=True)["m"] as secret:
                return bytes(secret.data)
        finally:
            release.close()


def _log(folder: Path) -> str:
    return (folder / "broker.jsonl").read_text()


def test_a_broker_challenges_a_tpm_that_nobody_enrolled(machine: Machine, tmp_path: Path) -> None:
    """In the handshake itself: the appliance announces its keys, the broker locks a secret to them."""
    MAKER.folder(tmp_path / "makers", chain=False)
    assert b"\7" * 32 == _release(machine, tmp_path, 'ek_roots = "makers"')
    assert '"released"' in _log(tmp_path)


class Cheat:
    """A machine between the TPM and the broker, which changes what the one says to the other."""

    def __init__(self, inner: TpmProvider, **changes: Any) -> None:
        self._inner, self._changes = inner, changes
        self.platform = inner.platform

    def __getattr__(self, name: str) -> Any:
        return self._changes.get(name) or getattr(self._inner, name)


def test_a_broker_gives_no_key_without_the_right_answer(machine: Machine, tmp_path: Path) -> None:
    """Makers that are not the rule's, no announcement, a wrong answer, another TPM's keys announced in its place."""
    MAKER.folder(tmp_path / "makers", chain=False)
    Maker("Stranger").folder(tmp_path / "strangers")
    with swtpm.running() as path:
        MAKER.furnish(path, chain=True)
        other = TpmProvider(path, tmp_path / "none")
        cases = [
            ('ek_roots = "strangers"', None, "tpm-ek-root"),
            ('ek_roots = "makers"', Cheat(machine.provider, endorsement=lambda: None), "ek-activation: not checked"),
            ('ek_roots = "makers"', Cheat(machine.provider, activate=lambda _: bytes(32)), "tpm-activation"),
            ('ek_roots = "makers"', Cheat(machine.provider, endorsement=other.endorsement, activate=other.activate),
             "ek-activation: "),
            ('ek_roots = "makers"\nattestation_keys = ["sha256:' + "00" * 32 + '"]', None, "not among those enrolled")]
        for number, (rule, provider, reason) in enumerate(cases):
            (tmp_path / "broker.jsonl").unlink(missing_ok=True)
            with pytest.raises(ModelKeyError) as caught:
                _release(machine, tmp_path, rule, provider)
            assert ("key-denied", True) == (caught.value.code, reason in _log(tmp_path)), (number, _log(tmp_path))
        other.close()


@pytest.mark.parametrize("given", [
    None, 7, {}, {"key": "!", "ek-certificate": "", "chain": []}, {"key": "", "ek-certificate": "", "chain": [""] * 9}])
def test_a_broker_refuses_malformed_announcements(machine: Machine, tmp_path: Path, given: Any) -> None:
    """What is no announcement is refused; one that no TPM could make gets no challenge."""
    MAKER.folder(tmp_path / "makers")
    broker_rule(machine, tmp_path, 'ek_roots = "makers"')
    broker = Broker(read(tmp_path / "broker.toml"))
    with pytest.raises(_RefusedError, match="not in form"):
        broker.challenge({"version": "0.4.0", "tee": "tpm", "extra-params": {"tpm-activation": given}})
    forged = {"key": base64.b64encode(fake_tpm.public(attributes=1 << 18)).decode(), "chain": [],
              "ek-certificate": base64.b64encode(MAKER.certify(other_key()).public_bytes(Encoding.DER)).decode()}
    _, said = broker.challenge({"version": "0.4.0", "tee": "tpm", "extra-params": {"tpm-activation": forged}})
    assert "" == said["extra-params"]
    with pytest.raises(ConfigError, match="cannot be read"):
        broker_rule(machine, tmp_path, 'ek_roots = "nowhere"')


def test_what_is_parsed_survives_mutations() -> None:
    """Five thousand mutations of challenges, answers and certificates raise nothing else, and no false one holds."""
    _, finding = driver.run(activation_fuzz.fuzz, activation_fuzz.seeds(), seconds=0, seed=1, least=5000)
    assert None is finding


def test_every_byte_of_a_challenge_counts(socket: Path) -> None:
    """The TPM itself opens no challenge with one altered bit, nor one for another name of a key."""
    with (contextlib.closing(Tpm(socket)) as tpm, _primary(tpm, tpm_activate.TEMPLATES[L2].area()) as made,
          _primary(tpm, tpm_device.own_template()) as ak):
        area = tpm_abi.parse_public(made.public)
        name = tpm_abi.parse_public(ak.public).name
        ek = tpm_activate.LoadedEk(made.handle, area.attributes, persistent=False)
        sent = protection.challenge(area.key, name, SECRET)
        # as the specification says
        spoken = hmac.new(SECRET, b"appliance/tpm-activation/v1\n" + sent, "sha256").digest()
        assert spoken == tpm_credential.answer(SECRET, sent)
        wrong = [sent[:at] + bytes((sent[at] ^ 1,)) + sent[at + 1:] for at in range(len(sent))]
        wrong += [protection.challenge(area.key, name[:-1] + bytes((name[-1] ^ 1,)), SECRET),
                  protection.challenge(other_key(), name, SECRET)]
        for each in wrong:
            with pytest.raises(AttestationError) as caught:
                tpm_activate.secret(tpm, ak.handle, ek, each)
            assert caught.value.code in ("tpm-activation", "evidence-malformed")
        assert SECRET == tpm_activate.secret(tpm, ak.handle, ek, sent), "no session is left over, and no handle"


class Slow:
    """An attestor whose TPM takes its time."""

    platform = "tpm"
    busy = most = asked = 0

    def activate(self, challenge: bytes) -> bytes:
        """One at a time, or it shows."""
        self.busy, self.asked = self.busy + 1, self.asked + 1
        self.most = max(self.most, self.busy)
        time.sleep(0.01)
        self.busy -= 1
        return challenge[:32]


def test_the_service_asks_the_tpm_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many challenges come: one at a time, spaced, a bounded number waiting; who has left takes no turn."""
    monkeypatch.setattr(activation, "MAX_WAITING", 4)
    attestor, sent = Slow(), protection.challenge(other_key(), bytes(34), SECRET)
    text = base64.urlsafe_b64encode(sent).rstrip(b"=").decode()
    service = activation.Activations(attestor)  # type: ignore[arg-type]

    async def scenario() -> float:
        begun = time.monotonic()
        asked = [asyncio.create_task(service.answer([text])) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await service.answer([text])
        assert ("overloaded", 1) == (caught.value.code, caught.value.retry_after)
        asked[3].cancel()
        assert [sent[:32]] * 3 == await asyncio.gather(*asked[:3])
        return time.monotonic() - begun

    assert asyncio.run(scenario()) >= 0.19
    assert (1, 3) == (attestor.most, attestor.asked)
    assert sent[:32] == asyncio.run(service.answer([text])), "nobody is left waiting"
