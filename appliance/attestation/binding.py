"""The binding of evidence: the statements, their canonical bytes, and the 64 bytes of report data
over them.

The specification, with a worked example and vectors, is docs/formats/report-data.md. Every party
computes report data by `report_data` and nothing else. A field that does not apply is null under
its own key, never left out, so that no two different statements have the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from appliance.attestation import merkle
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import MalformedEvidenceError

SERVE = "appliance/serve/v1"
KEY_RELEASE, SESSION_RELEASE = "appliance/key-release/v1", "appliance/key-release/v2"
SESSION = b"appliance/session/v1\n"  # longer with what follows than any nonce, so that no nonce can stand for it
MIN_NONCE_BYTES, MAX_NONCE_BYTES = 16, 64
_HEX = re.compile(r"(?:[0-9a-f]{2})+|(?:[0-9A-F]{2})+")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")

Hex32 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
Hex48 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{96}$")]
Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 53)]


class Frozen(BaseModel):
    """Base of everything that is bound: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Nonces(Frozen):
    """The Merkle tree over the nonces that this statement answers; one nonce is a tree of one."""

    size: Annotated[int, Field(strict=True, ge=1, le=merkle.MAX_LEAVES)]
    root: Hex32

    @classmethod
    def over(cls, nonces: Sequence[bytes]) -> Nonces:
        """The tree over raw nonces, in this order."""
        return cls.of(merkle.HashTree([check_nonce(nonce) for nonce in nonces]))

    @classmethod
    def of(cls, tree: merkle.HashTree) -> Nonces:
        """The size and root of a tree over nonces."""
        return cls(size=tree.size, root=tree.root.hex())


class LoadedModel(Frozen):
    """One model as loaded: its policy name, the plaintext file's digest, the sealed header's digest
    if sealed."""

    name: Name
    sha256: Hex32
    sealed_header_sha256: Hex32 | None = None


class Build(Frozen):
    """The build that runs, as it says itself: version, digest of the package's files, digest of the
    kernel library."""

    version: Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9A-Za-z.+-]{1,64}$")]
    code_sha384: Hex48 | None = None
    kernels_sha384: Hex48 | None = None


class ServeStatement(Frozen):
    """`appliance/serve/v1`: who answers requests, under which policy, with which models."""

    type: Literal["appliance/serve/v1"] = "appliance/serve/v1"
    nonces: Nonces
    policy_sha384: Hex48
    self_test_sha384: Hex48
    tls_spki_sha256: Hex32 | None = None
    generation: Count
    models: tuple[LoadedModel, ...] = Field(max_length=256)
    audit_key_ed25519: Hex32 | None = None
    build: Build

    @model_validator(mode="after")
    def _models_in_order(self) -> ServeStatement:
        names = [model.name for model in self.models]
        if names != sorted(set(names)):
            raise ValueError("models are not in ascending order of name, each once")
        return self


class KeyReleaseStatement(Frozen):
    """`appliance/key-release/v1`: asks a broker for model keys, encrypted to the release key."""

    type: Literal["appliance/key-release/v1"] = "appliance/key-release/v1"
    nonces: Nonces
    policy_sha384: Hex48
    self_test_sha384: Hex48
    release_spki_sha256: Hex32
    build: Build


class SessionReleaseStatement(Frozen):
    """`appliance/key-release/v2`: the same, on one TLS connection to the broker: the key that the
    broker shows on it, and its exporter for the broker's nonce (docs/formats/key-release.md)."""

    type: Literal["appliance/key-release/v2"] = "appliance/key-release/v2"
    nonces: Nonces
    policy_sha384: Hex48
    self_test_sha384: Hex48
    release_spki_sha256: Hex32
    broker_spki_sha256: Hex32
    session: Hex32
    build: Build


Statement = ServeStatement | KeyReleaseStatement | SessionReleaseStatement


def statement_bytes(statement: Statement) -> bytes:
    """The statement's one canonical form (RFC 8785)."""
    return canonical(statement.model_dump(mode="json"))


def report_data(statement: Statement) -> bytes:
    """The 64 bytes that hardware signs: SHA-512(type || 0x0A || canonical statement)."""
    domain = statement.type.encode("ascii") + b"\n"
    return hashlib.sha512(domain + statement_bytes(statement)).digest()


def describe(error: ValidationError) -> str:
    """The first finding of a pydantic error without the offending value: `place: what is wrong`."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "value"
    return f"{place}: {first['msg']}"


def leaf(nonce: bytes, tls_spki_sha256: bytes | None = None, session: bytes | None = None) -> bytes:
    """Return a nonce's leaf in the tree: itself, or, with `session`, bound to one TLS connection.

    `session` is that connection's exporter (32 bytes) for this nonce, `tls_spki_sha256` the SHA-256
    of its key's SubjectPublicKeyInfo (docs/formats/session-binding.md). Raises
    MalformedEvidenceError.
    """
    check_nonce(nonce)
    if session is None:
        return nonce
    if tls_spki_sha256 is None or len(tls_spki_sha256) != 32 or len(session) != 32:
        raise MalformedEvidenceError("session: evidence of a session names a TLS key and 32 bytes of its exporter",
                                     code="session-form")
    return SESSION + tls_spki_sha256 + session + nonce


def check_nonce(nonce: bytes) -> bytes:
    """The nonce itself. Raises MalformedEvidenceError unless it is 16 to 64 bytes."""
    if not MIN_NONCE_BYTES <= len(nonce) <= MAX_NONCE_BYTES:
        raise MalformedEvidenceError(
            f"nonce: {len(nonce)} bytes, expected {MIN_NONCE_BYTES} to {MAX_NONCE_BYTES}",
            code="nonce-length", hint="send 32 random bytes as hex or base64url")
    return nonce


def parse_nonce(text: str) -> bytes:
    """A nonce from its text: hex if it reads as hex in one case, else base64url without padding.

    Raises MalformedEvidenceError on other characters, non-zero unused bits, or a length outside 16
    to 64 bytes.
    """
    if len(text) <= 2 * MAX_NONCE_BYTES:
        if _HEX.fullmatch(text):
            return check_nonce(bytes.fromhex(text))
        if _BASE64URL.fullmatch(text):
            with suppress(ValueError):
                return check_nonce(strict.base64url(text))
    raise MalformedEvidenceError(
        "nonce: neither hex nor base64url without padding", code="nonce-encoding",
        hint="send 16 to 64 random bytes as hex or base64url")
