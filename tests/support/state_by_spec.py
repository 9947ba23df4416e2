"""A reader of state disks written from docs/formats/state-disk.md alone, without the appliance's code."""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DOMAIN = b"appliance/state/v1\n"
MIB = 1 << 20


def _hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, one block of output."""
    return hmac.new(hmac.new(salt, secret, "sha256").digest(), info + b"\x01", "sha256").digest()


def _open(key: bytes, nonce: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(nonce, sealed, bound)
    except InvalidTag:
        return None


def slot(secret: bytes, data: bytes) -> dict[str, Any] | None:
    """The slot that `data` begins with."""
    magic, version, size, disk, salt = struct.unpack("<8sII16s32s", data[:64])
    if magic != b"APPSTATE" or version != 1 or 64 + size > MIB:
        return None
    key = _hkdf(secret, salt, DOMAIN + b"slot\n" + disk)
    plain = _open(key, bytes(12), data[64:64 + size], DOMAIN + data[:64])
    if plain is None:
        return None
    names = ("counter", "epoch", "sequence", "tail", "chain", "session_salt")
    fields = dict(zip(names, struct.unpack("<QQQQ32s32s", plain[:96]), strict=True))
    return {**fields, "disk": disk, "saved": plain[96:]}


def saved_requests(secret: bytes, path: Path) -> int:
    """Requests that weigh on a quota, by the newest snapshot of a disk that another process may be writing to."""
    data = path.read_bytes()
    slots = [found for at in (0, MIB) if (found := slot(secret, data[at:at + MIB])) is not None]
    saved = max(slots, key=lambda found: int(found["counter"]))["saved"] if slots else b""
    accounts = json.loads(saved)["accounts"] if saved else {}
    return sum(amount for left in accounts.values() for _, amount in left["requests"])


def log(secret: bytes, disk: bytes, data: bytes) -> list[tuple[int, bytes]]:
    """Kind and payload of every frame of a log, from the first."""
    chain, at, number, key, found = hashlib.sha256(DOMAIN + disk).digest(), 0, 0, b"", []
    while len(data) >= at + 24:
        magic, size, sequence, kind, zero = struct.unpack("<4sIQII", data[at:at + 24])
        if magic != b"ASF1" or sequence != number or zero != 0 or len(data) < at + 24 + size:
            break
        frame, head = data[at:at + 24 + size], 24
        if kind == 1:
            key, head = _hkdf(secret, frame[24:56], DOMAIN + b"session\n" + disk), 56
        if not key:
            break
        plain = _open(key, sequence.to_bytes(12, "big"), frame[head:], DOMAIN + disk + frame[:head] + chain)
        if plain is None:
            break
        found.append((kind, plain))
        chain, at, number = hashlib.sha256(chain + frame).digest(), at + len(frame), number + 1
    return found


def disk(secret: bytes, data: bytes) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
    """The newer slot of a whole disk, and its log."""
    slots = [found for found in (slot(secret, data[:MIB]), slot(secret, data[MIB:2 * MIB])) if found is not None]
    newer = max(slots, key=lambda found: int(found["counter"]))
    return newer, log(secret, newer["disk"], data[2 * MIB:])
