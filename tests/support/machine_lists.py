"""Signed lists of machines for tests, and policies that demand one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.signed import machines

AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
PUBLIC = f"ed25519:{AUTHORITY.public_key().public_bytes_raw().hex()}"
DEMAND = f'machines {{\n authority = "{PUBLIC}"\n list = "machines.json"\n min_version = 3\n }}'


def entry(kind: str, value: bytes, custody: str = "rack 1", not_after: str | None = None) -> dict[str, str | None]:
    """An entry of a list."""
    return {"custody": custody, "id": value.hex(), "kind": kind, "not_after": not_after}


def signed(*entries: dict[str, str | None], name: str = "hard", version: int = 3,
           key: Ed25519PrivateKey = AUTHORITY) -> bytes:
    """A signed list, for a deployment of a name."""
    ordered = sorted(entries, key=lambda each: (str(each["kind"]), str(each["id"])))
    return machines.sign({"appliance": name, "machines": ordered, "version": version}, key)


def write(folder: Path, *entries: dict[str, str | None], file: str = "machines.json", **options: Any) -> Path:
    """The same in a folder."""
    (folder / file).write_bytes(signed(*entries, **options))
    return folder / file


def key_file(folder: Path) -> Path:
    """The authority's private key in PEM."""
    path = folder / "authority.pem"
    path.write_bytes(AUTHORITY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path
