"""An opening for the auditor: by the specification alone, for one key and one request, of a size that tells nothing."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st

from appliance.auditor import held
from appliance.codec import strict
from appliance.errors import NoteError
from appliance.receipts import envelopes, opening

PRIVATE = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = PRIVATE.public_key().public_bytes_raw()
REQUEST = "req-" + "0a" * 16


def whole(prompt: int, tokens: int, *, ending: int | None = 2, token: int = 7) -> dict[str, Any]:
    salts = dict.fromkeys(("request", "answer", "tokens", "settings"), "ab" * 32)
    return {"salts": salts, "prompt_tokens": [token] * prompt, "tokens": [token] * tokens, "ending": ending,
            "sampling": {"temperature": 0.7}, "seed": "5", "max_tokens": 9, "stop": [], "constraint": None,
            "kv_cache": "f16"}


def test_by_the_specification() -> None:
    """HPKE in base mode, with the info that the format says, gives canonical JSON and spaces."""
    sealed = strict.base64url(opening.seal(whole(3, 2), PUBLIC, REQUEST, 1))
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    plain = suite.decrypt(sealed, PRIVATE, b"appliance/receipt-opening/v1\n" + REQUEST.encode())
    assert json.dumps(whole(3, 2), sort_keys=True, separators=(",", ":")).encode() == plain.rstrip(b" ")
    assert 1024 + 11 * 6 == len(plain)
    assert whole(3, 2) == envelopes.opening(opening.seal(whole(3, 2), PUBLIC, REQUEST, 1), PRIVATE, REQUEST)


@given(prompt=st.integers(1, 128), tokens=st.integers(0, 127), token=st.sampled_from([0, 7, 2**32 - 1]),
       ending=st.sampled_from([None, 0, 2**32 - 1]))
def test_the_size_is_one_of_the_rounded_counts(prompt: int, tokens: int, token: int, ending: int | None) -> None:
    """Whatever the tokens are, and how many of a multiple."""
    def size(*counts: int, **more: Any) -> int:
        return len(opening.seal(whole(*counts, **more), PUBLIC, REQUEST, 64))

    chosen = tokens + (ending is not None)
    same = size(-(-prompt // 64) * 64, -(-chosen // 64) * 64, ending=None)
    assert same == size(prompt, tokens, token=token, ending=ending)


def test_another_key_or_request_opens_nothing(tmp_path: Path) -> None:
    """And neither does what is no opening."""
    sealed = opening.seal(whole(3, 2), PUBLIC, REQUEST, 1)
    for odd, key, request in ((sealed, X25519PrivateKey.generate(), REQUEST), (sealed, PRIVATE, "req-" + "0b" * 16),
                              (sealed[:-4], PRIVATE, REQUEST), ("", PRIVATE, REQUEST), ("=", PRIVATE, REQUEST)):
        with pytest.raises(NoteError, match="does not open"):
            envelopes.opening(odd, key, request)
    path = tmp_path / "key.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True)
    with pytest.raises(NoteError, match="X25519"):
        held.auditor_key(path)
