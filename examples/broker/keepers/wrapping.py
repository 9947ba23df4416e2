"""Model keys that are wrapped by another key: a file, a token, or Vault.

A wrapped key is a file of JSON, which nobody needs to protect:

    {"ciphertext":"…","format":"appliance/wrapped-key/v1","version":4,"wrapping":"pkcs11"}

The members but `ciphertext`, and the rule's `resource`, are the associated data, in canonical form.
So a key cannot be passed off as that of another version or resource. README.md has the form of each
ciphertext.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.codec import regularfile, strict
from appliance.codec.canonical import canonical
from appliance.errors import ModelKeyError
from appliance.keys.document import NBYTES
from appliance.keys.providers import FileKey, Secret
from appliance.secure.locked import SecretBytes

FORMAT = "appliance/wrapped-key/v1"
MAX_BYTES = 4096
TAG_BYTES = 16
_SALT_BYTES = 32
_INFO = b"appliance/wrapped-key/v1 file"
_MEMBERS = {"ciphertext", "format", "version", "wrapping"}


class Wrapper(Protocol):
    """A key that wraps others, wherever it is."""

    @property
    def kind(self) -> str:
        """The member `wrapping`."""
        ...

    def wrap(self, key: bytearray, context: bytes) -> str:
        """Return the ciphertext of 32 bytes. ModelKeyError."""
        ...

    def unwrap(self, ciphertext: str, context: bytes) -> bytearray:
        """Return the bytes, for the caller to wipe. ModelKeyError where they cannot be had."""
        ...


def refused(where: str, what: str, hint: str = "") -> ModelKeyError:
    """The error about a key that cannot be unwrapped."""
    return ModelKeyError(f"{where}: {what}", code="key-wrapped", hint=hint or (
        "wrap the key again: python -m examples.broker wrap broker.toml --by NAME "
        "--resource NAME --key FILE --key-version N -o FILE"))


@dataclass(frozen=True)
class FileWrapper:
    """A wrapping key in a file of mode 0600. A fresh salt makes one key for each wrapped key, so
    that no nonce is used twice."""

    path: Path
    kind: str = "file"

    def wrap(self, key: bytearray, context: bytes) -> str:
        """Encrypt under a new salt."""
        salt = secrets.token_bytes(_SALT_BYTES)
        return base64.b64encode(salt + self._cipher(salt).encrypt(bytes(12), bytes(key), context)).decode()

    def unwrap(self, ciphertext: str, context: bytes) -> bytearray:
        """Decrypt by the salt that stands before the ciphertext."""
        raw = decoded(ciphertext, _SALT_BYTES + NBYTES + TAG_BYTES, str(self.path))
        plain = SecretBytes(NBYTES)
        try:
            self._cipher(raw[:_SALT_BYTES]).decrypt_into(bytes(12), raw[_SALT_BYTES:], context, plain)
        except InvalidTag:
            raise refused(str(self.path), "this key did not wrap it for this resource, or it was altered") from None
        return plain

    def _cipher(self, salt: bytes) -> AESGCM:
        with FileKey(self.path, bare=True).key() as own:
            return AESGCM(HKDF(SHA256(), 32, salt, _INFO).derive(bytes(own.data)))


def decoded(ciphertext: str, nbytes: int, where: str) -> bytes:
    """The bytes of a ciphertext in base64, of which there must be so many."""
    try:
        raw = strict.base64(ciphertext)
    except ValueError:
        raw = b""
    if len(raw) != nbytes:
        raise refused(where, f"a ciphertext that is not {nbytes} bytes in base64")
    return raw


def private(path: Path) -> bytearray:
    """Read a PIN or a token from a file of mode 0600, without white space around it. The caller
    wipes it."""
    try:
        descriptor, status = regularfile.open_file(path)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if status.st_mode & 0o077:
                raise refused(str(path), f"mode {stat.S_IMODE(status.st_mode):04o}; allowed: 0600", f"chmod 600 {path}")
            return SecretBytes(file.read(MAX_BYTES).strip())
    except OSError as error:
        raise refused(str(path), error.strerror or "it cannot be read", "name a file of mode 0600") from None


@dataclass(frozen=True)
class WrappedKey:
    """A provider of a key that lies wrapped in a file."""

    path: Path
    resource: str  # the rule's: the file has none
    version: int
    wrapper: Wrapper

    def key(self) -> Secret:
        """Unwrap it. ModelKeyError for another version or wrapping, or where it does not open."""
        found = self._read()
        if found["version"] != self.version:
            raise ModelKeyError(f"{self.path}: the key has version {found['version']}, not {self.version}",
                                code="key-version", hint="name the version that it has, or another key")
        if found["wrapping"] != self.wrapper.kind:
            raise refused(str(self.path), f"wrapped by {found['wrapping']!r}; the rule's wrapping is "
                          f"{self.wrapper.kind!r}")
        context = _context(self.resource, self.version, self.wrapper.kind)
        return Secret(self.wrapper.unwrap(found["ciphertext"], context))

    def _read(self) -> dict[str, Any]:
        try:
            data = self.path.read_bytes()
        except OSError as error:
            raise refused(str(self.path), error.strerror or type(error).__name__) from None
        try:
            found = strict.json_value(data) if len(data) <= MAX_BYTES else None
        except ValueError:
            found = None
        if not isinstance(found, dict) or set(found) != _MEMBERS or found["format"] != FORMAT or not isinstance(
                found["ciphertext"], str):
            raise refused(str(self.path), f"not a wrapped key of the form {FORMAT}")
        return found


def wrap(key: Secret, resource: str, version: int, wrapper: Wrapper) -> bytes:
    """The file of a key, wrapped for the rules of a resource."""
    made = {"ciphertext": wrapper.wrap(key.data, _context(resource, version, wrapper.kind)), "format": FORMAT,
            "version": version, "wrapping": wrapper.kind}
    return json.dumps(made, separators=(",", ":"), sort_keys=True).encode() + b"\n"


def _context(resource: str, version: int, kind: str) -> bytes:
    return canonical({"format": FORMAT, "resource": resource, "version": version, "wrapping": kind})
