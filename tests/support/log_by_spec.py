"""A chained audit log from docs/formats/audit-log-2.md to audit-log-4.md alone, with nothing of the appliance."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PERIOD, RECORD = b"appliance/audit-period/v1\n", b"appliance/audit-record/v1\n"
SEED = bytes(range(32))


def root(leaves: list[bytes]) -> bytes:
    """The root of RFC 6962's tree over leaf hashes."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    middle = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\1" + root(leaves[:middle]) + root(leaves[middle:])).digest()


def path(leaves: list[bytes], number: int) -> list[bytes]:
    """The hashes beside the way from a leaf to the root, the lowest first."""
    if len(leaves) < 2:
        return []
    middle = 1 << (len(leaves) - 1).bit_length() - 1
    if number < middle:
        return [*path(leaves[:middle], number), root(leaves[middle:])]
    return [*path(leaves[middle:], number - middle), root(leaves[:middle])]


def record_key(version: int, period_key: bytes, boot: bytes, period: int, seq: int) -> bytes:
    """The key of a sealed record. In version 2 it is that of all records of a boot and period."""
    number = period.to_bytes(8, "big")
    info = PERIOD + number if version == 2 else RECORD + number + seq.to_bytes(8, "big")
    return HKDF(SHA256(), 32, boot, info).derive(period_key)


class LogBySpec:
    """The lines of a log, boot by boot."""

    def __init__(self) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(SEED)
        self.log, self.lines, self.leaves = bytes(range(16)), list[bytes](), list[bytes]()
        self.version, self.epoch = 0, 0

    @property
    def public(self) -> bytes:
        """The audit key."""
        return self.private.public_key().public_bytes_raw()

    @property
    def boot(self) -> bytes:
        """The id of the present boot."""
        return bytes([self.epoch]) * 16

    @property
    def data(self) -> list[bytes]:
        """The lines with their line feeds."""
        return [line + b"\n" for line in self.lines]

    def begin(self, version: int) -> None:
        """A boot by an appliance that writes this version."""
        self.version, self.epoch = version, self.epoch + 1
        self.write("log.opened", log=self.log.hex(), version="0.1.0", audit_key_ed25519=self.public.hex(),
                   repaired_bytes=0, unchained=0)

    def write(self, event: str, **fields: Any) -> None:
        """A record in its place."""
        prev = self.leaves[-1].hex() if self.leaves else None
        record = {"v": self.version, "seq": len(self.lines), "boot": self.boot.hex(), "epoch": self.epoch,
                  "event": event, "time": "2026-03-01T09:00:00Z", "time_source": "host", "mono_ms": 81_273,
                  "prev": prev, **fields}
        self.lines.append(_canonical(record))
        self.leaves.append(hashlib.sha256(b"\0" + self.lines[-1]).digest())

    def seal(self, event: str, period: int, period_key: bytes, **fields: Any) -> None:
        """A record whose own fields are sealed."""
        seq = len(self.lines)
        number, domain = seq.to_bytes(8, "big"), PERIOD if self.version == 2 else RECORD
        nonce = seq.to_bytes(12, "big") if self.version == 2 else bytes(12)
        plain = _canonical(fields)
        plain += b" " * (-len(plain) % 256)
        key = record_key(self.version, period_key, self.boot, period, seq)
        sealed = AESGCM(key).encrypt(nonce, plain, domain + event.encode() + b"\n" + number)
        self.write(event, period=period, sealed=sealed.hex())

    @property
    def text(self) -> str:
        """The text of a checkpoint of the log as it is."""
        encoded = base64.b64encode(root(self.leaves)).decode()
        return f"appliance/audit/{self.log.hex()}\n{len(self.lines)}\n{encoded}\n"

    def checkpoint(self) -> None:
        """The record of a checkpoint."""
        self.write("audit.checkpoint", size=len(self.lines), root=root(self.leaves).hex(),
                   signature=self.private.sign(self.text.encode()).hex())

    @property
    def note(self) -> str:
        """The log's head as a signed note."""
        name = self.text.partition("\n")[0]
        number = hashlib.sha256(name.encode() + b"\n\x01" + self.public).digest()[:4]
        signature = base64.b64encode(number + self.private.sign(self.text.encode())).decode()
        return f"{self.text}\n\N{EM DASH} {name} {signature}\n"


def _canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
