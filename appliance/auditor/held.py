"""The things that an auditor holds outside of a log: checkpoints, and keys that may sign them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.audit.chain import ORIGIN
from appliance.auditor import receipts
from appliance.codec.regularfile import open_file
from appliance.errors import NoteError
from appliance.receipts import dsse, statement
from appliance.transparency import checkpoint, note
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, Key, Note

_PUBLIC = re.compile(r"(?:ed25519:)?([0-9a-f]{64})")
_MOST = 1 << 20


@dataclass(frozen=True)
class Anchor:
    """A checkpoint that is held outside. `name` says where it came from."""

    name: str
    checkpoint: Checkpoint
    note: Note


def public_key(text: str) -> bytes:
    """The 32 bytes of a key: in hex, as a policy has it, or in C2SP's form. NoteError."""
    if (match := _PUBLIC.fullmatch(text)) is not None:
        return bytes.fromhex(match[1])
    return note.parse_key(text).public


def witness_key(text: str) -> Key:
    """A witness's key: in C2SP's form, or NAME=KEY as a policy has it. NoteError."""
    name, found, key = text.partition("=")
    if found and (match := _PUBLIC.fullmatch(key)) is not None:
        return Key(name, bytes.fromhex(match[1]), COSIGNS)
    return note.parse_key(text)


def content(path: Path, most: int = _MOST) -> bytes:
    """The bytes of a regular file. NoteError where it is longer; OSError."""
    descriptor, _ = open_file(path)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise NoteError(f"{path}: more than {most} bytes")
    return data


def read(path: Path) -> Anchor:
    """A held checkpoint from a file: a note, or a receipt that has one. NoteError for anything
    else; OSError."""
    return anchor(content(path, 64 << 20), str(path))


def anchor(data: bytes, name: str) -> Anchor:
    """The same from the file's bytes."""
    if data.lstrip()[:1] in (b"{", b"e", b"d", b":"):  # a receipt, alone or behind its answer
        data = statement.parse(dsse.parts(receipts.take(data).envelope)[0]).checkpoint.encode()
    found, signed = checkpoint.opened(data)
    if not found.origin.startswith(ORIGIN):
        raise NoteError(f"{name}: a checkpoint of another kind of log")
    return Anchor(name, found, signed)
