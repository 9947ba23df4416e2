"""Signed lists of tenants, and policies whose authority signs them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.signed import desk
from tests.support.server import sha256

AUTHORITY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
FILE = "tenants.json"
_BLOCK = re.compile(r"^tenants \{.*?^\}", re.MULTILINE | re.DOTALL)


def with_authority(policy: Path, *, min_version: int = 1) -> Path:
    """A policy file, whose own tenants give way to those of a signed list."""
    public = AUTHORITY.public_key().public_bytes_raw().hex()
    block = f'tenants {{\n  authority = "ed25519:{public}"\n  list = "{FILE}"\n  min_version = {min_version}\n}}'
    text, replaced = _BLOCK.subn(block, policy.read_text())
    assert replaced == 1
    policy.write_text(text)
    return policy


def signed(version: int, tenants: Mapping[str, Mapping[str, Any]], *, appliance: str = "test",
           key: Ed25519PrivateKey = AUTHORITY, **more: Any) -> bytes:
    """A list of tenants by name: each with its `keys`, and the `role` and `models` if it has others than these. `more`:
    of the list."""
    rows = [{"name": name, "role": "user", "models": ["tiny"],
             "api_key_sha256": sorted(map(sha256, row["keys"])),
             **{field: value for field, value in row.items() if field != "keys"}}
            for name, row in sorted(tenants.items())]
    return desk.sign_tenants({"appliance": appliance, "version": version, "tenants": rows, **more}, key)
