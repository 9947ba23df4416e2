"""Signed notes (C2SP signed-note): a text, an empty line, and a line for each signature.

A line is `— NAME BASE64`, where BASE64 is four bytes of key id and the signature. Two kinds of
keys are known here, both of Ed25519: 0x01 signs the text, 0x04 cosigns it with a time (C2SP
tlog-cosignature). Lines of other keys are kept and not looked at.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from appliance.codec import strict
from appliance.errors import NoteError
from appliance.transparency import ed25519

SIGNS, COSIGNS = 0x01, 0x04
MAX_LINES = 64
_ID_BYTES, _TIME_BYTES, _SIGNATURE_BYTES = 4, 8, 64
_LINE = re.compile("— ([^\\s+]+) ([A-Za-z0-9+/=]+)")


@dataclass(frozen=True)
class SignatureLine:
    """One signature line."""

    name: str
    key_id: bytes
    data: bytes

    def line(self) -> str:
        """Its line, with the line feed."""
        return f"— {self.name} {base64.b64encode(self.key_id + self.data).decode()}\n"


@dataclass(frozen=True)
class Note:
    """A text, which ends with a line feed, and its signatures."""

    text: str
    signatures: tuple[SignatureLine, ...]

    def encode(self) -> bytes:
        """The note's bytes."""
        return (self.text + "\n" + "".join(each.line() for each in self.signatures)).encode()

    def of(self, key: NoteKey) -> SignatureLine | None:
        """The one line that says it is by this key. NoteError where two do."""
        found = [each for each in self.signatures if (each.name, each.key_id) == (key.name, key.id)]
        if len(found) > 1:
            raise NoteError(f"note: two signatures by {key.name}")
        return found[0] if found else None


@dataclass(frozen=True)
class NoteKey:
    """A public key by its name: 32 bytes of Ed25519, and whether it signs or cosigns."""

    name: str
    public: bytes
    kind: int = SIGNS

    @property
    def id(self) -> bytes:
        """The four bytes by which a line names it."""
        said = self.name.encode() + b"\n" + bytes((self.kind,)) + self.public
        return hashlib.sha256(said).digest()[:_ID_BYTES]

    @property
    def text(self) -> str:
        """The key as C2SP's tools read it: NAME+ID+BASE64."""
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes((self.kind,)) + self.public).decode()}"

    def check(self, note: Note) -> int | None:
        """The time of a cosignature, None for a plain one. NoteError unless the key signed the
        note."""
        line = note.of(self)
        if line is None:
            raise NoteError(f"note: no signature by {self.name}, key {self.id.hex()}")
        when = None
        if self.kind == COSIGNS:
            when = int.from_bytes(line.data[:_TIME_BYTES], "big")
        signature = line.data[_TIME_BYTES if when is not None else 0:]
        if len(signature) != _SIGNATURE_BYTES:
            raise NoteError(f"note: the signature by {self.name} has another length")
        try:
            ed25519.verify(self.public, signature, signed_text(note.text, when))
        except InvalidSignature:
            raise NoteError(f"note: the signature by {self.name} does not verify") from None
        return when


def signed_text(text: str, when: int | None) -> bytes:
    """The bytes that a signature, or a cosignature of this time, is over."""
    return text.encode() if when is None else f"cosignature/v1\ntime {when}\n{text}".encode()


def sign(text: str, name: str, private: Ed25519PrivateKey, *, when: int | None = None) -> SignatureLine:
    """Sign a text; with a time, cosign it. The key's kind follows from that."""
    key = NoteKey(name, private.public_key().public_bytes_raw(), SIGNS if when is None else COSIGNS)
    data = private.sign(signed_text(text, when))
    return SignatureLine(name, key.id, data if when is None else when.to_bytes(_TIME_BYTES, "big") + data)


def parse_lines(text: str) -> tuple[SignatureLine, ...]:
    """Signature lines, each ended by a line feed. NoteError for anything else."""
    if not text.endswith("\n"):
        raise NoteError("note: its last line has no end")
    found: list[SignatureLine] = []
    for line in text[:-1].split("\n"):
        match = _LINE.fullmatch(line)
        try:
            data = strict.base64(match[2]) if match else b""
        except ValueError:
            data = b""
        if match is None or len(data) <= _ID_BYTES or len(found) >= MAX_LINES:
            raise NoteError("note: a line is no signature, or there are too many")
        found.append(SignatureLine(match[1], data[:_ID_BYTES], data[_ID_BYTES:]))
    return tuple(found)
