"""Writes docs/formats/session-pages-vectors.json: a table, records of two models, a state, and ways to damage one.

    python -m tests.goldens.make_session_vectors

Made by `tests.support.pages_by_spec`, which follows the specification and shares no code with the product.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.support import pages_by_spec as spec
from tests.support.pages_by_spec import Page, State

TARGET = Path(__file__).parents[2] / "docs/formats/session-pages-vectors.json"
SECRET, DISK, SALT = bytes(range(1, 33)), bytes(range(0xd0, 0xe0)), b"\xb1" * 32
KEYS = ((1, 3_600_000, 1_700_000_000_000, bytes(range(0x40, 0x60))),  # number, age, begun, secret
        (2, 0, 1_700_003_600_000, bytes(range(0x20, 0x40))))
HALF, MODEL, STATE = 96, "ab" * 32, 300
ARITHMETIC = "kv_cache q8\npage 64\ncontext 512\narithmetic 1\n"
SHELVES = (("chat", 1 << 20), ("second", (1 << 20) + 8192),  # two models of one file: label, byte of the first record
           ("stateful", (1 << 20) + 12288))
DAMAGE = (  # what, byte, whether the label opens, whether the page does
    ("magic", 0, False, False), ("zero", 5, False, False), ("key", 8, False, False), ("number", 16, False, False),
    ("owner", 30, False, True), ("tag of the owner", 71, False, True), ("label", 100, False, True),
    ("tag of the label", 359, False, True), ("zeros", 400, True, True), ("keys", 512, True, False),
    ("tag of the keys", 512 + HALF, True, False), ("values", 512 + HALF + 16, True, False),
    ("tag of the values", 512 + 2 * HALF + 16, True, False))


def _record(shelf: int, at: int, tenant: str, number: int, before: tuple[int, int], first: int) -> dict[str, Any]:
    """A record under the second key, whose content follows from a number."""
    bound = spec.binding(*SHELVES[shelf], MODEL, ARITHMETIC)
    page = Page(at, (2, number), before, hashlib.sha256(tenant.encode()).digest(),
                tuple(first + 7 * index for index in range(64)),
                bytes((first + index) % 256 for index in range(HALF)),
                bytes((first + 100 + index) % 256 for index in range(HALF)))
    assert page.keys is not None
    assert page.values is not None
    return {"shelf": shelf, "at": at, "tenant": tenant, "name": page.name, "before": before, "tokens": page.tokens,
            "keys": page.keys.hex(), "values": page.values.hex(), "bytes": spec.record(KEYS[1][3], bound, page).hex()}


def _state(at: int, tenant: str, number: int, page: tuple[int, int]) -> dict[str, Any]:
    """The record of a state of the third shelf."""
    state = State(at, (2, number), page, hashlib.sha256(tenant.encode()).digest(),
                  bytes((3 * index) % 256 for index in range(STATE)))
    assert state.content is not None
    bound = spec.binding(*SHELVES[2], MODEL, ARITHMETIC)
    return {"shelf": 2, "at": at, "tenant": tenant, "name": state.name, "page": page, "state": state.content.hex(),
            "bytes": spec.state_record(KEYS[1][3], bound, state).hex()}


def vectors() -> dict[str, Any]:
    """All of them. Both shelves seal under one key, and no number is given twice."""
    first = SHELVES[0][1]
    return {
        "format": "appliance/pages/v2",
        "table": {
            "secret": SECRET.hex(), "disk": DISK.hex(), "counter": 5, "next": 3,
            "keys": [{"number": number, "age_ms": age, "begun_ms": begun, "key": key.hex()}
                     for number, age, begun, key in KEYS],
            "bytes": spec.table(SECRET, DISK, SALT, (5, 3), KEYS).hex()},
        "half": HALF,
        "key": KEYS[1][3].hex(),
        "shelves": [{"label": label, "place": place, "binding": spec.binding(label, place, MODEL, ARITHMETIC).decode()}
                    for label, place in SHELVES],
        "records": [_record(0, first, "acme", 17, (0, 0), 1), _record(0, first + 4096, "acme", 19, (2, 17), 500),
                    _record(1, SHELVES[1][1], "other", 18, (0, 0), 1000)],
        "states": [_state(SHELVES[2][1] + 4096, "acme", 21, (2, 20))],
        "damaged": [{"what": what, "byte": byte, "label_opens": label, "page_opens": page}
                    for what, byte, label, page in DAMAGE],
    }


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), indent=1) + "\n")
