"""Fuzz target: pages of sessions that the host altered. The first byte says whether the rest is a record or a table."""

from __future__ import annotations

from appliance.secure.locked import SecretBytes
from appliance.state import page_format
from appliance.state.page_format import KeyTable, Label, PageKey
from tests.support import pages_by_spec

SECRET, DISK, KEY, BINDING = bytes(range(1, 33)), b"fuzzed disk 0001", bytes(range(2, 34)), b"model\n"
HALF, AT, NAME = 600, 8192, (3, 9)
TENANT = page_format.tenant_digest("tenant")
PAGE = bytes(range(200)) * 3, bytes(range(50, 250)) * 3
TOKENS = b"".join(number.to_bytes(4, "little") for number in range(64))


def record() -> bytes:
    """A record."""
    found = bytearray(page_format.content_nbytes((HALF, HALF)))
    label = Label(*NAME, 2, 5, TENANT, bytearray(TOKENS))
    page_format.seal(found, AT, label, _ciphers(), (memoryview(PAGE[0]), memoryview(PAGE[1])))
    return bytes(found)


def _ciphers():
    return (page_format.owner_cipher(KEY, BINDING), page_format.label_cipher(KEY, BINDING, TENANT),
            page_format.page_cipher(KEY, BINDING, TENANT))


def table() -> bytes:
    """A table of two keys."""
    keys = [PageKey(number, 10 * number, 20 * number, SecretBytes(bytes([number]) * 32)) for number in (1, 2)]
    return page_format.seal_table(SECRET, DISK, b"t" * 32, KeyTable(7, 3, keys))


def fuzz(data: bytes) -> None:
    """Open; nothing but the genuine content may come out, and both readers must find the same."""
    body = data[1:]
    if data[:1] == b"\0":
        found = page_format.open_table(SECRET, DISK, body)
        if found is not None and not body.startswith(table()):
            raise AssertionError("opened what nobody sealed")
        if found is not None and (found.counter, found.following, len(found.keys)) != (7, 3, 2):
            raise AssertionError("read what nobody wrote")
        return
    owners, labels, pages = _ciphers()
    owner = page_format.open_owner(body, AT, owners)
    if owner not in (None, TENANT):
        raise AssertionError("read an owner that nobody wrote")
    label = None if owner is None else page_format.open_label(body, AT, labels, owner)
    if label is not None and (label.key, label.number, bytes(label.tokens)) != (*NAME, TOKENS):
        raise AssertionError("read a label that nobody wrote")
    content = memoryview(bytearray(b"x" * HALF)), memoryview(bytearray(b"x" * HALF))
    opened = page_format.open_page(body, AT, NAME, pages, content)
    if (bytes(content[0]), bytes(content[1])) != (PAGE if opened else (bytes(HALF), bytes(HALF))):
        raise AssertionError("served what nobody wrote")
    whole = bytes(AT) + body.ljust(page_format.content_nbytes((HALF, HALF)), b"\0") + bytes(512)
    read = list(pages_by_spec.records(whole, {NAME[0]: KEY}, BINDING, (HALF, HALF)))
    if (label is not None) != bool(read) or (label is not None and opened) != bool(
            read and read[0].keys is not None and read[0].values is not None):
        raise AssertionError("two readers find two records")


def seeds() -> list[bytes]:
    """A record, and a table."""
    return [b"\0" + table(), b"\1" + record()]
