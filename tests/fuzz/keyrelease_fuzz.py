"""Fuzz target: what a key broker answers (challenge, error, JWE), what comes through the pipe, and key documents."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives.asymmetric import ec

from appliance.codec import brokerjson
from appliance.codec import jwe as keyrelease_jwe
from appliance.errors import ModelKeyError
from appliance.keys import document as keydocument
from appliance.keys.release import release as keyrelease
from appliance.keys.release.https import Destination, HttpAnswer, check_chain
from appliance.keys.release.kbs import PARAMETER, Handshake, _said
from appliance.keys.release.pipe import KEY, NONCE, REFUSAL, Pipe, PipeError

_VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/key-release-vectors.json").read_text())
_KEY = ec.derive_private_key(int(_VECTORS["release_key"]["d"], 16), ec.SECP256R1())
_NOW = datetime(2026, 6, 1, tzinfo=UTC)


def fuzz(data: bytes) -> None:
    """Each parser; only its own errors may come."""
    for parse in (_jwe, _challenge, _document, _pipe, _frame, _chain):
        try:
            parse(data)
        except (ModelKeyError, PipeError):
            continue


def _jwe(data: bytes) -> None:
    keyrelease_jwe.decrypt(data, _KEY)


def _challenge(data: bytes) -> None:
    _said(HttpAnswer(401, data, ()))
    keyrelease._refusal(bytearray(data))
    challenge = brokerjson.parse(data, "challenge")
    session = Handshake(cast(Any, None), "tpm", {"key": ""})
    session._take_activation(challenge.get("extra-params"))
    nonce = challenge.get("nonce")
    if isinstance(nonce, str):
        brokerjson.base64_padded(nonce, "nonce", range(16, 65))


def _document(data: bytes) -> None:
    keydocument.accept(bytearray(data), "here", None)


def _pipe(data: bytes) -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, data[:4096])
        os.close(writer)
        Pipe(reader, -1, time.monotonic() + 1).receive(NONCE, KEY, REFUSAL)
    finally:
        os.close(reader)


def _frame(data: bytes) -> None:
    for session in (False, True):
        spki, connection, nonce, activation = keyrelease._challenge(data, session=session)
        parts = (spki, *(connection or ()), bytes([len(nonce)]), nonce, activation)
        if len(nonce) == data[32 * (1 + 2 * session)] and data != b"".join(parts):
            raise AssertionError("a frame is not the sum of its parts")


def _chain(data: bytes) -> None:
    import hashlib

    check_chain([data, data], Destination("b.example", 443, "", hashlib.sha256(data).hexdigest()), _NOW)


def seeds() -> list[bytes]:
    """The vectors, answers of a broker, frames, and a certificate."""
    from tests.support.brokers import Authority, Encoding

    framed = [kind + len(body).to_bytes(4, "big") + body for kind, body in (
        (b"N", bytes(64)), (b"K", _VECTORS["plaintext"].encode()), (b"X", b'{"code":"a","summary":"b","hint":""}'))]
    return [*(json.dumps(vector["jwe"]).encode() for vector in _VECTORS["vectors"]), _VECTORS["plaintext"].encode(),
            b'{"nonce":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","extra-params":""}',
            b'{"nonce":"AAAAAAAAAAAAAAAAAAAAAA==","extra-params":{"%s":"AAEC"}}' % PARAMETER.encode(),
            b'{"type":"x","detail":"no"}', *framed, Authority().leaf.public_bytes(Encoding.DER),
            Authority().root.public_bytes(Encoding.DER)]
