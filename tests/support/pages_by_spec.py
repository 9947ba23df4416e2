"""A reader of docs/formats/session-pages.md, written from that page alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

D = b"appliance/pages/v1\n"


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, 32 bytes."""
    return HKDF(SHA256(), 32, salt, info).derive(secret)


def tables(secret: bytes, disk: bytes, data: bytes) -> list[tuple[int, int, dict[int, tuple[int, int, bytes]]]]:
    """Of each table in the last 128 KiB that opens: counter, next number, keys (age, begun, secret) by number."""
    found = []
    for at in (len(data) // 4096 * 4096 - (128 << 10), len(data) // 4096 * 4096 - (64 << 10)):
        head, size = data[at:at + 64], int.from_bytes(data[at + 12:at + 16], "little")
        if head[:12] != b"APPPAGES\1\0\0\0" or head[16:32] != disk:
            continue
        try:
            plain = AESGCM(hkdf(secret, head[32:], D + b"table\n" + disk)).decrypt(
                bytes(12), data[at + 64:at + 64 + size], D + head)
        except InvalidTag:
            continue
        counter, following = struct.unpack_from("<QQ", plain)
        keys = {}
        for start in range(16, len(plain), 56):
            number, age, begun, key = struct.unpack_from("<QQQ32s", plain, start)
            keys[number] = age, begun, key
        found.append((counter, following, keys))
    return found


@dataclass(frozen=True)
class Page:
    """A record that opens."""

    at: int
    name: tuple[int, int]
    before: tuple[int, int]
    tenant: bytes
    tokens: tuple[int, ...]
    keys: bytes | None  # None: they do not open
    values: bytes | None


def records(data: bytes, keys: dict[int, bytes], binding: bytes, half: int) -> Iterator[Page]:
    """Every record whose label opens under one of some keys, wherever it begins."""
    salt = sha256(binding).digest()
    for at in range(0, len(data) - 512, 4096):
        magic, zero, key, number = struct.unpack_from("<4sIQQ", data, at)
        if magic != b"APG1" or zero or key not in keys:
            continue
        bound = D + at.to_bytes(8, "little") + data[at:at + 24]

        def opened(use: bytes, part: int, start: int, size: int, *, key: int = key, number: int = number,
                   bound: bytes = bound, at: int = at) -> bytes | None:
            nonce = number.to_bytes(8, "little") + part.to_bytes(4, "little")
            try:
                return AESGCM(hkdf(keys[key], salt, D + use)).decrypt(nonce, data[at + start:at + start + size], bound)
            except InvalidTag:
                return None
        label = opened(b"label\n", 0, 24, 304 + 16)
        if label is None:
            continue
        before_key, before_number, tenant = struct.unpack_from("<QQ32s", label)
        yield Page(at, (key, number), (before_key, before_number), tenant, struct.unpack_from("<64i", label, 48),
                   opened(b"page\n" + tenant, 1, 512, half + 16),
                   opened(b"page\n" + tenant, 2, 512 + half + 16, half + 16))
