"""A key and its version as text, the one form in which every provider hands a key over.

    appliance/key/v1
    version 3
    key 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f

Specified in docs/formats/key-release.md. A key without a version may stand alone, as `decode` reads it.
Everything secret stays in bytearrays, which are wiped.
"""

from __future__ import annotations

import re

from appliance.errors import ModelKeyError
from appliance.models.disk_random import wipe

NBYTES = 32
_HEX = b"0123456789abcdef"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
MAGIC = b"appliance/key/v1\n"
LONGEST = 128  # bytes of a document or a bare key; what a TPM seals is no longer either
LAST_VERSION = 1 << 31
_BODY = re.compile(rb"version ([1-9][0-9]{0,9})\nkey ([0-9a-f]{64})\n?")


def make(key: bytearray, version: int) -> bytearray:
    """The document of 32 bytes of key; the caller wipes it. ValueError for a version outside of 1 to 2^31."""
    if len(key) != NBYTES or not 1 <= version <= LAST_VERSION:
        raise ValueError(f"a key of {len(key)} bytes, or version {version}")
    text = encode(key)
    document = bytearray(MAGIC + b"version %d\nkey " % version)
    document += text
    document += b"\n"
    wipe(text)
    return document


def encode(key: bytearray) -> bytearray:
    """A key as lower-case hexadecimal digits; the caller wipes them."""
    return bytearray(_HEX[half] for byte in key for half in (byte >> 4, byte & 15))


def accept(text: bytearray, where: str, version: int | None) -> bytearray:
    """The 32 bytes of the key in a document or a bare key; both are the caller's to wipe.

    `version` is the only one accepted; None accepts any, and a key without one. ModelKeyError, which tells nothing
    of the key, for malformed text (`model-key`) or another version (`key-version`).
    """
    found, hexed = None, text
    if text.startswith(MAGIC):
        match = _BODY.fullmatch(text, len(MAGIC)) if len(text) <= LONGEST else None
        if match is None or int(match[1]) > LAST_VERSION:
            raise ModelKeyError(f"{where}: {len(text)} bytes that begin as a key document and go on as none",
                                hint="three lines: appliance/key/v1, version and a number, key and 64 digits 0-9 a-f")
        found = int(match[1])
        start, end = match.span(2)
        hexed = text[start:end]
    if version is not None and found != version:
        shown = "no version" if found is None else f"version {found}"
        raise ModelKeyError(f"{where}: the key has {shown}; the policy accepts version {version} alone",
                            code="key-version", hint="have the provider hand out that version, or change the policy")
    try:
        return decode(hexed, where)
    finally:
        if hexed is not text:
            wipe(hexed)


def decode(text: bytearray, where: str) -> bytearray:
    """The 32 bytes of a key as text: 64 lower-case hexadecimal digits, or 44 characters of base64 with its padding; a
    line feed may follow. ModelKeyError, which tells nothing of the text, for anything else."""
    end = len(text) - 1 if text.endswith(b"\n") else len(text)
    if end == 64:
        values = [_HEX.find(text[i]) for i in range(64)]
        if min(values) >= 0:
            return bytearray(high << 4 | low for high, low in zip(values[::2], values[1::2], strict=True))
    if end == 44 and text[43] == ord("="):
        values = [_BASE64.find(text[i]) for i in range(43)]
        if min(values) >= 0 and values[42] & 3 == 0:
            return _from_sixes(values)
    raise ModelKeyError(f"{where}: {len(text)} bytes that are no key; allowed: {NBYTES} bytes as 64 digits 0-9 a-f, or "
                        "as 44 characters of base64", hint="make one with: appliance model key FILE")


def _from_sixes(values: list[int]) -> bytearray:
    """43 values of 6 bits, the last of which counts 4 bits, as 32 bytes."""
    out = bytearray()
    bits = count = 0
    for value in values:
        bits, count = (bits << 6 | value) & 0xFFFF, count + 6
        if count >= 8:
            count -= 8
            out.append(bits >> count & 0xFF)
    return out
