"""The release key and what is encrypted to it: vectors of another implementation, both our sides, key documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.codec import brokerjson
from appliance.codec import jwe as keyrelease_jwe
from appliance.errors import ModelKeyError
from appliance.keys import document as keydocument
from appliance.keys import providers as keys
from appliance.keys.release.https import Destination, HttpAnswer
from appliance.keys.release.kbs import _said
from appliance.sealing import keyfile
from examples.broker import jwe
from tests.fuzz import keyrelease_fuzz

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/key-release-vectors.json").read_text())
KEY = bytes(range(32))
HEXED = KEY.hex().encode()
DOCUMENT = b"appliance/key/v1\nversion 3\nkey " + HEXED + b"\n"


def release_key() -> ec.EllipticCurvePrivateKey:
    """The vectors' key."""
    return ec.derive_private_key(int(VECTORS["release_key"]["d"], 16), ec.SECP256R1())


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["expect"])
def test_vectors(vector: dict[str, Any]) -> None:
    """What jwcrypto encrypted opens; what it encrypted otherwise, or what was altered, is refused."""
    message = json.dumps(vector["jwe"]).encode()
    if vector["expect"] == "success":
        assert VECTORS["plaintext"].encode() == keyrelease_jwe.decrypt(message, release_key())
        return
    words = {"another algorithm": "expected ECDH-ES+A256KW with A256GCM", "a field that is not known": "is not known",
             "another release key": "is not encrypted to this release key", "altered": "was altered",
             "another curve": "is no key on P-256", "no point of the curve": "is no point on P-256", "malformed": "JWE"}
    with pytest.raises(ModelKeyError, match=words[vector["expect"]].replace("+", r"\+")) as caught:
        keyrelease_jwe.decrypt(message, release_key())
    assert "key-broker-answer" == caught.value.code


def test_the_vectors_key_as_jwk() -> None:
    """Our JWK has the coordinates that jwcrypto gave, and reads back."""
    jwk = keyrelease_jwe.public_jwk(release_key().public_key())
    assert (VECTORS["release_key"]["x"], VECTORS["release_key"]["y"]) == (jwk["x"], jwk["y"])
    assert {"alg": "ECDH-ES+A256KW", "crv": "P-256", "kty": "EC"}.items() <= jwk.items()
    assert release_key().public_key() == keyrelease_jwe.read_jwk(jwk, "key") == jwe.public_key(jwk)


def test_both_sides_agree() -> None:
    """The reference broker's encryption opens here, each time under another ephemeral key."""
    made = [jwe.encrypt(DOCUMENT, release_key().public_key()) for _ in range(3)]
    assert [DOCUMENT] * 3 == [bytes(keyrelease_jwe.decrypt(each, release_key())) for each in made]
    assert 3 == len({json.loads(each)["protected"] for each in made})


def test_concat_kdf() -> None:
    """The derivation of the wrapping key by its definition (NIST SP 800-56A, 5.8.1), on a fixed shared secret."""
    import hashlib

    shared = bytes(range(100, 132))
    other = b"\0\0\0\x0eECDH-ES+A256KW" + b"\0\0\0\0" + b"\0\0\0\0" + b"\0\0\1\0"
    assert hashlib.sha256(b"\0\0\0\1" + shared + other).digest() == keyrelease_jwe.wrapping_key(shared)


def test_every_byte_of_a_message() -> None:
    """No character of a JWE can be changed: refused each time, by our own error."""
    message = json.dumps(VECTORS["vectors"][0]["jwe"]).encode()
    opened = 0
    for at in range(len(message)):
        altered = message[:at] + bytes([message[at] ^ 1]) + message[at + 1:]
        try:
            keyrelease_jwe.decrypt(altered, release_key())
            opened += 1
        except ModelKeyError:
            continue
    assert message.count(b" ") >= opened, "white space between members may change, nothing else"


GOOD_BASE64 = [("", 0), ("AA", 1), ("AAA", 2), ("-_-_", 3)]
BAD_BASE64 = ["A", "AB", "AA==", "A A", "AA\n", "+/+/", "ÄÄ", "AAAAA"]


def test_base64_has_one_spelling() -> None:
    """Padding, white space, another alphabet and unused bits are refused."""
    for text, count in GOOD_BASE64:
        assert count == len(brokerjson.base64url(text, "x", range(10)))
    for text in BAD_BASE64:
        with pytest.raises(ModelKeyError):
            brokerjson.base64url(text, "x", range(10))
    assert b"\xfb\xef" == brokerjson.base64_padded("++8=", "x", range(10))
    for text in ("++8", "--8=", "++9=", "++8=="):
        with pytest.raises(ModelKeyError):
            brokerjson.base64_padded(text, "x", range(10))


DOCUMENTS = [
    (DOCUMENT, None, KEY), (DOCUMENT, 3, KEY), (DOCUMENT[:-1], 3, KEY), (HEXED, None, KEY), (HEXED + b"\n", None, KEY),
    (DOCUMENT.replace(b"version 3", b"version 2147483648"), 1 << 31, KEY),
]
BAD_DOCUMENTS = [
    (DOCUMENT, 4, "key-version"), (HEXED, 3, "key-version"), (DOCUMENT + b"\n", 3, "model-key"),
    (DOCUMENT.replace(b"3", b"03", 1), 3, "model-key"), (DOCUMENT.replace(b"version 3", b"version 0"), 3, "model-key"),
    (DOCUMENT.replace(b"version 3", b"version 2147483649"), None, "model-key"),
    (DOCUMENT.replace(b"version 3", b"version -3"), None, "model-key"), (DOCUMENT.upper(), None, "model-key"),
    (DOCUMENT.replace(b"\n", b"\r\n"), None, "model-key"), (DOCUMENT.replace(b"/v1", b"/v2"), None, "model-key"),
    (DOCUMENT[:17], None, "model-key"), (DOCUMENT[:60], None, "model-key"), (b" " + DOCUMENT, None, "model-key"),
    (DOCUMENT.replace(HEXED, HEXED.upper()), None, "model-key"), (b"", None, "model-key"),
]


@pytest.mark.parametrize(("text", "version", "expected"), DOCUMENTS)
def test_key_documents(text: bytes, version: int | None, expected: bytes) -> None:
    """A document gives its key where its version is the one accepted; a bare key has none."""
    assert expected == keydocument.accept(bytearray(text), "here", version)


@pytest.mark.parametrize(("text", "version", "code"), BAD_DOCUMENTS)
def test_bad_key_documents(text: bytes, version: int | None, code: str) -> None:
    """Anything else is refused without repeating it."""
    with pytest.raises(ModelKeyError) as caught:
        keydocument.accept(bytearray(text), "here", version)
    assert code == caught.value.code
    assert KEY.hex()[:16] not in str(caught.value).lower()


def test_documents_are_made_as_they_are_read(tmp_path: Path) -> None:
    """A made document has the specified bytes and fits into what a TPM seals; a file may hold one."""
    assert DOCUMENT == keydocument.make(bytearray(KEY), 3)
    assert 128 >= len(keydocument.make(bytearray(KEY), 1 << 31))
    for version in (0, (1 << 31) + 1):
        with pytest.raises(ValueError, match="version"):
            keydocument.make(bytearray(KEY), version)
    keyfile.make(tmp_path / "key", 7)
    assert (tmp_path / "key").read_bytes().startswith(b"appliance/key/v1\nversion 7\nkey ")
    with keys.FileKey(tmp_path / "key", 7).key() as key:
        assert any(key.data)
    with pytest.raises(ModelKeyError, match="version 7; the policy accepts version 8 alone"):
        keys.FileKey(tmp_path / "key", 8).key()
    with pytest.raises(ModelKeyError, match="no version"):
        keys.EnvironmentKey("K", {b"K": HEXED}, 1).key()


def test_addresses() -> None:
    """Port, path and IPv6 literals of a policy's URL."""
    assert "https://b.example:443" == str(Destination.of("https://b.example", "00"))
    assert "https://[::1]:8443/x" == str(Destination.of("https://[::1]:8443/x/", "00"))


def test_a_brokers_words_are_cut_and_printable() -> None:
    """What a broker explains goes to the console: no control characters, no length of its choice."""
    said = _said(HttpAnswer(401, json.dumps({"detail": "\x1b[2J" + "x" * 1000 + "\n"}).encode(), ()))
    assert said.startswith(": ?[2Jxxx")
    assert 202 == len(said)
    assert "" == _said(HttpAnswer(401, b"<html>", ())) == _said(HttpAnswer(401, b'{"detail":7}', ()))


def test_fuzz_briefly() -> None:
    """The seeds and a few thousand mutations raise nothing but our errors."""
    from tests.fuzz.driver import run

    count, finding = run(keyrelease_fuzz.fuzz, keyrelease_fuzz.seeds(), seconds=2, seed=1)
    assert (None, True) == (finding, count > len(keyrelease_fuzz.seeds()))
