"""Signing keys of people and verifiers, as files: PKCS #8 in PEM, as `openssl genpkey` writes them;
and small files that are there whole or not at all.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from appliance.errors import PolicyError
from appliance.mistakes import files
from appliance.policy import inputfile
from appliance.policy.schema.identifiers import TaggedHex
from appliance.policy.schema.kinds import Mismatch
from appliance.transparency import ed25519

_CURVES = {"secp256r1": "p256", "secp384r1": "p384", "secp521r1": "p521"}  # their names in policies
MAX_BYTES = 1 << 16
RAW_BYTES = 32


def read(path: Path, what: str = "key") -> bytes:
    """A small file's bytes. Raises PolicyError `key-unreadable`."""
    try:
        return inputfile.read(path, MAX_BYTES)
    except OSError as error:
        raise PolicyError(f"{what}: {path} cannot be read: {error.strerror}", code="key-unreadable") from None


def private_key(path: Path, passphrase: Callable[[], bytes] | None = None) -> PrivateKeyTypes:
    """A private key from PEM; `passphrase` is asked if the file is encrypted. Raises PolicyError
    `key-malformed`."""
    data = read(path)
    encrypted = b"ENCRYPTED" in data
    if encrypted and passphrase is None:
        raise PolicyError(f"key: {path} is encrypted", code="key-malformed")
    try:
        return serialization.load_pem_private_key(data, passphrase() if encrypted and passphrase else None)
    except (ValueError, TypeError, OSError, UnsupportedAlgorithm):
        kind = None if b"PRIVATE" in data else files.of(data)
        raise PolicyError(f"key: {path} is no private key in PEM of a kind that is known here, or the passphrase is "
                          "another" if kind is None else f"key: {path} is {kind.what}; needed: a private key in PEM",
                          code="key-malformed", hint="openssl genpkey -algorithm ed25519 -out KEY.pem") from None


def ed25519_private_key(path: Path, passphrase: Callable[[], bytes] | None = None) -> Ed25519PrivateKey:
    """An Ed25519 private key from PEM. Raises PolicyError `key-malformed`."""
    key = private_key(path, passphrase)
    if not isinstance(key, Ed25519PrivateKey):
        raise PolicyError(f"key: {path} is no Ed25519 key", code="key-malformed",
                          hint="openssl genpkey -algorithm ed25519 -out KEY.pem")
    return key


def ed25519_public_key(text: str) -> bytes:
    """32 bytes of an Ed25519 public key: `ed25519:HEX`, or the path of a file with that, PEM or the
    raw bytes.

    Raises PolicyError `key-malformed` or `key-unreadable`.
    """
    data = text.encode(errors="replace") if text.startswith("ed25519:") else read(Path(text), "public key")
    try:
        if data.startswith(b"ed25519:"):
            raw = bytes.fromhex(data.removeprefix(b"ed25519:").decode("ascii").strip())
        elif len(data) == RAW_BYTES:
            raw = data
        else:
            key = serialization.load_pem_public_key(data)
            raw = key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else b""
    except (ValueError, UnsupportedAlgorithm):
        raw = b""
    if len(raw) != RAW_BYTES:
        kind = files.of(data)
        known = "" if kind is None else f"{kind.what}, and "
        raise PolicyError(f"public key: {text[:200]} is {known}no Ed25519 public key", code="key-malformed",
                          hint="write ed25519: and 64 digits 0-9 a-f, as printed by `appliance key public FILE.pem`, "
                          "or name a file with it, or PEM")
    if (wrong := ed25519.fault(raw)) is not None:
        raise PolicyError(f"public key: {text[:200]}: {wrong}", code="key-malformed",
                          hint="take the key from whoever made it")
    return raw


def named_public_key(path: Path, passphrase: Callable[[], bytes] | None = None) -> str:
    """Return the public half of a key in PEM as policies name it: `ed25519:HEX`, `x25519:HEX`, or
    the compressed point of a NIST curve, such as `p256:HEX`.

    `path` holds a public or a private key; `passphrase` is asked if that is encrypted. Raises
    PolicyError `key-malformed` or `key-unreadable`.
    """
    data = read(path)
    try:
        key = (private_key(path, passphrase).public_key() if b"PRIVATE" in data
               else serialization.load_pem_public_key(data))
    except (ValueError, UnsupportedAlgorithm):
        kind = files.of(data)
        raise PolicyError(f"key: {path} is {'no' if kind is None else f'{kind.what}, and no'} key in PEM",
                          code="key-malformed", hint="openssl genpkey -algorithm ed25519 -out KEY.pem, or x25519 for "
                          "an auditor_key") from None
    name, raw = _named(key)
    if not name:
        raise PolicyError(f"key: {path} is a key of a kind that no policy names", code="key-malformed",
                          hint=f"kinds are ed25519, x25519, {', '.join(_CURVES.values())}")
    try:
        return TaggedHex(name, len(raw)).parse(f"{name}:{raw.hex()}")
    except Mismatch as refused:
        raise PolicyError(f"key: {path} {refused.found}", code="key-malformed",
                          hint="openssl genpkey makes another") from None


def _named(key: object) -> tuple[str, bytes]:
    """Return a public key's kind, as policies name it, and its bytes; no name for other kinds."""
    if isinstance(key, Ed25519PublicKey):
        return "ed25519", key.public_bytes_raw()
    if isinstance(key, X25519PublicKey):
        return "x25519", key.public_bytes_raw()
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return _CURVES[key.curve.name], key.public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    return "", b""


def special(path: Path) -> bool:
    """Whether a path is a device, a pipe or a socket, or stands for one: who may replace it would
    take it from all."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:
        return False
    return kind not in (stat.S_IFREG, stat.S_IFDIR) or path.absolute().parent == Path("/dev")


def _name(part: Path, path: Path) -> None:
    """Give a finished file a name that is free; FileExistsError where it is not."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # no links on this file system: the name is taken by an empty file first
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        part.replace(path)


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, replace: bool = True) -> None:
    """Write a small file so that it is there whole or as it was before. Raises PolicyError
    `file-unwritable`.

    Without `replace`, a file that is there, or that comes meanwhile, is left as it is:
    `file-exists`.
    """
    if special(path):
        raise PolicyError(f"{path} cannot be written: it is not a regular file", code="file-unwritable",
                          hint="name a file to make or to replace")
    part = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # Windows would alter line feeds
        try:
            with os.fdopen(os.open(part, flags, mode), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                part.replace(path)
            else:
                _name(part, path)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        raise PolicyError(f"{path} is there already", code="file-exists", hint="name a new file") from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be written: {error.strerror}", code="file-unwritable") from None
