"""The things that an auditor holds outside of a log: checkpoints, and keys that may sign them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from appliance.auditor import receipts
from appliance.auditor.unsealing import KEYS_FORMAT
from appliance.codec import strict
from appliance.codec.printable import plain
from appliance.codec.regularfile import open_file
from appliance.errors import NoteError
from appliance.receipts import envelopes, statement
from appliance.transparency import ed25519, reading
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, Note, NoteKey

_PUBLIC = re.compile(r"(?:ed25519:)?([0-9a-f]{64})")
_MOST = 1 << 20


@dataclass(frozen=True)
class Anchor:
    """A checkpoint that is held outside. `name` says where it came from.

    `proves`: whether whoever judges has it from elsewhere than the log and its pack. Others are
    compared with the log, and prove nothing: they may be as new as the log.
    """

    name: str
    checkpoint: Checkpoint
    note: Note
    proves: bool = True


def public_key(text: str) -> bytes:
    """Return a key's 32 bytes, from hex as in a policy, or from C2SP's form. Raises NoteError."""
    if (match := _PUBLIC.fullmatch(text)) is not None:
        return ed25519.require(bytes.fromhex(match[1]), "key")
    return reading.key(text).public


def witness_key(text: str) -> NoteKey:
    """Return a witness's key: in C2SP's form, or NAME=KEY as a policy has it. Raises NoteError."""
    name, found, key = text.partition("=")
    if found and (match := _PUBLIC.fullmatch(key)) is not None:
        return NoteKey(name, ed25519.require(bytes.fromhex(match[1]), f"witness {plain(name, 64)}"), COSIGNS)
    return reading.key(text)


def content(path: Path, most: int = _MOST) -> bytes:
    """Return the bytes of a regular file. Raises NoteError if it is longer, and OSError."""
    descriptor, _ = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NoteError(f"{path}: more than {most} bytes")
    return data


def auditor_key(path: Path) -> X25519PrivateKey:
    """Return the private key of `privacy.auditor_key`, from PEM. Raises NoteError or OSError."""
    try:
        private = load_pem_private_key(content(path), None)
    except (ValueError, TypeError):
        private = None
    if not isinstance(private, X25519PrivateKey):
        raise NoteError(f"{path}: not an X25519 private key in PEM", hint="openssl genpkey -algorithm x25519 makes one")
    return private


def period_keys(path: Path) -> dict[int, bytes]:
    """Return the keys of a log's periods by their numbers, as `appliance state --period-keys`
    writes them. Raises NoteError or OSError."""
    try:
        found = strict.json_value(content(path))
        keys = {int(number): bytes.fromhex(key) for number, key in found["periods"].items()}
        if found["format"] != KEYS_FORMAT or any(len(key) != 32 for key in keys.values()):
            raise ValueError("another format")
    except (ValueError, LookupError, TypeError, AttributeError):
        raise NoteError(f"{path}: no keys of periods", hint="appliance state DISK --period-keys writes them") from None
    return keys


def read(path: Path) -> Anchor:
    """Return a held checkpoint from a file: a note, or a receipt that has one. Raises NoteError for
    anything else; OSError."""
    return anchor(content(path, 64 << 20), str(path))


def anchor(data: bytes, name: str, *, proves: bool = True) -> Anchor:
    """Return the same from the file's bytes."""
    if data.lstrip()[:1] in (b"{", b"e", b"d", b":"):  # a receipt, alone or behind its answer
        inside = envelopes.statement(envelopes.parts(receipts.take(data).envelope)[0]).checkpoint
        if inside is None:
            raise NoteError(f"{name}: a receipt of version 2 has no checkpoint",
                            hint="hold a checkpoint that the appliance or a witness gives")
        data = inside.encode()
    found, signed = reading.signed_head(data)
    if not found.origin.startswith(statement.ORIGIN):
        raise NoteError(f"{name}: a checkpoint of another kind of log")
    return Anchor(name, found, signed, proves)
