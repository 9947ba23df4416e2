"""The system's libcrypto by function pointer: published vectors, agreement with `cryptography`, and refusals."""

from __future__ import annotations

import ctypes
import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.boot.selftest import crypto_vectors as vectors
from appliance.errors import ModelError
from appliance.models.sources import native
from appliance.secure import libcrypto
from tests.support.require import absent


@pytest.fixture(scope="module")
def library() -> libcrypto.Libcrypto:
    """The library of this machine."""
    found = libcrypto.load()
    if found is None:
        absent("there is no libcrypto.so.3: apt-get install libssl3")
    return found


def _decrypt(library: libcrypto.Libcrypto, key: bytes, nonce: bytes, extra: bytes, sealed: bytes) -> bytes | None:
    cipher = libcrypto.Cipher(library, key)
    data, tag = (ctypes.c_char * (len(sealed) - 16)).from_buffer_copy(sealed), sealed[-16:]
    out = (ctypes.c_char * max(len(data), 1))()
    try:
        return out.raw[:len(data)] if cipher.decrypt(nonce, extra, data, tag, out) else None
    finally:
        cipher.close()
        cipher.close()


@pytest.mark.parametrize("index", range(len(vectors.GCM)))
def test_published_vectors(index: int, library: libcrypto.Libcrypto) -> None:
    """Every vector of the boot's self-test decrypts; with any part of it altered it is refused."""
    vector = vectors.GCM[index]
    assert vector.plain == _decrypt(library, vector.key, vector.nonce, vector.aad, vector.sealed)
    for at in (0, len(vector.sealed) - 1):
        wrong = bytearray(vector.sealed)
        wrong[at] ^= 0x80
        assert _decrypt(library, vector.key, vector.nonce, vector.aad, bytes(wrong)) is None
    assert _decrypt(library, vector.key, vector.nonce, vector.aad + b"\0", vector.sealed) is None
    assert _decrypt(library, bytes(byte ^ 1 for byte in vector.key), vector.nonce, vector.aad, vector.sealed) is None


@pytest.mark.parametrize("nbytes", [0, 1, 15, 16, 17, 4095, 4096, 65536, 262144])
def test_agrees_with_cryptography(nbytes: int, library: libcrypto.Libcrypto) -> None:
    """What one library encrypts, the other decrypts."""
    key, nonce, extra, plain = os.urandom(32), os.urandom(12), os.urandom(32), os.urandom(nbytes)
    assert plain == _decrypt(library, key, nonce, extra, AESGCM(key).encrypt(nonce, plain, extra))


def test_wrong_answers_are_refused(library: libcrypto.Libcrypto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose answer is not the known one is not used, and says so; a missing one is no error."""
    assert libcrypto.load("libcrypto-that-is-not-there.so") is None
    assert libcrypto.load("libm.so.6") is None
    answer = list(libcrypto._ANSWER)
    answer[3] = answer[3][:-1] + b"\0"
    monkeypatch.setattr(libcrypto, "_ANSWER", tuple(answer))
    with pytest.raises(ModelError, match="wrong: decrypt"):
        libcrypto.load.__wrapped__()


def test_it_reads_no_configuration(library: libcrypto.Libcrypto) -> None:
    """All functions that compiled code calls have addresses of their own."""
    addresses = native.functions(library)
    assert len(addresses) == len(set(addresses.values())) == 7
    assert all(addresses.values())


def test_which_is_faster(library: libcrypto.Libcrypto, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow libcrypto is not used by few threads; many threads share one interpreter, and are better off with it."""
    monkeypatch.setattr(native, "_rate", lambda: 20e9)
    monkeypatch.setitem(library.__dict__, "rate", 5e9)
    assert [False, True] == [native.worthwhile(library, threads, 1 << 18) for threads in (1, 64)]
    monkeypatch.setitem(library.__dict__, "rate", 20e9)
    assert native.worthwhile(library, 1, 1 << 18)
