"""API keys: random, given out once; the policy and the tenant list hold their SHA-256 alone.

A key has 256 random bits, so a plain hash hides it: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import secrets

PREFIX = "sk-appliance-"


def new() -> str:
    """Return a new API key: the prefix, by which scanners find leaked ones, and 256 bits in
    URL-safe base64."""
    return PREFIX + secrets.token_urlsafe(32)


def sha256(key: str) -> str:
    """Return the hash that stands for a key: SHA-256 over its UTF-8 bytes, in hexadecimal."""
    return hashlib.sha256(key.encode("utf-8")).hexdigest()
