"""The vectors of pages of sessions: two readers find in them what they say, and our writer makes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.state import page_format
from appliance.state.page_format import STATES, Label
from tests.goldens import make_session_vectors
from tests.support import pages_by_spec

VECTORS = json.loads((Path(__file__).parents[2] / "docs/formats/session-pages-vectors.json").read_text())


def test_they_are_those_of_the_writer() -> None:
    """The file is what the specification's writer makes."""
    assert VECTORS == json.loads(json.dumps(make_session_vectors.vectors()))


def test_the_vectors_of_the_specification() -> None:
    """Two readers find the table's keys; what the specification's writer wrote is what ours writes."""
    table = VECTORS["table"]
    secret, disk, data = (bytes.fromhex(table[name]) for name in ("secret", "disk", "bytes"))
    keys = {each["number"]: (each["age_ms"], each["begun_ms"], bytes.fromhex(each["key"])) for each in table["keys"]}
    assert [(table["counter"], table["next"], keys)] == pages_by_spec.tables(
        secret, disk, bytes(4096) + bytes(64 << 10) + data.ljust(64 << 10, b"\0"))
    opened = page_format.open_table(secret, disk, data)
    assert opened is not None
    assert keys == {each.number: (each.age, each.begun, bytes(each.secret)) for each in opened.keys}
    for record in VECTORS["records"]:
        ours, (owners, labels, pages) = bytearray(len(_padded(record))), _ciphers(record)
        label = Label(*record["name"], *record["before"], page_format.tenant_digest(record["tenant"]),
                      bytearray(np.array(record["tokens"], "<i4").tobytes()))
        page_format.seal(ours, record["at"], label, (owners, labels, pages),
                         (memoryview(bytes.fromhex(record["keys"])), memoryview(bytes.fromhex(record["values"]))))
        assert _padded(record) == bytes(ours)


def _padded(record: dict[str, Any]) -> bytes:
    return bytes.fromhex(record["bytes"]).ljust(page_format.content_nbytes([VECTORS["half"]] * 2), b"\0")


def _ciphers(record: dict[str, Any], shelf: int | None = None):
    key, tenant = bytes.fromhex(VECTORS["key"]), page_format.tenant_digest(record["tenant"])
    bound = VECTORS["shelves"][record["shelf"] if shelf is None else shelf]["binding"].encode()
    return (page_format.owner_cipher(key, bound), page_format.label_cipher(key, bound, tenant),
            page_format.page_cipher(key, bound, tenant))


def _opens(data: bytes, record: dict[str, Any], shelf: int | None = None) -> tuple[bool, tuple[str, str] | None]:
    """Whether the label opens by ours, and keys and values. The specification's reader must find the same."""
    at, half, name = record["at"], VECTORS["half"], tuple(record["name"])
    owners, labels, pages = _ciphers(record, shelf)
    tenant, content = page_format.open_owner(data, at, owners), [memoryview(bytearray(half)) for _ in range(2)]
    label = None if tenant is None else page_format.open_label(data, at, labels, tenant)
    whole = page_format.open_page(data, at, name, pages, (content[0], content[1]))
    bound = VECTORS["shelves"][record["shelf"] if shelf is None else shelf]["binding"].encode()
    found = list(pages_by_spec.records(bytes(at) + data + bytes(512), {2: bytes.fromhex(VECTORS["key"])}, bound,
                                       (half, half)))
    assert (label is not None) == bool(found)
    if label is not None and whole:
        assert found == [pages_by_spec.Page(at, name, tuple(record["before"]), page_format.tenant_digest(
            record["tenant"]), tuple(record["tokens"]), bytes(content[0]), bytes(content[1]))]
    return label is not None, (content[0].hex(), content[1].hex()) if whole else None


def test_the_vectors_of_two_models() -> None:
    """Two models of one file under one key: no number is given twice, and neither shelf opens the other's pages."""
    records, shelves_of = VECTORS["records"], [each["shelf"] for each in VECTORS["records"]]
    assert [0, 0, 1] == shelves_of
    assert 3 == len({tuple(each["name"]) for each in records})
    assert 1 == len({each["binding"].partition("model ")[2] for each in VECTORS["shelves"]})
    for record in records:
        assert (True, (record["keys"], record["values"])) == _opens(_padded(record), record)
        assert (False, None) == _opens(_padded(record), record, 1 - record["shelf"])


def test_the_vectors_of_a_state() -> None:
    """Our writer makes the specification's bytes of a state. Neither reader takes it for a page, nor a page for it; a
    bit that is another shows."""
    [state], key = VECTORS["states"], bytes.fromhex(VECTORS["key"])
    tenant, bound = page_format.tenant_digest(state["tenant"]), VECTORS["shelves"][2]["binding"].encode()
    content, name = bytes.fromhex(state["state"]), tuple(state["name"])
    owners, labels, states = (page_format.owner_cipher(key, bound), page_format.label_cipher(key, bound, tenant),
                              page_format.page_cipher(key, bound, tenant, STATES))
    ours = bytearray(page_format.content_nbytes([len(content)]))
    page_format.seal(ours, state["at"], Label(*name, *state["page"], tenant, bytearray(256)), (owners, labels, states),
                     [memoryview(content)], STATES)
    assert bytes.fromhex(state["bytes"]).ljust(len(ours), b"\0") == bytes(ours)
    assert [pages_by_spec.State(state["at"], name, tuple(state["page"]), tenant, content)] == list(
        pages_by_spec.states(bytes(state["at"]) + ours + bytes(512), {2: key}, bound, len(content)))
    place = memoryview(bytearray(len(content)))
    assert page_format.open_page(bytes(ours), state["at"], name, states, [place], STATES)
    assert content == bytes(place)
    assert None is page_format.open_owner(bytes(ours), state["at"], owners)
    assert not page_format.open_page(bytes(ours), state["at"], name, states, [place])
    for byte in (0, 8, 16, 512, 512 + len(content)):
        other = bytearray(ours)
        other[byte] ^= 1
        assert not page_format.open_page(bytes(other), state["at"], name, states, [place], STATES)
        assert not any(place)


@pytest.mark.parametrize("damage", VECTORS["damaged"], ids=lambda each: each["what"])
def test_the_damaged_vectors(damage: dict[str, Any]) -> None:
    """Of a record of which one bit is another, what the vectors say opens, and nothing else."""
    record = VECTORS["records"][0]
    data = bytearray(_padded(record))
    data[damage["byte"]] ^= 1
    label, content = _opens(bytes(data), record)
    assert (damage["label_opens"], damage["page_opens"]) == (label, content is not None)
