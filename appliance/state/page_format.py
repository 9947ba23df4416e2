"""The bytes of pages of keys and values on a disk, sealed: records, and the table of their keys.
Spec: docs/formats/session-pages.md.

Nothing here reads or writes a disk, or draws a random number. Integers are little-endian. A record
is sealed under keys that come of one entry of the table; without that entry nothing opens it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.kernels.layouts.attention import PAGE
from appliance.secure.derivation import hkdf_into
from appliance.secure.locked import SecretBytes
from appliance.secure.wipe import wipe

DOMAIN: Final = b"appliance/pages/v2\n"
RECORD_MAGIC, TABLE_MAGIC = b"APG2", b"APPPAGES"
VERSION: Final = 2
TAG_BYTES, KEY_BYTES, SALT_BYTES = 16, 32, 32
BLOCK: Final = 4096  # records and tables begin at multiples of it
TABLE_BYTES: Final = 64 << 10
TABLES_BYTES: Final = 2 * TABLE_BYTES

_HEAD = struct.Struct("<4sIQQ")  # magic, zero, key, number
_LABEL = struct.Struct(f"<QQ{4 * PAGE}s")  # name of the page before: key, number; token ids
OWNER_BYTES: Final = 32  # SHA-256 of the tenant
HEAD_BYTES: Final = _HEAD.size
OWNER_END: Final = HEAD_BYTES + OWNER_BYTES + TAG_BYTES
LABEL_END: Final = OWNER_END + _LABEL.size + TAG_BYTES
BODY_AT: Final = 512

_TABLE_HEAD = struct.Struct("<8sII16s32s")  # magic, version, bytes that follow, disk, salt
_TABLE_BODY = struct.Struct("<QQ")  # counter, the next key's number
_KEY = struct.Struct("<QQQ32s")  # number, age in milliseconds, begun in milliseconds since 1970, secret
MOST_KEYS: Final = (TABLE_BYTES - _TABLE_HEAD.size - _TABLE_BODY.size - TAG_BYTES) // _KEY.size
LABEL, KEYS, OWNER, PIECES = 0, 1, 3, 4  # parts of a record, as their nonces count them; 2: values


@dataclass(frozen=True, slots=True)
class RecordKind:
    """A kind of record: its first bytes, the number of the first part of its content, and the use
    of that content's key."""

    magic: bytes
    first: int
    use: bytes


PAGES, STATES = RecordKind(RECORD_MAGIC, KEYS, b"page\n"), RecordKind(b"APS2", PIECES, b"state\n")


def content_nbytes(parts: Sequence[int]) -> int:
    """Bytes of a record whose content has parts of so many bytes."""
    return -(-(BODY_AT + sum(parts) + TAG_BYTES * len(parts)) // BLOCK) * BLOCK


def tenant_digest(tenant: str) -> bytes:
    """The tenant's name as records have it."""
    return hashlib.sha256(tenant.encode()).digest()


def cipher(secret: bytes | bytearray, use: bytes, binding: bytes) -> AESGCM:
    """The key for one use, bound to `binding`."""
    key = SecretBytes(KEY_BYTES)
    hkdf_into(key, secret, hashlib.sha256(binding).digest(), DOMAIN + use)
    return AESGCM(key)


def shelf_binding(label: str, at: int, content: bytes) -> bytes:
    """All that keys of a shelf are bound to: its model's label, the byte of the disk at which its
    records begin, and `content`, the lines that say what its pages' bits depend on."""
    return f"shelf {label}\nplace {at}\n".encode("ascii") + content


def owner_cipher(secret: bytes | bytearray, binding: bytes) -> AESGCM:
    """The key of owners: whose page a record has."""
    return cipher(secret, b"owner\n", binding)


def label_cipher(secret: bytes | bytearray, binding: bytes, tenant: bytes) -> AESGCM:
    """The key of a tenant's labels: which page of which text a record has."""
    return cipher(secret, b"label\n" + tenant, binding)


def page_cipher(secret: bytes | bytearray, binding: bytes, tenant: bytes, kind: RecordKind = PAGES) -> AESGCM:
    """The key of a tenant's keys and values, or of its states."""
    return cipher(secret, kind.use + tenant, binding)


@dataclass(frozen=True, slots=True)
class Label:
    """Which page of which text a record has, or the state at which page's end."""

    key: int
    number: int
    before_key: int  # name of the page before; zeros: none. Of a state: name of its page
    before_number: int
    tenant: bytes  # SHA-256
    tokens: bytearray | memoryview  # PAGE token ids of 32 bits, zeros of a state; the caller wipes them


def name_of(record: bytes | memoryview, kind: RecordKind = PAGES) -> tuple[int, int] | None:
    """Key and number in a record's head, as nobody has authenticated them; None if it is not a head
    of this kind."""
    if len(record) < HEAD_BYTES:
        return None
    magic, zero, key, number = _HEAD.unpack_from(record)
    return (key, number) if (magic, zero) == (kind.magic, 0) and key and number else None


def _nonce(number: int, part: int) -> bytes:
    return number.to_bytes(8, "little") + part.to_bytes(4, "little")


def _bound(at: int, head: bytes | bytearray | memoryview) -> bytes:
    """The associated data of a record's parts: its place on the disk, and its name."""
    return DOMAIN + at.to_bytes(8, "little") + bytes(head)


def seal(record: bytearray, at: int, label: Label, ciphers: tuple[AESGCM, AESGCM, AESGCM],
         content: Sequence[memoryview], kind: RecordKind = PAGES) -> None:
    """Fill the record that is to stand at byte `at`, of `content_nbytes`. `ciphers`: of owners, of
    labels, and of the content. A name is sealed once."""
    _HEAD.pack_into(record, 0, kind.magic, 0, label.key, label.number)
    bound, view = _bound(at, record[:HEAD_BYTES]), memoryview(record)
    plain = SecretBytes(_LABEL.size)
    _LABEL.pack_into(plain, 0, label.before_key, label.before_number, bytes(4 * PAGE))
    memoryview(plain)[_LABEL.size - 4 * PAGE:] = label.tokens
    ciphers[0].encrypt_into(_nonce(label.number, OWNER), label.tenant, bound, view[HEAD_BYTES:OWNER_END])
    ciphers[1].encrypt_into(_nonce(label.number, LABEL), plain, bound, view[OWNER_END:LABEL_END])
    for nonce, each, start in _parts(label.number, content, kind):
        ciphers[2].encrypt_into(nonce, each, bound, view[start:start + len(each) + TAG_BYTES])


def _parts(number: int, content: Sequence[memoryview], kind: RecordKind) -> Iterator[tuple[bytes, memoryview, int]]:
    """Nonce, content and first byte of each part of a record's content."""
    start = BODY_AT
    for part, each in enumerate(content, kind.first):
        yield _nonce(number, part), each, start
        start += len(each) + TAG_BYTES


def open_owner(record: bytes, at: int, owners: AESGCM, kind: RecordKind = PAGES) -> bytes | None:
    """SHA-256 of the tenant of a record that was read at byte `at`; None where it does not open."""
    name = name_of(record, kind)
    if name is None or len(record) < OWNER_END:
        return None
    try:
        return owners.decrypt(_nonce(name[1], OWNER), record[HEAD_BYTES:OWNER_END], _bound(at, record[:HEAD_BYTES]))
    except InvalidTag:
        return None


def open_label(record: bytes, at: int, labels: AESGCM, tenant: bytes, kind: RecordKind = PAGES) -> Label | None:
    """The label of a record of a tenant that was read at byte `at`; None where it does not open."""
    name = name_of(record, kind)
    if name is None or len(record) < LABEL_END:
        return None
    plain = SecretBytes(_LABEL.size)
    try:
        labels.decrypt_into(_nonce(name[1], LABEL), memoryview(record)[OWNER_END:LABEL_END],
                            _bound(at, record[:HEAD_BYTES]), plain)
    except InvalidTag:
        return None
    key, number = struct.unpack_from("<QQ", plain)
    return Label(*name, key, number, tenant, SecretBytes(memoryview(plain)[_LABEL.size - 4 * PAGE:]))


def open_page(record: bytes, at: int, name: tuple[int, int], pages: AESGCM, content: Sequence[memoryview],
              kind: RecordKind = PAGES) -> bool:
    """Open a record that was read at byte `at` into keys and values of a page, or the pieces of a
    state. False, and zeros there, where it is not the record of this name or does not authenticate.
    """
    view, size = memoryview(record), BODY_AT + sum(len(each) + TAG_BYTES for each in content)
    whole = len(record) >= size and name_of(record, kind) == name
    try:
        for nonce, each, start in _parts(name[1], content, kind) if whole else ():
            pages.decrypt_into(nonce, view[start:start + len(each) + TAG_BYTES], _bound(at, record[:HEAD_BYTES]), each)
    except InvalidTag:
        whole = False
    if not whole:
        for each in content:
            wipe(each)
    return whole


@dataclass(slots=True)
class PageKey:
    """An entry of the table. Times in milliseconds."""

    number: int
    age: int  # of the running appliance's clock, when the table was written
    begun: int  # since 1970, as the host said
    secret: SecretBytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys there are. `counter`: one more than in the table written before."""

    counter: int
    following: int  # the number of the next key
    keys: Sequence[PageKey] = ()


def _table_key(secret: bytes | bytearray, salt: bytes, disk: bytes) -> AESGCM:
    key = SecretBytes(KEY_BYTES)
    hkdf_into(key, secret, salt, DOMAIN + b"table\n" + disk)
    return AESGCM(key)


def seal_table(secret: bytes | bytearray, disk: bytes, salt: bytes, table: KeyTable) -> bytes:
    """The bytes of a table, at most TABLE_BYTES. ValueError for more than MOST_KEYS keys."""
    if len(table.keys) > MOST_KEYS:
        raise ValueError(f"{len(table.keys)} keys, at most {MOST_KEYS}")
    plain = SecretBytes(_TABLE_BODY.size + _KEY.size * len(table.keys))
    _TABLE_BODY.pack_into(plain, 0, table.counter, table.following)
    for index, each in enumerate(table.keys):
        end = _TABLE_BODY.size + _KEY.size * (index + 1)
        _KEY.pack_into(plain, end - _KEY.size, each.number, each.age, each.begun, bytes(KEY_BYTES))
        memoryview(plain)[end - KEY_BYTES:end] = each.secret
    head = _TABLE_HEAD.pack(TABLE_MAGIC, VERSION, len(plain) + TAG_BYTES, disk, salt)
    return head + _table_key(secret, salt, disk).encrypt(bytes(12), plain, DOMAIN + head)


def earlier_version(disk: bytes, data: bytes) -> int | None:
    """The version of a table of this disk that an earlier appliance wrote; None where it is no such
    table. Nothing of it is authenticated."""
    if len(data) < _TABLE_HEAD.size:
        return None
    magic, version, _, named_disk, _ = _TABLE_HEAD.unpack_from(data)
    return int(version) if (magic, named_disk) == (TABLE_MAGIC, disk) and 0 < version < VERSION else None


def open_table(secret: bytes | bytearray, disk: bytes, data: bytes) -> KeyTable | None:
    """The table in the first bytes of `data`; None where it does not authenticate for this disk."""
    if len(data) < _TABLE_HEAD.size:
        return None
    magic, version, size, named_disk, salt = _TABLE_HEAD.unpack_from(data)
    end, count = _TABLE_HEAD.size + size, (size - _TABLE_BODY.size - TAG_BYTES) // _KEY.size
    if (magic, version, named_disk) != (TABLE_MAGIC, VERSION, disk) or end > min(len(data), TABLE_BYTES) or (
            size != _TABLE_BODY.size + count * _KEY.size + TAG_BYTES or count < 0):
        return None
    plain, head = SecretBytes(size - TAG_BYTES), data[:_TABLE_HEAD.size]
    try:
        _table_key(secret, salt, disk).decrypt_into(bytes(12), memoryview(data)[_TABLE_HEAD.size:end], DOMAIN + head,
                                                    plain)
    except InvalidTag:
        return None
    counter, following = _TABLE_BODY.unpack_from(plain)
    keys = list[PageKey]()
    for index in range(count):
        at = _TABLE_BODY.size + _KEY.size * index
        number, age, begun = struct.unpack_from("<QQQ", plain, at)
        keys.append(PageKey(number, age, begun, SecretBytes(memoryview(plain)[at + 24:at + _KEY.size])))
    return KeyTable(counter, following, keys)
