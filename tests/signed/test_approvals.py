"""Approvals: k of n signatures over the policy digest, made, counted, enforced at boot, refused when one is off."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.attestation import keyfile
from appliance.cli.main import main
from appliance.errors import PolicyError
from appliance.policy import load
from appliance.signed import approvals, desk
from tests.support import forked, server
from tests.support.environment import unmeasured
from tests.support.policies import BASE
from tests.support.require import absent

KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)
        for number, name in enumerate(("alice", "bob", "carol"), start=1)}
ENCRYPTED = serialization.BestAvailableEncryption(b"word")


def public(name: str) -> str:
    """A public key as a policy spells it."""
    return f"ed25519:{KEYS[name].public_key().public_bytes_raw().hex()}"


def block(required: int = 2) -> str:
    """A policy's block with all three approvers."""
    people = "".join(f'  approver "{name}" {{ public_key = "{public(name)}" }}\n' for name in KEYS)
    return f"approvals {{\n  required = {required}\n{people}}}\n"


def write_key(folder: Path, name: str, encryption: Any = None) -> Path:
    """A private key in PEM."""
    path = folder / f"{name}.pem"
    path.write_bytes(KEYS[name].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption or serialization.NoEncryption()))
    return path


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy that two of three must approve."""
    path = tmp_path / "deployment.hcl"
    path.write_text(BASE + block())
    return path


def _tally(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["approve", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_two_of_three_people_approve(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One signature is not enough, two are; signing twice counts once."""
    alice, bob = write_key(tmp_path, "alice"), write_key(tmp_path, "bob")
    assert (1, []) == (lambda found: (found[0], found[1]["valid"]))(_tally(capsys, policy))
    for _ in range(2):
        code, found = _tally(capsys, policy, "--key", alice)
        assert (1, ["alice"], 2) == (code, found["valid"], found["required"])
    code, found = _tally(capsys, policy, "--key", bob)
    assert (0, ["alice", "bob"]) == (code, found["valid"])
    assert 0 == main(["approve", str(policy)])
    assert "approvals: 2 of 2 needed: alice, bob" in capsys.readouterr().out


def test_what_is_signed_is_what_the_specification_says(policy: Path, tmp_path: Path) -> None:
    """Domain, line feed, 48 bytes of digest; anyone's Ed25519 can verify it."""
    main(["approve", str(policy), "--key", str(write_key(tmp_path, "alice"))])
    written = json.loads(approvals.beside(policy).read_bytes())
    digest = load(policy).digest
    assert {"format": "appliance/approvals/v1", "policy_sha384": digest.hex()} == {
        key: written[key] for key in ("format", "policy_sha384")}
    (one,) = written["approvals"]
    KEYS["alice"].public_key().verify(
        bytes.fromhex(one["signature"].removeprefix("ed25519:")), b"appliance/policy-approval/v1\n" + digest)


def test_a_signature_made_by_openssl_is_taken_in(policy: Path, tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """A key that never meets this program signs the message that was written out."""
    key, message, signature = write_key(tmp_path, "carol"), tmp_path / "message", tmp_path / "signature"
    assert 0 == main(["approve", str(policy), "--message", str(message)])
    try:
        subprocess.run(["openssl", "pkeyutl", "-sign", "-rawin", "-inkey", key, "-in", message, "-out", signature],
                       check=True, capture_output=True)
    except FileNotFoundError:
        absent("the openssl command (Debian package openssl)")
    code, found = _tally(capsys, policy, "--signature", signature, "--as", "carol")
    assert (1, ["carol"]) == (code, found["valid"])
    assert 2 == main(["approve", str(policy), "--signature", str(signature), "--as", "bob"])
    assert 2 == main(["approve", str(policy), "--signature", str(signature)])


def test_an_encrypted_key_asks_for_its_passphrase(tmp_path: Path) -> None:
    """Right passphrase, wrong passphrase, none to ask."""
    path = write_key(tmp_path, "alice", ENCRYPTED)
    assert KEYS["alice"].private_bytes_raw() == keyfile.ed25519_private_key(
        path, lambda: b"word").private_bytes_raw()
    for ask in (lambda: b"other", None):
        with pytest.raises(PolicyError) as caught:
            keyfile.ed25519_private_key(path, ask)
        assert "key-malformed" == caught.value.code


def _on_an_unknown_curve(tmp_path: Path) -> tuple[Path, Path]:
    """A private and a public key in PEM on a curve that the cryptography package does not know: prime239v1."""
    known, unknown = bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d030104")
    key = ec.generate_private_key(ec.SECP256R1())
    der = serialization.Encoding.DER
    found = []
    for label, data in (
            ("PRIVATE", key.private_bytes(der, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())),
            ("PUBLIC", key.public_key().public_bytes(der, serialization.PublicFormat.SubjectPublicKeyInfo))):
        text = base64.encodebytes(data.replace(known, unknown)).decode()
        found.append(tmp_path / f"{label}.pem")
        found[-1].write_text(f"-----BEGIN {label} KEY-----\n{text}-----END {label} KEY-----\n")
    return found[0], found[1]


def test_a_key_of_an_unknown_kind_is_refused_in_words(policy: Path, tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """Signing and verifying alike: with the exit code of what could not be checked, not that of forged evidence."""
    private, public = _on_an_unknown_curve(tmp_path)
    (tmp_path / "measurements.json").write_text("{}")
    for words in (["approve", str(policy), "--key", str(private)],
                  ["verify", "http://127.0.0.1:1", "--policy", str(policy), "--builder-key", str(public),
                   "--measurements", str(tmp_path / "measurements.json")],
                  ["verify", "http://127.0.0.1:1", "--policy", str(policy), "--ear", str(tmp_path / "ear"),
                   "--ear-key", str(private)]):
        assert 2 == main(words), words
        assert "error[key-malformed]" in capsys.readouterr().err


@pytest.mark.parametrize(("verb", "closed"), [("approve", False), ("approve", True), ("tenants", False)])
def test_a_passphrase_that_nobody_gives_is_an_error_in_words(policy: Path, tmp_path: Path, verb: str,
                                                             closed: bool) -> None:
    """No terminal, and the end of the input: the exit code is not that of a policy that lacks approvals."""
    path = write_key(tmp_path, "alice", ENCRYPTED)
    (tmp_path / "list.json").write_text('{"appliance":"demo","tenants":[],"version":1}')
    words = [verb, str(policy if verb == "approve" else tmp_path / "list.json"), "--key", str(path)]
    command = [sys.executable, "-m", "appliance", *words]
    if closed:
        command = ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True,
                          check=False)
    assert 2 == done.returncode, done.stderr
    assert "error[key-passphrase]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_strangers_key_is_refused_before_anything_is_written(policy: Path, tmp_path: Path) -> None:
    """Whoever is no approver cannot sign, under no name."""
    path = tmp_path / "x.pem"
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    for words in ([], ["--as", "alice"], ["--as", "nobody"]):
        assert 2 == main(["approve", str(policy), "--key", str(path), *words])
    assert not approvals.beside(policy).exists()


def test_a_name_without_a_signature_approves_nothing_and_says_so(policy: Path, capsys: pytest.CaptureFixture[str]
                                                                 ) -> None:
    """`--as NAME` alone is no approval, and not a question for the tally."""
    assert 2 == main(["approve", str(policy), "--as", "alice"])
    assert "error[approver-unused]" in capsys.readouterr().err


def _approved(policy: Path, *names: str) -> approvals.Approvals:
    loaded, found = load(policy), None
    for name in names:
        found = desk.with_approval(found, loaded.digest, desk.approve(KEYS[name], name, loaded.digest))
    assert found is not None
    return found


def test_approvals_of_another_policy_do_not_count(policy: Path, tmp_path: Path) -> None:
    """A changed policy needs new signatures: the old file neither counts nor is added to."""
    approvals.beside(policy).write_bytes(_approved(policy, "alice", "bob").to_json())
    policy.write_text(policy.read_text().replace("required = 2", "required = 1"))
    loaded = load(policy)
    found = approvals.read(approvals.beside(policy))
    assert ((), ("alice", "bob")) == (lambda tally: (tally.valid, tally.wrong))(
        approvals.tally(loaded.policy, loaded.digest, found))
    with pytest.raises(PolicyError) as caught:
        desk.with_approval(found, loaded.digest, desk.approve(KEYS["carol"], "carol", loaded.digest))
    assert "approvals-other-policy" == caught.value.code


def test_every_flipped_byte_of_a_file_uncounts_or_refuses(policy: Path) -> None:
    """No byte of a file with just enough approvals can be altered without losing one."""
    loaded, good = load(policy), _approved(policy, "alice", "bob").to_json()
    assert approvals.tally(loaded.policy, loaded.digest, approvals.parse(good)).enough
    for place in range(len(good) - 1):  # the line feed at the end is white space, as JSON has it
        bad = bytearray(good)
        bad[place] ^= 1
        with contextlib.suppress(PolicyError):
            found = approvals.parse(bytes(bad))
            assert not approvals.tally(loaded.policy, loaded.digest, found).enough, place


@pytest.mark.parametrize("data", [
    b"", b"[]", b"{", b"\xff", b"{" * 5000, b"null", b'{"format":"appliance/approvals/v2"}', b" " * (1 << 17),
    b'{"format":"appliance/approvals/v1","policy_sha384":"' + b"0" * 96 + b'","approvals":[],"more":1}',
    b'{"format":"appliance/approvals/v1","format":"appliance/approvals/v1","policy_sha384":"' + b"0" * 96
    + b'","approvals":[]}',
])
def test_malformed_files_raise_only_our_error(data: bytes) -> None:
    """Whatever the bytes, one kind of error."""
    with pytest.raises(PolicyError) as caught:
        approvals.parse(data)
    assert "approvals-malformed" == caught.value.code


def test_a_malformed_file_is_named(policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the command and by what the boot reads."""
    path = tmp_path / "those"
    path.write_bytes(b"{")
    assert 2 == main(["approve", str(policy), "--approvals", str(path)])
    assert f"error[approvals-malformed]: {path}: approvals: " in capsys.readouterr().err


def test_names_out_of_order_or_twice_are_refused(policy: Path) -> None:
    """There is one spelling of a set of approvals."""
    good = json.loads(_approved(policy, "alice", "bob").to_json())
    for listed in ([1, 0], [0, 0]):
        bad = {**good, "approvals": [good["approvals"][index] for index in listed]}
        with pytest.raises(PolicyError):
            approvals.parse(json.dumps(bad).encode())


@pytest.mark.parametrize("folder", [".", "models"])
@pytest.mark.parametrize(("signers", "boots"), [((), False), (("alice",), False), (("alice", "carol"), True)])
def test_the_boot_needs_as_many_approvals_as_the_policy_says(tmp_path: Path, tiny_model: Path, signers: tuple[str, ...],
                                                            boots: bool, folder: str) -> None:
    """Too few, and the boot ends at its first step; enough, and it goes on (here: to a file with another pin). Beside
    the policy or, as for one that is baked into an image, in a folder of models."""
    path = server.write_policy(tmp_path, {"tiny": tiny_model})
    path.write_text(path.read_text().replace(server.sha256(tiny_model.read_bytes()), "5a" * 32))
    path.write_text(path.read_text() + block())
    (tmp_path / "models").mkdir()
    if signers:
        (tmp_path / folder / "policy.hcl.approvals").write_bytes(_approved(path, *signers).to_json())
    # In a process of its own: a boot that goes on enters its sandbox, which nothing leaves again.
    done = forked.run(["serve", str(path), "--models", str(tmp_path / "models"), "--models", str(tiny_model.parent)],
                      unmeasured())
    assert done.returncode != 0
    assert (f"{len(signers)} of 2 needed" in done.stderr) is not boots, done.stderr
    assert ("boot stopped at step models" in done.stderr) is boots, done.stderr


def test_public_keys_in_every_spelling(tmp_path: Path) -> None:
    """Text as in a policy, a file with that text, raw bytes, PEM; all else is refused."""
    raw = KEYS["alice"].public_key().public_bytes_raw()
    spelled = {"text": public("alice").encode() + b"\n", "raw": raw, "pem": KEYS["alice"].public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)}
    assert raw == keyfile.ed25519_public_key(public("alice"))
    for name, data in spelled.items():
        (tmp_path / name).write_bytes(data)
        assert raw == keyfile.ed25519_public_key(str(tmp_path / name))
    (tmp_path / "bad").write_bytes(b"ed25519:00")
    for text in ("ed25519:00", "ed25519:" + "zz" * 32, str(tmp_path / "bad"), str(tmp_path / "absent")):
        with pytest.raises(PolicyError):
            keyfile.ed25519_public_key(text)


def test_the_specifications_vector() -> None:
    """Message and signature of docs/formats/approvals.md."""
    text = (Path(__file__).parents[2] / "docs/formats/approvals.md").read_text()
    vector = dict(re.findall(r"^(message|signature)  ([0-9a-f\s]+)", text, re.MULTILINE))
    assert bytes.fromhex(vector["message"]) == approvals.message(bytes(48))
    made = desk.approve(KEYS["alice"], "alice", bytes(48))
    assert "ed25519:" + bytes.fromhex(vector["signature"]).hex() == made.signature
    assert all(public(name) in text for name in KEYS)
