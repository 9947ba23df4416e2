"""The bundle of an acceptance: an archive in one form, of which hardware signs the manifest.

The manifest has a digest of each file. The last question to the machine is asked with the digest of
the manifest as its nonce, so the machine's own evidence binds the whole. A signature by the key in
the manifest covers that evidence. docs/formats/acceptance-bundle.md specifies it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field, StringConstraints, ValidationError

from appliance.acceptance import sight
from appliance.acceptance.machine import AcceptanceError
from appliance.acceptance.sight import Sight
from appliance.attestation.binding import Frozen
from appliance.auditor.archive import zipped
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import AuditError
from appliance.transparency import ed25519

FORMAT, MANIFEST, SIGNATURE, SEAL = "appliance/acceptance/v1", "manifest.json", "signature", "seal"
_STORED = "files of a bundle are stored, and in order"
_DOMAIN = FORMAT.encode() + b"\n"
_MAX_MEMBER, _MAX_MEMBERS = 16 << 20, 512
MAX_BYTES = 64 << 20  # of a bundle, which has its files as they are
_SEAL_FILES = tuple(f"{SEAL}/{name}" for name in (sight.CERTIFICATE, sight.EVIDENCE, sight.QUESTION))

Hex32 = Annotated[str, StringConstraints(strict=True, pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(strict=True, pattern=r"^[ -~]{1,256}$")]
Name = Annotated[str, StringConstraints(strict=True, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._/-]{0,127}$")]


class File(Frozen):
    """A file of the bundle."""

    size: Annotated[int, Field(strict=True, ge=0, le=_MAX_MEMBER)]
    sha256: Hex32


class Trial(Frozen):
    """How an attack ended: what the person who ran it says. `refused`: a client saw evidence and
    refused it, which a judge sees again. `silent`: nothing came up."""

    ended: Literal["refused", "silent", "accepted", "not tried"]
    by: Text


class Terms(Frozen):
    """The terms of the verifier beside its files."""

    builder_key: Hex32 | None
    attestation_keys: Annotated[tuple[Hex32, ...], Field(max_length=16)]
    without_revocation: bool
    key_bound: bool


class Manifest(Frozen):
    """The whole. `signer`: the Ed25519 key of the signature, which hardware binds with the rest."""

    format: Literal["appliance/acceptance/v1"] = "appliance/acceptance/v1"
    version: Text
    machine: Text
    signer: Hex32
    terms: Terms
    attacks: Annotated[dict[Name, Trial], Field(max_length=64)]
    files: Annotated[dict[Name, File], Field(max_length=_MAX_MEMBERS)]

    def encode(self) -> bytes:
        """Return its one form (RFC 8785)."""
        return canonical(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Bundle:
    """A bundle that is whole: its files, and the sight that seals them."""

    manifest: Manifest
    files: Mapping[str, bytes]
    seal: Sight


def file_of(content: bytes) -> File:
    """Return the manifest's line on a file."""
    return File(size=len(content), sha256=hashlib.sha256(content).hexdigest())


def nonce(manifest: bytes) -> bytes:
    """Return the nonce of the last question: SHA-256 of the manifest, behind the format's name."""
    return hashlib.sha256(_DOMAIN + manifest).digest()


def pack(manifest: Manifest, files: Mapping[str, bytes], seal: Sight, key: Ed25519PrivateKey) -> bytes:
    """Return the archive. `seal` answers the manifest's nonce, and `key` is the manifest's."""
    head, last = manifest.encode(), seal.members(SEAL)
    entries = {MANIFEST: head, **dict(sorted(files.items())), **dict(sorted(last.items()))}
    entries[SIGNATURE] = key.sign(_signed(head, last))
    return zipped.written([zipped.stored(name, content) for name, content in entries.items()])


def unpack(data: bytes) -> Bundle:
    """Read a bundle. Raises AcceptanceError, which names the file that differs from what was
    packed."""
    if len(data) > MAX_BYTES:
        raise _altered("the archive", f"more than {MAX_BYTES} bytes")
    try:
        entries = zipped.read(data, lambda _: _MAX_MEMBER)
        if packed := [name for name, entry in entries.items() if entry.method != zipped.STORED]:
            raise _altered(packed[0], _STORED)
        files = {name: entry.content() for name, entry in entries.items()}
    except AuditError as error:
        raise AcceptanceError(error.summary.replace("pack: ", "bundle: ", 1), code="bundle-altered",
                              hint="take the bundle as it was written") from None
    if list(files) != _order(files):
        raise _altered(next(iter(files)), _STORED)
    head = files.pop(MANIFEST)
    manifest = _manifest(head)
    last = {name: files.pop(name) for name in _SEAL_FILES if name in files}
    _check_signature(manifest, files.pop(SIGNATURE), _signed(head, last))
    _check_files(manifest, files)
    return Bundle(manifest, files, _seal(last, nonce(head)))


def _order(files: Mapping[str, bytes]) -> list[str]:
    own = sorted(files.keys() - {MANIFEST, SIGNATURE, *_SEAL_FILES})
    return [MANIFEST, *own, *(name for name in _SEAL_FILES if name in files), SIGNATURE]


def _manifest(head: bytes) -> Manifest:
    try:
        found = Manifest.model_validate(strict.json_value(head, integers=True), strict=False)
        if found.encode() != head:
            raise ValueError("another spelling")
    except (ValueError, ValidationError):
        raise _altered(MANIFEST, "not a manifest of this format") from None
    return found


def _check_signature(manifest: Manifest, signature: bytes, signed: bytes) -> None:
    try:
        ed25519.verify(bytes.fromhex(manifest.signer), signature, signed)
    except (InvalidSignature, ValueError):
        raise _altered(f"{MANIFEST}, {SEAL}/ or {SIGNATURE}", "the signature does not hold") from None


def _check_files(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        if name not in manifest.files:
            raise _altered(name, "the manifest does not have it")
        if file_of(content) != manifest.files[name]:
            raise _altered(name, "its content is not what the manifest binds")
    if gone := sorted(manifest.files.keys() - files.keys()):
        raise _altered(gone[0], "the manifest has it, and the archive has not")


def _seal(last: Mapping[str, bytes], expected: bytes) -> Sight:
    try:
        found = sight.read(last, SEAL)
    except (KeyError, ValueError):
        raise _altered(f"{SEAL}/{sight.QUESTION}", "not a question of this format") from None
    if found.nonce != expected:
        raise _altered(f"{SEAL}/{sight.QUESTION}", "the seal is of another manifest")
    return found


def _signed(head: bytes, last: Mapping[str, bytes]) -> bytes:
    digests = [hashlib.sha256(each).digest() for each in (head, *(last.get(name, b"") for name in _SEAL_FILES))]
    return _DOMAIN + b"".join(digests)


def _altered(name: str, what: str) -> AcceptanceError:
    return AcceptanceError(f"bundle: {name}: {what}", code="bundle-altered", hint="take the bundle as it was written")
