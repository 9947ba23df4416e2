"""EAR and JWS: published vectors, every verdict as a token, and no byte of one that can be altered."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from appliance.attestation.findings import Finding
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.attestation.trust.roots import Roots
from appliance.cli.main import main
from appliance.client import Verdict, ear
from appliance.client.rules import MEANINGS
from appliance.client.verdict import (
    EXIT_CODES,
    HOST_TRUSTED,
    INVALID,
    KEY_BOUND,
    NOT_MET,
    SIMULATED,
    UNCHECKED,
    VERIFIED,
    Status,
)
from appliance.codec import jws
from appliance.codec.strict import to_base64url
from appliance.errors import AttestationError, ForgedEvidenceError, MalformedEvidenceError, PolicyError
from appliance.policy import load
from tests.support import fake_appliance as fake

AT = datetime(2026, 6, 1, tzinfo=UTC)


def _b64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_rfc_7515_appendix_a3() -> None:
    """ES256: the token of the RFC verifies under its key, and not under another."""
    token = ("eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb2"
             "90Ijp0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q")
    x, y = (int.from_bytes(_b64(text)) for text in (
        "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU", "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"))
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    assert {"iss": "joe", "exp": 1300819380, "http://example.com/is_root": True} == json.loads(jws.verify(token, key))
    with pytest.raises(ForgedEvidenceError):
        jws.verify(token, ec.generate_private_key(ec.SECP256R1()).public_key())


def test_rfc_8037_appendix_a4() -> None:
    """EdDSA: the token of the RFC verifies under its key; the thumbprint is the RFC's."""
    token = ("eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhi"
             "jcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg")
    key = Ed25519PublicKey.from_public_bytes(_b64("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"))
    assert b"Example of Ed25519 signing" == jws.verify(token, key)
    assert "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k" == jws.jwk(key)["kid"]


KEYS: list[Any] = [Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP256R1()),
                   ec.generate_private_key(ec.SECP384R1())]


@pytest.mark.parametrize("key", KEYS, ids=jws.algorithm)
def test_every_altered_character_of_a_token_is_refused(key: Any) -> None:
    """Only our errors come out, and never a payload that was not signed."""
    token = jws.sign(b'{"a":1}', key)
    assert b'{"a":1}' == jws.verify(token, key.public_key())
    for place in range(len(token)):
        for other in "A_=.\x00é":
            if token[place] != other:
                with pytest.raises(AttestationError):
                    jws.verify(token[:place] + other + token[place + 1:], key.public_key())


def test_extensions_that_must_be_understood_are_refused() -> None:
    """RFC 7515, section 4.1.11: a token with `crit`, signed or not, says more than is read here."""
    key = KEYS[0]
    header, payload = to_base64url(b'{"alg":"EdDSA","b64":false,"crit":["b64"]}'), to_base64url(b"{}")
    signed = f"{header}.{payload}"
    with pytest.raises(MalformedEvidenceError, match="extensions"):
        jws.verify(f"{signed}.{to_base64url(key.sign(signed.encode()))}", key.public_key())


def test_the_algorithm_is_the_keys() -> None:
    """A token cannot choose: `none`, or another algorithm, is refused."""
    key = KEYS[0]
    _, payload, signature = jws.sign(b"{}", key).split(".")
    for name in ("none", "ES256", "HS256", None, 1):
        header = to_base64url(json.dumps({"alg": name}).encode())
        with pytest.raises(ForgedEvidenceError):
            jws.verify(f"{header}.{payload}.{signature}", key.public_key())
        with pytest.raises(ForgedEvidenceError):
            jws.verify(f"{header}.{payload}.", key.public_key())
    with pytest.raises(PolicyError):
        jws.sign(b"{}", ec.generate_private_key(ec.SECP521R1()))


def _verdict(status: Status, *findings: Finding, **more: Any) -> Verdict:
    return Verdict(status, "https://a.example:443", AT, bytes(48), findings, **more)


@pytest.mark.parametrize(("status", "tier"), [
    (VERIFIED, "affirming"), (HOST_TRUSTED, "warning"), (SIMULATED, "contraindicated"), (INVALID, "contraindicated"),
    (NOT_MET, "contraindicated"), (UNCHECKED, "none")])
def test_a_verdict_as_an_ear(status: Status, tier: str) -> None:
    """The claims of the draft: profile, time, verifier, one submodule with status; and no trust in the vector that the
    status does not have."""
    found = ear.read(ear.token(_verdict(status, nonce=bytes(32), raw=b"{}"), KEYS[1]), KEYS[1].public_key())
    assert {"eat_profile", "iat", "ear_verifier_id", "submods", "eat_nonce", "ear_raw_evidence"} == set(found)
    assert ("tag:ietf.org,2026:rats/ear#04", {"developer", "build"}) == (
        found["eat_profile"], set(found["ear_verifier_id"]))
    appraisal = found["submods"]["appliance"]
    assert (tier, status) == (appraisal["ear_status"], appraisal["ear_verifier_claims"]["appliance_verdict"])
    worst = max(appraisal.get("ear_trustworthiness_vector", {"none": 0}).values())
    if status == NOT_MET:
        assert "ear_trustworthiness_vector" not in appraisal  # only failed rules speak there, and here none did
    else:
        assert tier in {True: ("affirming", "none"), False: ("warning", "contraindicated")}[worst < 32]


@pytest.mark.parametrize(("rule", "claim"), [
    ("tls-key", "instance-identity"), ("policy", "configuration"), ("measurement", "executables"),
    ("pcr11", "executables"), ("rtmr2", "executables"), ("tcb-reported", "hardware"), ("debug", "runtime-opaque")])
def test_a_failed_rule_speaks_against_its_claim(rule: str, claim: str) -> None:
    """96: contraindicated (AR4SI), for that claim alone."""
    vector = ear.claims(_verdict(NOT_MET, Finding(rule, "fails")))["submods"]["appliance"][
        "ear_trustworthiness_vector"]
    assert {claim: 96} == vector


def test_evidence_of_a_key_affirms_nobody() -> None:
    """Exit code 6: the machine is as it should be, and who answers is not known."""
    appraisal = ear.claims(_verdict(KEY_BOUND))["submods"]["appliance"]
    assert "warning" == appraisal["ear_status"]
    assert {"configuration", "executables", "hardware", "runtime-opaque"} == set(
        appraisal["ear_trustworthiness_vector"])


def test_every_rule_speaks_about_something() -> None:
    """A rule that fails changes the vector, but for what the verifier holds. `bulletins` and `kept` never fail."""
    about = {name for names in ear._ABOUT.values() for name in names}
    silent = {rule for rule in MEANINGS if rule not in about and not rule.startswith("tcb-")}
    assert {"signature", "statement", "measurements", "release", "bulletins", "kept"} >= silent


def test_the_verb_writes_a_token_and_its_key(tmp_path: Path) -> None:
    """By a key that was made for it, or by one that is given; anyone with the key file can check it."""
    path = fake.write_policy(tmp_path, "simulated")
    policy = load(path)
    made = fake.attestor(SimulatedProvider(policy.host_data), policy).attest(bytes(32)).to_json()
    (tmp_path / "evidence.json").write_bytes(made)
    given = tmp_path / "key.pem"
    given.write_bytes(KEYS[0].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    for words in ([], ["--ear-key", str(given)]):
        out = tmp_path / "result.jwt"
        assert 5 == main(["verify", str(tmp_path / "evidence.json"), "--policy", str(path), "--ear", str(out), *words])
        jwk = json.loads((tmp_path / "result.jwt.jwk").read_text())
        key: Any = (Ed25519PublicKey.from_public_bytes(_b64(jwk["x"])) if words else ec.EllipticCurvePublicNumbers(
            int.from_bytes(_b64(jwk["x"])), int.from_bytes(_b64(jwk["y"])), ec.SECP256R1()).public_key())
        found = ear.read(out.read_text(), key)
        assert "contraindicated" == found["submods"]["appliance"]["ear_status"]
        kind, raw = found["ear_raw_evidence"]
        assert ("application/vnd.appliance.evidence+json", made) == (kind, _b64(raw))


def test_the_auditors_guide_reads_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its program, as it stands there: verdict, time and nonce in the form that `verify` takes; nothing of a token that
    was altered or that another key signed."""
    guide = (Path(__file__).parents[2] / "docs/guides/audit.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    keys = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    (tmp_path / "auditor.pem").write_bytes(keys[0].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with fake.simulated(tmp_path, tls=False) as (server, path):
        words = ["--policy", str(path), "--save", str(tmp_path / "evidence.json"),
                 "--ear", str(tmp_path / "result.jwt"), "--ear-key", str(tmp_path / "auditor.pem"), "--json"]
        assert 5 == main(["verify", server.url, *words])
    told = json.loads(capsys.readouterr().out)

    def read(key: Ed25519PrivateKey) -> subprocess.CompletedProcess[str]:
        (tmp_path / "auditor.pub").write_bytes(key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
        return subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
                              timeout=600)

    verdict, at, nonce = read(keys[0]).stdout.splitlines()
    assert (told["verdict"], told["nonce"]) == (verdict, nonce)
    again = ["verify", str(tmp_path / "evidence.json"), "--policy", str(path), "--at", at, "--json", "--nonce"]
    assert 5 == main([*again, nonce])
    assert "holds" == _outcome(capsys.readouterr().out, "nonce")
    assert main([*again, "00" * 32]) in (1, 3)
    assert (1, "") == (read(keys[1]).returncode, read(keys[1]).stdout)
    token = (tmp_path / "result.jwt").read_text()
    (tmp_path / "result.jwt").write_text(token.replace(".", ".e", 1))
    assert (1, "") == (read(keys[0]).returncode, read(keys[0]).stdout)


def _outcome(text: str, rule: str) -> str:
    (found,) = (each["outcome"] for each in json.loads(text)["findings"] if each["rule"] == rule)
    return str(found)


def test_other_keys_are_refused(tmp_path: Path) -> None:
    """RSA signs no result here; a file that is no key says so."""
    path = tmp_path / "key.pem"
    path.write_bytes(rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    for data in (path.read_bytes(), b"no key"):
        path.write_bytes(data)
        with pytest.raises(PolicyError):
            ear.load_key(path)


def test_a_verdict_reads_well_whatever_is_in_it() -> None:
    """Text, JSON and token of a verdict with nothing in it."""
    for status in EXIT_CODES:
        ear.claims(_verdict(status))
        verdict = _verdict(status, Finding("pcr4", "fails", "x"), Finding("unheard-of", "holds"))
        assert "PCR4 is as the measurements say (PCR4 of the measurements; x)" in str(verdict)
        json.dumps(verdict.as_json())
        with contextlib.suppress(AttestationError):
            verdict.require()
    for status, code in ((HOST_TRUSTED, "host-trusted"), (SIMULATED, "simulated")):
        with pytest.raises(AttestationError) as caught:
            _verdict(status).require()
        assert code == caught.value.code
    assert Roots() == Roots()
