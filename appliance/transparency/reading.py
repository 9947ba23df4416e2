"""Keys, notes and checkpoints as others wrote them, for checking logs. A log's own side writes
them, and reads only witnesses' lines (`note.parse_lines`)."""

from __future__ import annotations

import re

from appliance.codec import strict
from appliance.errors import NoteError
from appliance.transparency import ed25519
from appliance.transparency.checkpoint import Checkpoint
from appliance.transparency.note import COSIGNS, SIGNS, Note, NoteKey, parse_lines
from appliance.transparency.tree import HASH_BYTES

MAX_NOTE_BYTES = 64 << 10
MAX_SIZE = 2**53 - 1
_SIZE = re.compile(r"0|[1-9][0-9]{0,15}")
_NAME = re.compile(r"[^\s+]+")


def key(text: str) -> NoteKey:
    """A key in C2SP's form. NoteError for anything else."""
    try:
        name, identity, data = text.split("+", 2)
        raw = strict.base64(data)
        found = NoteKey(name, raw[1:], raw[0])
    except (ValueError, IndexError):
        raise NoteError("key: not of the form NAME+ID+BASE64") from None
    if found.kind not in (SIGNS, COSIGNS) or len(found.public) != ed25519.KEY_BYTES or found.id.hex() != identity:
        raise NoteError("key: neither an Ed25519 key nor an Ed25519 cosigning key, or its id is another one's")
    if _NAME.fullmatch(name) is None:
        raise NoteError("key: its name is empty, or has a space in it")
    ed25519.require(found.public, "key")
    return found


def note(data: bytes) -> Note:
    """A note from its bytes. NoteError for anything else, and for one without a signature."""
    try:
        whole = data.decode() if len(data) <= MAX_NOTE_BYTES else ""
    except UnicodeDecodeError:
        whole = ""
    if not whole or any(each < " " and each != "\n" for each in whole):
        raise NoteError("note: too long, or not a text")
    text, found, lines = whole.rpartition("\n\n")
    if not found or not text:
        raise NoteError("note: no empty line between text and signatures")
    return Note(text + "\n", parse_lines(lines))


def head(text: str) -> Checkpoint:
    """A checkpoint from a note's text. NoteError for anything else."""
    lines = text.split("\n")
    if len(lines) != 4 or lines[3] or not lines[0]:
        raise NoteError("checkpoint: not three lines")
    origin, size, encoded = lines[:3]
    try:
        root = strict.base64(encoded)
    except ValueError:
        root = b""
    if not _SIZE.fullmatch(size) or int(size) > MAX_SIZE or len(root) != HASH_BYTES:
        raise NoteError("checkpoint: the second line is not a size, or the third is not a root")
    return Checkpoint(origin, int(size), root)


def signed_head(data: bytes | Note, key: NoteKey | None = None) -> tuple[Checkpoint, Note]:
    """A checkpoint from a note. With `key`, the log's, it must be signed by it. NoteError."""
    found = note(data) if isinstance(data, bytes) else data
    checkpoint = head(found.text)
    if key is not None:
        if key.name != checkpoint.origin:
            raise NoteError(f"checkpoint: of {checkpoint.origin}, expected one of {key.name}")
        key.check(found)
    return checkpoint, found
