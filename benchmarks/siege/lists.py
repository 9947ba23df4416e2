"""Lists of tenants that cost their reader. Each must be refused: the authority signed only the
list in force."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.signed import desk
from benchmarks.siege import bombs
from benchmarks.tenants.served import APPLIANCE, MODEL, key_of

AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(range(11, 43)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(12, 44)))
IN_FORCE = 7  # the version of the list in force


def row(name: str, role: str = "user", keys: int = 1) -> dict[str, Any]:
    """A tenant, as a list has it."""
    digests = [hashlib.sha256(key_of(f"{name}-{number}" if number else name).encode()).hexdigest()
               for number in range(keys)]
    return {"name": name, "role": role, "models": [MODEL], "api_key_sha256": digests}


def signed(rows: Iterable[dict[str, Any]], version: int = IN_FORCE, key: Ed25519PrivateKey = AUTHORITY) -> bytes:
    """The file of a list of tenants."""
    listed = {"appliance": APPLIANCE, "version": version, "tenants": sorted(rows, key=lambda each: str(each["name"]))}
    return desk.sign_tenants(listed, key)


@functools.cache
def _many() -> bytes:
    return signed((row(f"t{number:05}") for number in range(4000)), 1 << 40, STRANGER)


@functools.cache
def _rotated() -> bytes:
    return signed((row(f"t{number:03}", keys=64) for number in range(200)), 1 << 40, STRANGER)


@functools.cache
def _replayed() -> bytes:
    return signed([row("hostile", "admin")])


def _other_version(made: Callable[[], bytes]) -> Callable[[int], bytes]:
    """A file whose version is another one, so that its signature, too, is wrong."""
    return lambda number: made().replace(b'"version":%d' % (1 << 40), b'"version":%d' % ((1 << 40) + number))


def _around(before: str, unit: str, after: str) -> bytes:
    return (before + unit * ((bombs.BODY - len(before) - len(after)) // len(unit)) + after).encode()


def _unsigned(number: int, listed: Any) -> bytes:
    signature = f"ed25519:{number:0128x}"
    return json.dumps({"format": "appliance/tenants/v2", "list": listed, "signature": signature}).encode()


LISTS: list[Callable[[int], bytes]] = [
    _other_version(_many), _other_version(_rotated),
    lambda number: _replayed(),  # what the authority signed, and is in force
    lambda number: _around(f'{{"format": "{number}", "list": ', "[", ""),
    lambda number: _around(f'{{"format": "{number}", "list": [', "[],", "[]]}"),
    lambda number: _around(f'{{"format": "{number}", "list": ', '{"a":', ""),
    lambda number: _around(f'{{"format": "{number}", "signature": "ed25519:', "ab", '"}'),
    lambda number: _around(f'{{"format": "{number}", "list": {{"version": ', "9", "}}"),
    lambda number: _unsigned(number, {"appliance": APPLIANCE, "version": number, "tenants": [{}] * 20_000}),
    lambda number: _unsigned(number, {f"key{each}": [1.5] for each in range(20_000)}),
    lambda number: _unsigned(number, {"appliance": APPLIANCE, "version": number, "tenants": [
        {**row("t"), "models": [f"model{each}" for each in range(40_000)]}]}),
    lambda number: _unsigned(number, {"appliance": "\U0001f600" * 60_000, "version": number, "tenants": []}),
]
"""Bodies of `POST /v1/admin/tenants`, by a number."""
