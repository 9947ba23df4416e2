"""Bundles by the public model-signing package: each holds for its model, key and certificate, and for nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.cli.main import main
from appliance.errors import PinError
from appliance.keys import policy_keys
from appliance.policy.schema import Publisher
from appliance.signed import bundle
from tests.support.engines import synthetic_model
from tests.support.server import write_policy

FOLDER = Path(__file__).parents[1] / "goldens" / "bundles"
KEYS: dict[str, str] = json.loads((FOLDER / "keys.json").read_text())
CONTENT = b"GGUF of a test"  # as make_model_signing_vectors.py has it
SHA256 = hashlib.sha256(CONTENT).digest()


def vector(name: str) -> bytes:
    return (FOLDER / f"{name}.sigstore").read_bytes()


@pytest.mark.parametrize("name", ["p256", "p384", "p521", "certificate"])
def test_the_packages_bundles_hold(name: str) -> None:
    """By the key alone; the publisher's names of model and file are told."""
    found = bundle.check(vector(name), KEYS[name], SHA256)
    assert ("tiny", "tiny.gguf", ()) == (found.model, found.resource, found.identities)


@pytest.mark.parametrize("root", ["root_sha256", "middle_sha256"])
def test_a_certificate_names_the_publisher(root: str) -> None:
    """Its names, once the chain ends in what is pinned."""
    found = bundle.check(vector("certificate"), KEYS["certificate"], SHA256, root_sha256=KEYS[root],
                         identity="models@publisher.example")
    assert ("models@publisher.example", "https://publisher.example/models", "Example publisher") == found.identities


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("p256", {"key": KEYS["certificate"]}, "not by the policy's key"),
    ("p256", {"key": KEYS["p384"]}, "not by the policy's key"),
    ("p256", {"key": "p256:" + "05" * 33}, "no point"),
    ("p256", {"sha256": bytes(32)}, "it names 2 files, none with"),
    ("p256", {"root_sha256": KEYS["root_sha256"]}, "no certificates"),
    ("certificate", {"root_sha256": "ab" * 32}, "not pinned"),
    ("certificate", {"root_sha256": KEYS["root_sha256"], "identity": "others@publisher.example"}, "not for others")]


@pytest.mark.parametrize(("name", "other", "said"), CASES)
def test_other_facts_are_refused(name: str, other: dict[str, Any], said: str) -> None:
    """Another key, file, root or name: by name."""
    facts = {"key": KEYS[name], "sha256": SHA256} | other
    with pytest.raises(PinError, match=said):
        bundle.check(vector(name), facts.pop("key"), facts.pop("sha256"), **facts)


def signed(statement: Any, **more: Any) -> tuple[bytes, str]:
    """A bundle over any statement, by a key of the test's, after the specifications alone."""
    key = ec.generate_private_key(ec.SECP256R1())
    payload, kind = json.dumps(statement).encode(), "application/vnd.in-toto+json"
    pae = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    made = {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"publicKey": {"hint": ""}, "tlogEntries": []},
            "dsseEnvelope": {"payload": base64.b64encode(payload).decode(), "payloadType": kind, "signatures": [
                {"sig": base64.b64encode(key.sign(pae, ec.ECDSA(hashes.SHA256()))).decode(), "keyid": ""}]}} | more
    point = key.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)
    return json.dumps(made).encode(), f"p256:{point.hex()}"


def statement(*digests: bytes) -> dict[str, Any]:
    resources = [{"name": f"{number}.gguf", "algorithm": "sha256", "digest": each.hex()}
                 for number, each in enumerate(digests)]
    return {"_type": "https://in-toto.io/Statement/v1", "predicateType": "https://model_signing/signature/v1.0",
            "subject": [{"name": "m", "digest": {"sha256": hashlib.sha256(b"".join(digests)).hexdigest()}}],
            "predicate": {"serialization": {"method": "files", "hash_type": "sha256"}, "resources": resources}}


ODD = {
    "another type": {"_type": "x"}, "another predicate": {"predicateType": "https://model_signing/Digests/v0.1"},
    "two subjects": {"subject": statement(SHA256)["subject"] * 2}, "no subject": {"subject": []},
    "another root": {"subject": [{"name": "m", "digest": {"sha256": "ab" * 32}}]},
    "shards": {"predicate": statement(SHA256)["predicate"] | {"serialization": {
        "method": "shards", "hash_type": "sha256", "shard_size": 1}}},
    "another hash": {"predicate": statement(SHA256)["predicate"] | {"resources": [
        {"name": "m", "algorithm": "blake2b", "digest": SHA256.hex()}]}}}


@pytest.mark.parametrize("name", sorted(ODD))
def test_statements_that_mean_something_else_are_refused(name: str) -> None:
    """Signed by the key, and not what the policy means."""
    data, key = signed(statement(SHA256))
    bundle.check(data, key, SHA256)
    data, key = signed(statement(SHA256) | ODD[name])
    with pytest.raises(PinError, match="does not hold"):
        bundle.check(data, key, SHA256)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_altered_bundle_holds_for_something_else(data: st.DataObject) -> None:
    """A changed byte: refused, or it changes nothing that is told."""
    whole = vector("certificate")
    place = data.draw(st.integers(0, len(whole) - 1))
    altered = whole[:place] + bytes((whole[place] ^ data.draw(st.integers(1, 255)),)) + whole[place + 1:]
    facts = (KEYS["certificate"], SHA256)
    try:
        found = bundle.check(altered, *facts, root_sha256=KEYS["root_sha256"])
    except PinError:
        return
    assert found == bundle.check(whole, *facts, root_sha256=KEYS["root_sha256"])


def test_the_boot_reads_it_beside_the_model(tmp_path: Path) -> None:
    """And says what is absent."""
    model, (data, key) = tmp_path / "m.gguf", signed(statement(SHA256))
    by = Publisher(public_key=key, bundle="m.sigstore")
    with pytest.raises(PinError, match="No such file"):
        policy_keys.check_publisher(by, SHA256, None, model)
    (tmp_path / "m.sigstore").write_bytes(data)
    policy_keys.check_publisher(by, SHA256, None, model)
    with pytest.raises(PinError, match="it names 1 file, none with sha256"):
        policy_keys.check_publisher(by, bytes(32), None, model)
    policy_keys.check_publisher(by, bytes(32), None, model, [SHA256])  # of shards each is looked for, not their pin
    with pytest.raises(PinError, match="it names 1 file, none with sha256"):
        policy_keys.check_publisher(by, SHA256, None, model, [SHA256, bytes(32)])


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`model verify` shows who signed; `infer` runs what is signed, and nothing else."""
    folder = tmp_path / "models"
    folder.mkdir()
    model = folder / "tiny.gguf"
    model.write_bytes(synthetic_model("Q8_0"))
    data, key = signed(statement(bytes(32), hashlib.sha256(model.read_bytes()).digest()))
    (folder / "tiny.sigstore").write_bytes(data)
    words = ["model", "verify", str(model), "--publisher", key, "--bundle", str(folder / "tiny.sigstore"), "--json"]
    assert 0 == main(words)
    assert (key, "1.gguf") == tuple(map(json.loads(capsys.readouterr().out).get, ("publisher", "resource")))
    policy = write_policy(tmp_path, {"tiny": model}, schema=2, model=f"""publisher {{
        public_key = "{key}"
        bundle     = "tiny.sigstore"
      }}""")
    infer = ["infer", str(policy), "--models", str(folder), "--prompt", "x", "--max-tokens", "1", "--raw"]
    assert 0 == main(infer)
    (folder / "tiny.sigstore").write_bytes(signed(statement(SHA256))[0])
    capsys.readouterr()
    assert 0 != main(infer)
    assert "the publisher's bundle does not hold" in capsys.readouterr().err
