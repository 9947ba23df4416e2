"""The system's libcrypto, by function pointer: AES-256-GCM that compiled code can call, without the
interpreter.

It is the library that Python's own `ssl` module loads. Its answers are compared with known ones
before it is used. Everything happens in a library context of our own, which reads no configuration
file and sees no provider but the library's default one, whatever the environment says.
"""

from __future__ import annotations

import ctypes
import functools
import math
import time
from collections.abc import Callable
from typing import Any

from appliance.errors import ModelError

SONAME = "libcrypto.so.3"
KEY_NBYTES, NONCE_NBYTES, TAG_NBYTES = 32, 12, 16
SET_TAG = 0x11
"""EVP_CTRL_AEAD_SET_TAG."""

RATE_NBYTES, _TRIES = 256 << 10, 50

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {  # name: result, arguments
    "OpenSSL_version_num": (ctypes.c_ulong,),
    "OpenSSL_version": (ctypes.c_char_p, _INT),
    "OSSL_LIB_CTX_new": (_POINTER,),
    "EVP_CIPHER_fetch": (_POINTER, _POINTER, ctypes.c_char_p, ctypes.c_char_p),
    "EVP_CIPHER_CTX_new": (_POINTER,),
    "EVP_CIPHER_CTX_free": (None, _POINTER),
    "EVP_CIPHER_CTX_ctrl": (_INT, _POINTER, _INT, _INT, _POINTER),
    "EVP_DecryptInit_ex": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER),
    "EVP_DecryptUpdate": (_INT, _POINTER, _POINTER, _POINTER, _POINTER, _INT),
    "EVP_DecryptFinal_ex": (_INT, _POINTER, _POINTER, _POINTER),
}

# GCM specification of McGrew and Viega, test case 16: key, nonce, associated data, plaintext,
# ciphertext, tag.
_ANSWER = tuple(bytes.fromhex(text) for text in (
    "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
    "feedfacedeadbeeffeedfacedeadbeefabaddad2",
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657"
    "ba637b39",
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0a"
    "bcc9f662", "76fc6ece0f4e1768cddf8853bb2d551b"))


class Libcrypto:
    """A libcrypto that gave the known answers. Made by `load`."""

    def __init__(self, handle: Any) -> None:
        self._functions: dict[str, Any] = {}
        for name, (result, *arguments) in _SIGNATURES.items():
            function = self._functions[name] = handle[name]
            function.restype, function.argtypes = result, arguments
        if self.call("OpenSSL_version_num") >> 28 != 3:
            raise OSError("another major version")
        self.version = self.call("OpenSSL_version", 6).decode("ascii", "replace")
        """As the library says: "3.5.4", for example."""
        context = self.call("OSSL_LIB_CTX_new")
        self.cipher = self.call("EVP_CIPHER_fetch", context, b"AES-256-GCM", b"provider=default") if context else None
        if not self.cipher:
            raise OSError("no AES-256-GCM")

    def call(self, name: str, *arguments: Any) -> Any:
        """One of its functions."""
        return self._functions[name](*arguments)

    def address(self, name: str) -> int:
        """Where the code of a function is."""
        return int(ctypes.cast(self._functions[name], _POINTER).value or 0)

    @functools.cached_property
    def rate(self) -> float:
        """Bytes that one thread decrypts in a second, calls not counted."""
        out, cipher = ctypes.create_string_buffer(RATE_NBYTES), Cipher(self, bytes(KEY_NBYTES))
        whole, empty = ctypes.create_string_buffer(RATE_NBYTES), ctypes.create_string_buffer(0)
        try:
            return rate(lambda: cipher.decrypt(bytes(NONCE_NBYTES), b"", whole, bytes(TAG_NBYTES), out),
                        lambda: cipher.decrypt(bytes(NONCE_NBYTES), b"", empty, bytes(TAG_NBYTES), out))
        finally:
            cipher.close()


def rate(whole: Callable[[], object], empty: Callable[[], object]) -> float:
    """Bytes a second of what opens a message of RATE_NBYTES, beside what opens an empty one. The
    best of many tries, a few ms in all: another process that takes the CPU meanwhile must not
    decide."""
    def best(call: Callable[[], object]) -> float:
        found = math.inf
        for _ in range(_TRIES):
            start = time.perf_counter()
            call()
            found = min(found, time.perf_counter() - start)
        return found

    return RATE_NBYTES / max(best(whole) - best(empty), 1e-9)


class Cipher:
    """AES-256-GCM decryption under one key, for one thread at a time. The key schedule is in the
    library's own memory, which is wiped by `close`."""

    def __init__(self, library: Libcrypto, key: Any) -> None:
        """`key`: 32 bytes, any buffer; it is not kept. ModelError when the library has no memory.
        """
        self._library = library
        secret = (ctypes.c_char * KEY_NBYTES).from_buffer_copy(key)
        self.address = library.call("EVP_CIPHER_CTX_new") or 0
        """Of the EVP_CIPHER_CTX; 0 when closed."""
        try:
            if not self.address or not library.call(
                    "EVP_DecryptInit_ex", self.address, library.cipher, None, secret, None):
                self.close()
                raise ModelError("libcrypto does not take a key", code="libcrypto")
        finally:
            ctypes.memset(secret, 0, KEY_NBYTES)

    def decrypt(self, nonce: bytes, extra: bytes, data: Any, tag: bytes, out: Any) -> bool:
        """Decrypt ctypes buffer `data` into `out`, of the same size; whether the tag is right.
        Bytes in `out` are nobody's word if it is not."""
        call, context, count = self._library.call, self.address, ctypes.c_int()
        nbytes = ctypes.sizeof(data)
        return bool(
            call("EVP_DecryptInit_ex", context, None, None, None, nonce)
            and (not extra or call("EVP_DecryptUpdate", context, None, ctypes.byref(count), extra, len(extra)))
            and (not nbytes or call("EVP_DecryptUpdate", context, out, ctypes.byref(count), data, nbytes))
            and call("EVP_CIPHER_CTX_ctrl", context, SET_TAG, TAG_NBYTES, tag)
            and call("EVP_DecryptFinal_ex", context, out, ctypes.byref(count)) == 1)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self.close()

    def close(self) -> None:
        """Wipe and free; closing twice does nothing."""
        address, self.address = self.address, 0
        if address:
            self._library.call("EVP_CIPHER_CTX_free", address)


def _wrong(library: Libcrypto) -> str | None:
    """The name of a known answer that the library does not give; None where it gives all."""
    key, nonce, extra, plain, sealed, tag = _ANSWER
    data = (ctypes.c_char * len(sealed)).from_buffer_copy(sealed)
    out = (ctypes.c_char * len(sealed))()
    cipher = Cipher(library, key)
    try:
        if not cipher.decrypt(nonce, extra, data, tag, out) or out.raw != plain:
            return "decrypt"
        for name, altered in (("tag", (nonce, extra, data, tag[:-1] + bytes([tag[-1] ^ 1]))),
                              ("nonce", (nonce[:-1] + bytes([nonce[-1] ^ 1]), extra, data, tag)),
                              ("data", (nonce, extra[:-1], data, tag))):
            if cipher.decrypt(*altered, out):
                return f"refuse-{name}"
        return None
    finally:
        cipher.close()


@functools.cache
def load(name: str = SONAME) -> Libcrypto | None:
    """The library; None where there is none of a version that will do. ModelError for one that
    gives wrong answers."""
    try:
        library = Libcrypto(ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL))
    except (OSError, AttributeError):
        return None
    wrong = _wrong(library)
    if wrong is not None:
        raise ModelError(f"{name} {library.version} computes AES-256-GCM wrong: {wrong}", code="libcrypto",
                         hint="do not use this machine or this library")
    return library
