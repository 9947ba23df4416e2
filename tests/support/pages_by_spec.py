"""A reader and a writer of docs/formats/session-pages.md, written only from that page."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

D = b"appliance/pages/v2\n"


def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, 32 bytes."""
    return HKDF(SHA256(), 32, salt, info).derive(secret)


def binding(label: str, place: int, model: str, arithmetic: str) -> bytes:
    """The binding of a shelf; `arithmetic` is its lines after the model's."""
    return f"shelf {label}\nplace {place}\nmodel {model}\n{arithmetic}".encode()


def tables(secret: bytes, disk: bytes, data: bytes) -> list[tuple[int, int, dict[int, tuple[int, int, bytes]]]]:
    """Of each table in the last 128 KiB that opens: counter, next number, keys (age, begun, secret) by number."""
    found = []
    for at in (len(data) // 4096 * 4096 - (128 << 10), len(data) // 4096 * 4096 - (64 << 10)):
        head, size = data[at:at + 64], int.from_bytes(data[at + 12:at + 16], "little")
        if head[:12] != b"APPPAGES\2\0\0\0" or head[16:32] != disk:
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


def table(secret: bytes, disk: bytes, salt: bytes, numbers: tuple[int, int],
          keys: Sequence[tuple[int, int, int, bytes]], *, version: int = 2) -> bytes:
    """A table as a writer makes it. `numbers`: counter and next number; `keys`: number, age, begun, secret. Version 1
    had another domain."""
    domain = D.replace(b"v2", b"v%d" % version)
    plain = struct.pack("<QQ", *numbers) + b"".join(struct.pack("<QQQ32s", *each) for each in keys)
    head = struct.pack("<8sII16s32s", b"APPPAGES", version, len(plain) + 16, disk, salt)
    return head + AESGCM(hkdf(secret, salt, domain + b"table\n" + disk)).encrypt(bytes(12), plain, domain + head)


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


def _cipher(key: bytes, bound: bytes, use: bytes) -> AESGCM:
    return AESGCM(hkdf(key, sha256(bound).digest(), D + use))


def _nonce(number: int, part: int) -> bytes:
    return number.to_bytes(8, "little") + part.to_bytes(4, "little")


def record(key: bytes, bound: bytes, page: Page) -> bytes:
    """The bytes of a page as a writer makes them, whose table key and whose shelf's binding are given."""
    assert page.keys is not None
    assert page.values is not None
    head = struct.pack("<4sIQQ", b"APG2", 0, *page.name)
    extra, number = D + page.at.to_bytes(8, "little") + head, page.name[1]
    owner = _cipher(key, bound, b"owner\n").encrypt(_nonce(number, 3), page.tenant, extra)
    label = _cipher(key, bound, b"label\n" + page.tenant).encrypt(
        _nonce(number, 0), struct.pack("<QQ64i", *page.before, *page.tokens), extra)
    pages = _cipher(key, bound, b"page\n" + page.tenant)
    start = (head + owner + label).ljust(512, b"\0")
    return start + pages.encrypt(_nonce(number, 1), page.keys, extra) + pages.encrypt(
        _nonce(number, 2), page.values, extra)


@dataclass(frozen=True)
class State:
    """A record of a state that opens."""

    at: int
    name: tuple[int, int]
    page: tuple[int, int]
    tenant: bytes
    content: bytes | None  # None: it does not open


PIECE = 16 << 20


def state_record(key: bytes, bound: bytes, state: State) -> bytes:
    """The bytes of a state as a writer makes them."""
    assert state.content is not None
    head = struct.pack("<4sIQQ", b"APS2", 0, *state.name)
    extra, number = D + state.at.to_bytes(8, "little") + head, state.name[1]
    owner = _cipher(key, bound, b"owner\n").encrypt(_nonce(number, 3), state.tenant, extra)
    label = _cipher(key, bound, b"label\n" + state.tenant).encrypt(
        _nonce(number, 0), struct.pack("<QQ", *state.page) + bytes(256), extra)
    sealer = _cipher(key, bound, b"state\n" + state.tenant)
    return (head + owner + label).ljust(512, b"\0") + b"".join(
        sealer.encrypt(_nonce(number, 4 + index), state.content[first:first + PIECE], extra)
        for index, first in enumerate(range(0, len(state.content), PIECE)))


def states(data: bytes, keys: dict[int, bytes], bound: bytes, size: int) -> Iterator[State]:
    """Every record of a state of so many bytes whose label opens, wherever it begins."""
    for at in range(0, len(data) - 512, 4096):
        magic, zero, key, number = struct.unpack_from("<4sIQQ", data, at)
        if magic != b"APS2" or zero or key not in keys:
            continue
        extra = D + at.to_bytes(8, "little") + data[at:at + 24]
        try:
            tenant = _cipher(keys[key], bound, b"owner\n").decrypt(_nonce(number, 3), data[at + 24:at + 72], extra)
            label = _cipher(keys[key], bound, b"label\n" + tenant).decrypt(
                _nonce(number, 0), data[at + 72:at + 360], extra)
        except InvalidTag:
            continue
        content, start, opener = b"", at + 512, _cipher(keys[key], bound, b"state\n" + tenant)
        try:
            for index, first in enumerate(range(0, size, PIECE)):
                end = start + min(PIECE, size - first) + 16
                content += opener.decrypt(_nonce(number, 4 + index), data[start:end], extra)
                start = end
        except InvalidTag:
            content = b""
        page_key, page_number = struct.unpack_from("<QQ", label)
        yield State(at, (key, number), (page_key, page_number), tenant, content or None)


def records(data: bytes, keys: dict[int, bytes], bound: bytes, halves: Sequence[int]) -> Iterator[Page]:
    """Every record whose label opens under one of some keys, wherever it begins."""
    for at in range(0, len(data) - 512, 4096):
        magic, zero, key, number = struct.unpack_from("<4sIQQ", data, at)
        if magic != b"APG2" or zero or key not in keys:
            continue
        extra = D + at.to_bytes(8, "little") + data[at:at + 24]

        def opened(use: bytes, part: int, start: int, size: int, *, key: int = key, number: int = number,
                   extra: bytes = extra, at: int = at) -> bytes | None:
            try:
                return _cipher(keys[key], bound, use).decrypt(
                    _nonce(number, part), data[at + start:at + start + size], extra)
            except InvalidTag:
                return None
        tenant = opened(b"owner\n", 3, 24, 32 + 16)
        label = None if tenant is None else opened(b"label\n" + tenant, 0, 72, 272 + 16)
        if tenant is None or label is None:
            continue
        before_key, before_number = struct.unpack_from("<QQ", label)
        yield Page(at, (key, number), (before_key, before_number), tenant, struct.unpack_from("<64i", label, 16),
                   opened(b"page\n" + tenant, 1, 512, halves[0] + 16),
                   opened(b"page\n" + tenant, 2, 512 + halves[0] + 16, halves[1] + 16))
