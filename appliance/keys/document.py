"""A key and its version as text, the one form in which every provider hands a key over.

    appliance/key/v1
    version 3
    key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f

Specified in docs/formats/key-release.md. A key without a version may stand alone, as `decode` reads
it. Everything secret stays in `SecretBytes`, which are wiped, and which have their size from the
beginning: what grows may move, and leave what it held so far where it was.
"""

from __future__ import annotations

import re

from appliance.errors import ModelKeyError
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe

NBYTES = 32
_HEX = b"0123456789abcdef"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
MAGIC = b"appliance/key/v1\n"
LONGEST = 128  # bytes of a document or a bare key; what a TPM seals is no longer either
LAST_VERSION = 1 << 31
_BODY = re.compile(rb"version ([1-9][0-9]{0,9})\nkey ([0-9a-f]{64})\n?")


def make(key: bytearray, version: int) -> bytearray:
    """The document of 32 bytes of key; the caller wipes it. ValueError for a version outside of 1
    to 2^31."""
    if len(key) != NBYTES or not 1 <= version <= LAST_VERSION:
        raise ValueError(f"a key of {len(key)} bytes, or version {version}")
    return line(key, MAGIC + b"version %d\nkey " % version)


def line(key: bytearray, head: bytes = b"") -> bytearray:
    """`head`, a key as lower-case hexadecimal digits, and a line feed; the caller wipes them."""
    found = SecretBytes(len(head) + 2 * len(key) + 1)
    found[:len(head)], found[-1:] = head, b"\n"
    for index, byte in enumerate(key):
        at = len(head) + 2 * index
        found[at], found[at + 1] = _HEX[byte >> 4], _HEX[byte & 15]
    return found


def accept(text: bytearray, where: str, version: int | None, *, bare: bool = False) -> bytearray:
    """The 32 bytes of the key in a document or a bare key; both are the caller's to wipe.

    `version` is the only one accepted; None accepts any, and a key without one, as `bare` does.
    ModelKeyError, which tells nothing of the key, for malformed text (`model-key`) or another
    version (`key-version`).
    """
    found, hexed = None, text
    if text.startswith(MAGIC):
        match = _BODY.fullmatch(text, len(MAGIC)) if len(text) <= LONGEST else None
        if match is None or int(match[1]) > LAST_VERSION:
            raise ModelKeyError(f"{where}: {len(text)} bytes that begin as a key document and go on as none",
                                hint="three lines: appliance/key/v1, version and a number, key and 64 digits 0-9 a-f")
        found = int(match[1])
        start, end = match.span(2)
        hexed = SecretBytes(memoryview(text)[start:end])
    if version is not None and found != version and not (bare and found is None):
        shown = "no version" if found is None else f"version {found}"
        if bare:
            raise ModelKeyError(f"{where}: the key has {shown}, not {version}", code="key-version",
                                hint="name the version that it has, or another key")
        raise ModelKeyError(f"{where}: the key has {shown}; the policy accepts version {version} alone",
                            code="key-version", hint="have the provider hand out that version, or change the policy")
    try:
        return decode(hexed, where)
    finally:
        if hexed is not text:
            wipe(hexed)


def decode(text: bytearray, where: str) -> bytearray:
    """The 32 bytes of a key as text: 64 lower-case hexadecimal digits, or 44 characters of base64
    with its padding; a line feed may follow. ModelKeyError, which tells nothing of the text, for
    anything else."""
    end = len(text) - 1 if text.endswith(b"\n") else len(text)
    found = SecretBytes(NBYTES)
    if (end == 64 and _from_digits(text, found)) or (end == 44 and _from_base64(text, found)):
        return found
    wipe(found)
    raise ModelKeyError(f"{where}: {len(text)} bytes that are no key; allowed: {NBYTES} bytes as 64 digits 0-9 a-f, or "
                        "as 44 characters of base64", hint="make one with: appliance model key FILE")


def _from_digits(text: bytearray, found: bytearray) -> bool:
    """Whether `text` begins with the digits of 32 bytes, which `found` gets."""
    for index in range(NBYTES):
        high, low = _HEX.find(text[2 * index]), _HEX.find(text[2 * index + 1])
        if high < 0 or low < 0:
            return False
        found[index] = high << 4 | low
    return True


def _from_base64(text: bytearray, found: bytearray) -> bool:
    """The same for 43 characters, of 6 bits each but the last, which counts 4, and their padding.
    """
    bits = count = at = 0
    for index in range(43):
        six = _BASE64.find(text[index])
        if six < 0:
            return False
        bits, count = (bits << 6 | six) & 0xFFFF, count + 6
        if count >= 8:
            count -= 8
            found[at], at = bits >> count & 0xFF, at + 1
    return bits & 3 == 0 and text[43] == ord("=")
