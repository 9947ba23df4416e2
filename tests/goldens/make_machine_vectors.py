"""Writes docs/formats/machine-list-vectors.json: lists that hold, and lists with one thing wrong each.

    python -m tests.goldens.make_machine_vectors

Made by `json` and `cryptography` alone, after the specification.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TARGET = Path(__file__).parents[2] / "docs/formats/machine-list-vectors.json"
SEED = bytes(range(0x60, 0x80))
KEY, STRANGER = Ed25519PrivateKey.from_private_bytes(SEED), Ed25519PrivateKey.from_private_bytes(bytes(32))
APPLIANCE, MIN_VERSION = "llm-prod", 3
CHIP, TURIN = bytes(range(64)).hex(), bytes(range(1, 9)).hex() + "00" * 56
MACHINES = [
    {"custody": "Rack 4, Example Hosting, Vienna; key holder: operations", "id": CHIP, "kind": "chip-id",
     "not_after": "2027-06-30T23:59:59Z"},
    {"custody": "Rack 5 — reserve", "id": TURIN, "kind": "chip-id", "not_after": None},
    {"custody": "edge box 1", "id": "5a" * 32, "kind": "ek-sha256", "not_after": None},
    {"custody": "cage 2, two sockets", "id": "6b" * 16, "kind": "platform-instance-id", "not_after": None},
    {"custody": "cage 2", "id": "7c" * 16, "kind": "ppid", "not_after": "2030-01-01T00:00:00Z"}]


def canonical(value: Any) -> str:
    """RFC 8785, for values of this format."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def message(listed: Any) -> bytes:
    """What is signed."""
    return b"appliance/machine-list/v1\n" + canonical(listed).encode()


def listed(**changes: Any) -> dict[str, Any]:
    """A list with changes."""
    return {"appliance": APPLIANCE, "machines": MACHINES, "version": 7, **changes}


def signed(value: Any, key: Ed25519PrivateKey = KEY, **changes: Any) -> dict[str, Any]:
    """A file as a value."""
    return {"format": "appliance/machines/v1", "list": value, "signature": f"ed25519:{key.sign(message(value)).hex()}",
            **changes}


def _one(**changes: Any) -> dict[str, Any]:
    return listed(machines=[{**MACHINES[0], **changes}])


def _malformed() -> dict[str, dict[str, Any]]:
    """Lists that are signed, and not in form."""
    return {
        "a version of text": listed(version="7"), "a version below zero": listed(version=-1),
        "no list of machines": listed(machines={}),
        "one key more": listed(more=1), "a machine with one key more": _one(more=1),
        "a machine without custody": listed(machines=[{k: v for k, v in MACHINES[0].items() if k != "custody"}]),
        "another order": listed(machines=MACHINES[::-1]), "one machine twice": listed(machines=[MACHINES[0]] * 2),
        "an unknown kind": _one(kind="serial-number"), "upper case": _one(id="AB" * 64),
        "a short name": _one(id="01" * 8),
        "white space in a name": _one(id=" " + "ab" * 64), "a name of zeros": _one(id="00" * 64),
        "an empty note": _one(custody=""), "a long note": _one(custody="x" * 201),
        "a line end in a note": _one(custody="a\nb"), "a control character in a note": _one(custody="a\u0085b"),
        "a time with an offset": _one(not_after="2027-06-30T23:59:59+00:00"), "a time that is none": _one(
            not_after="2027-02-30T00:00:00Z"), "a time without seconds": _one(not_after="2027-06-30T23:59Z"),
        "a number as time": _one(not_after=1)}


def vectors() -> dict[str, Any]:
    """All of them."""
    good, empty = listed(), listed(machines=[], version=MIN_VERSION)
    found = [{"name": "all kinds", "expect": "success", "file": canonical(signed(good)) + "\n",
              "message": message(good).decode()},
             {"name": "no machine", "expect": "success", "file": canonical(signed(empty)),
              "message": message(empty).decode()},
             {"name": "another spelling of the same", "expect": "success", "file": json.dumps(signed(good), indent=2),
              "message": message(good).decode()}]
    altered = {**signed(good), "list": _one(custody="somebody else")}
    wrong = [("another authority", "machines-signature", signed(good, STRANGER)),
             ("an altered note", "machines-signature", altered),
             ("half a signature", "machines-signature", signed(good, signature="ed25519:" + "00" * 32)),
             ("a signature in upper case", "machines-signature", {
                 **signed(good), "signature": "ed25519:" + signed(good)["signature"][8:].upper()}),
             ("an older list", "machines-version", signed(listed(version=MIN_VERSION - 1))),
             ("another deployment's", "machines-other", signed(listed(appliance="llm-test"))),
             ("another format", "machines-malformed", signed(good, format="appliance/machines/v2")),
             ("not signed", "machines-malformed", good), ("no signature", "machines-malformed", {
                 k: v for k, v in signed(good).items() if k != "signature"}),
             *((name, "machines-malformed", signed(value)) for name, value in _malformed().items())]
    found += [{"name": name, "expect": code, "file": canonical(value)} for name, code, value in wrong]
    found.append({"name": "a key that stands twice", "expect": "machines-malformed",
                  "file": canonical(signed(good)).replace('"version":7', '"version":7,"version":7')})
    return {"format": "appliance/machines/v1", "appliance": APPLIANCE, "min_version": MIN_VERSION,
            "authority": {"private_key": SEED.hex(), "public_key": KEY.public_key().public_bytes_raw().hex()},
            "vectors": found}


if __name__ == "__main__":
    TARGET.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")
