"""Timestamps of an authority (RFC 3161): what it is asked, and whether its token holds.

A token is CMS (RFC 5652) around a TSTInfo. Much of it is not signed: certificates, names of
algorithms, what may follow. So `verify` makes the token anew of what is signed, with the path to
the pinned root, and in that form it is kept: whoever relays it can put nothing into it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from appliance.attestation.x509 import walks
from appliance.codec import der
from appliance.codec.der import OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, Element
from appliance.errors import AttestationError, NoteError

MAX_BYTES = 16 << 10  # of a token; with the path to a root one has three to six thousand
_INTEGER, _SET, _TIME, _BOOLEAN = 0x02, 0x31, 0x18, 0x01
_EXPLICIT, _SECOND = 0xA0, 0xA1
_SIGNED_DATA, _TST_INFO = "1.2.840.113549.1.7.2", "1.2.840.113549.1.9.16.1.4"
_CONTENT_TYPE, _MESSAGE_DIGEST = "1.2.840.113549.1.9.3", "1.2.840.113549.1.9.4"
_SIGNER, _SIGNER_2 = "1.2.840.113549.1.9.16.2.12", "1.2.840.113549.1.9.16.2.47"  # RFC 2634, RFC 5035
_HASHES: dict[str, type[hashes.SHA256] | type[hashes.SHA384] | type[hashes.SHA512]] = {
    "2.16.840.1.101.3.4.2.1": hashes.SHA256, "2.16.840.1.101.3.4.2.2": hashes.SHA384,
    "2.16.840.1.101.3.4.2.3": hashes.SHA512}
_HASH_BYTES = {"sha256": b"\1", "sha384": b"\2", "sha512": b"\3"}  # the last of their identifiers
_GENERALIZED = re.compile(rb"(\d{14})(?:\.(\d{0,8}[1-9]))?Z")  # RFC 3161, 2.4.2: no zeros at the fraction's end


@dataclass(frozen=True)
class Timestamp:
    """A token that holds. `token`: its bytes with the path to the pinned root alone."""

    time: datetime
    accuracy_us: int | None  # how far off it may be, as the authority says
    authority: str           # the signer's name, for people
    token: bytes


def request(digest: bytes) -> bytes:
    """The DER TimeStampReq for a SHA-256 digest (32 bytes), which asks for certificates, too. It
    has no nonce: no token for a digest is older than what the digest is of."""
    imprint = _wrap(SEQUENCE, bytes.fromhex("300d06096086480165030402010500") + _wrap(OCTET_STRING, digest))
    return _wrap(SEQUENCE, _wrap(_INTEGER, b"\x01") + imprint + _wrap(_BOOLEAN, b"\xff"))


def token_of(response: bytes) -> bytes:
    """The token in a DER TimeStampResp. NoteError where the authority granted none."""
    try:
        parts = der.elements(der.only(response, SEQUENCE).content)
        status = der.elements(parts[0].content)[0]
        if status.tag != _INTEGER or status.content not in (b"\x00", b"\x01"):
            raise NoteError(f"timestamp: the authority refused, with status {int.from_bytes(status.content, 'big')}")
        if len(parts) != 2:
            raise ValueError("no token")
    except (AttestationError, ValueError, IndexError):
        raise NoteError("timestamp: not a TimeStampResp with a token") from None
    return parts[1].whole


def verify(token: bytes, digest: bytes, root_sha256: str) -> Timestamp:
    """The time in a token for a SHA-256 digest, whose chain ends in the certificate with this
    SHA-256 (hex). Certificates are judged at the token's own time. NoteError for anything else."""
    if len(token) > 2 * MAX_BYTES:
        raise NoteError(f"timestamp: {len(token)} bytes, at most {2 * MAX_BYTES}")
    try:
        return _TimestampToken(token).verified(digest, root_sha256)
    except (AttestationError, ValueError, LookupError, TypeError, x509.ExtensionNotFound, UnsupportedAlgorithm,
            InvalidSignature) as error:
        said = f": {error.summary}" if isinstance(error, AttestationError) else ""
        raise NoteError(f"timestamp: the token does not hold{said}",
                        hint="is it by the authority that the policy pins, for this checkpoint?") from None


def _wrap(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    width = (size.bit_length() + 7) // 8
    return bytes((tag, 0x80 | width)) + size.to_bytes(width, "big") + content


def _integer(value: int) -> bytes:
    return _wrap(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _require(fact: bool, what: str) -> None:
    if not fact:
        raise ValueError(what)


class _TimestampToken:
    """The parts of a token: RFC 5652, section 5.1. ValueError and EvidenceError where it has other
    ones."""

    def __init__(self, data: bytes) -> None:
        kind, content = der.elements(der.only(data, SEQUENCE).content)
        _require(der.object_identifier(kind.content) == _SIGNED_DATA and content.tag == _EXPLICIT, "no signed data")
        parts = der.elements(der.only(content.content, SEQUENCE).content)
        rest = parts[3:]
        kind, held = der.elements(parts[2].content)
        _require(der.object_identifier(kind.content) == _TST_INFO and held.tag == _EXPLICIT, "no TSTInfo")
        self.info = der.only(held.content, OCTET_STRING).content
        self.certificates = [each.whole for part in rest if part.tag == _EXPLICIT
                             for each in der.elements(part.content)]
        _require([part.tag for part in rest] in (
            [_EXPLICIT, _SET], [_EXPLICIT, _SECOND, _SET]), "no certificates, or no signer")
        self._signer = der.elements(der.only(rest[-1].content, SEQUENCE).content)
        _require([each.tag for each in self._signer[2:6]] == [SEQUENCE, _EXPLICIT, SEQUENCE, OCTET_STRING],
                 "no signed attributes")

    def verified(self, digest: bytes, root_sha256: str) -> Timestamp:
        """Check everything."""
        time, accuracy = _info(self.info, digest)
        pool = [walks.load(each, "timestamp")[0] for each in self.certificates]
        signer, path = self._path(pool, root_sha256, time)
        self._check_attributes()
        self._check_signature(signer)
        token = self._with(path)
        _require(len(token) <= MAX_BYTES, "too long")
        return Timestamp(time, accuracy, walks.name_of(signer), token)

    def _path(self, pool: Sequence[x509.Certificate], root_sha256: str, at: datetime
              ) -> tuple[x509.Certificate, list[x509.Certificate]]:
        """The signer, and its path up to the pinned certificate."""
        attributes = self._attributes()
        signer = next((each for each in pool if _named(each, attributes)), None)
        if signer is None:
            raise ValueError("no signer")
        usage = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
        _require(usage.critical and list(usage.value) == [ExtendedKeyUsageOID.TIME_STAMPING], "another use")
        walks.check_critical(signer, walks.READ)
        walks.root_of(signer, pool, at=at, roots={root_sha256: "authority"})
        path = [signer]
        while walks.fingerprint(path[-1]) != root_sha256:
            issuer = walks.issuer_of(path[-1], pool)
            if issuer is None:
                raise ValueError("no issuer")
            path.append(issuer)
        return signer, path

    def _attributes(self) -> dict[str, bytes]:
        """The signed attributes: each has one value, and none stands twice."""
        found: dict[str, bytes] = {}
        for each in der.elements(self._signer[3].content):
            kind, values = der.elements(each.content)
            (value,) = der.elements(values.content)
            name = der.object_identifier(kind.content)
            _require(name not in found and values.tag == _SET, "an attribute twice")
            found[name] = value.whole
        return found

    def _check_attributes(self) -> None:
        said = self._attributes()
        kind = der.only(said[_CONTENT_TYPE], OBJECT_IDENTIFIER).content
        _require(der.object_identifier(kind) == _TST_INFO, "signed as something else")
        digest = der.only(said[_MESSAGE_DIGEST], OCTET_STRING).content
        whole = hashes.Hash(self._hash())
        whole.update(self.info)
        _require(hmac.compare_digest(digest, whole.finalize()), "another TSTInfo was signed")

    def _hash(self) -> hashes.HashAlgorithm:
        return _algorithm(self._signer[2])

    def _check_signature(self, signer: x509.Certificate) -> None:
        """By the algorithm of the signer's key, over the attributes as a SET (RFC 5652, 5.4)."""
        signed, signature = _wrap(_SET, self._signer[3].content), self._signer[5].content
        key = signer.public_key()
        if isinstance(key, rsa.RSAPublicKey) and key.key_size >= walks.MIN_RSA_BITS:
            key.verify(signature, signed, padding.PKCS1v15(), self._hash())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, signed, ec.ECDSA(self._hash()))
        elif isinstance(key, ed25519.Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            raise UnsupportedAlgorithm("another kind of key")

    def _with(self, path: Sequence[x509.Certificate]) -> bytes:
        """The token made anew: what is signed, the path's certificates, and one spelling for the
        rest (RFC 5652, 5.1 and 5.3; RFC 5754 for the algorithms)."""
        certificates = sorted(each.public_bytes(Encoding.DER) for each in path)  # DER's order of a SET
        digest = bytes.fromhex("300b06096086480165030402") + _HASH_BYTES[self._hash().name]
        named = _wrap(SEQUENCE, path[0].issuer.public_bytes() + _integer(path[0].serial_number))
        signer = _wrap(SEQUENCE, b"".join([
            _integer(1), named, digest, self._signer[3].whole, self._scheme(path[0]), self._signer[5].whole]))
        held = bytes.fromhex("060b2a864886f70d0109100104") + _wrap(_EXPLICIT, _wrap(OCTET_STRING, self.info))
        inner = _integer(3) + _wrap(_SET, digest) + _wrap(SEQUENCE, held)
        inner += _wrap(_EXPLICIT, b"".join(certificates)) + _wrap(_SET, signer)
        kind = bytes.fromhex("06092a864886f70d010702")
        return _wrap(SEQUENCE, kind + _wrap(_EXPLICIT, _wrap(SEQUENCE, inner)))

    def _scheme(self, signer: x509.Certificate) -> bytes:
        """The AlgorithmIdentifier of the signature."""
        key = signer.public_key()
        if isinstance(key, rsa.RSAPublicKey):
            return bytes.fromhex("300d06092a864886f70d0101010500")
        if isinstance(key, ed25519.Ed25519PublicKey):
            return bytes.fromhex("300506032b6570")
        return bytes.fromhex("300a06082a8648ce3d0403") + bytes((_HASH_BYTES[self._hash().name][0] + 1,))


def _algorithm(element: Element) -> hashes.HashAlgorithm:
    return _HASHES[der.object_identifier(der.elements(element.content)[0].content)]()


def _named(certificate: x509.Certificate, attributes: dict[str, bytes]) -> bool:
    """Whether the signed attributes name this certificate as the signer's, by its digest."""
    whole = certificate.public_bytes(Encoding.DER)
    if _SIGNER_2 in attributes:
        first = der.elements(der.elements(der.elements(attributes[_SIGNER_2])[0].content)[0].content)[0]
        parts = der.elements(first.content)
        kind: hashes.HashAlgorithm = _algorithm(parts[0]) if parts[0].tag == SEQUENCE else hashes.SHA256()
        named = hashes.Hash(kind)
        named.update(whole)
        return [named.finalize()] == [each.content for each in parts if each.tag == OCTET_STRING]
    first = der.elements(der.elements(der.elements(attributes[_SIGNER])[0].content)[0].content)[0]
    return hashlib.sha1(whole, usedforsecurity=False).digest() == der.elements(first.content)[0].content


def _info(data: bytes, digest: bytes) -> tuple[datetime, int | None]:
    """Time and accuracy of a TSTInfo (RFC 3161, section 2.4.2) for a digest."""
    parts = der.elements(der.only(data, SEQUENCE).content)
    _require([part.tag for part in parts[:5]] == [_INTEGER, OBJECT_IDENTIFIER, SEQUENCE, _INTEGER, _TIME]
             and parts[0].content == b"\x01", "no TSTInfo")
    algorithm, imprint = der.elements(parts[2].content)
    _require(isinstance(_algorithm(algorithm), hashes.SHA256) and imprint.tag == OCTET_STRING, "another hash")
    _require(hmac.compare_digest(imprint.content, digest), "it is for something else")
    match = _GENERALIZED.fullmatch(parts[4].content)
    if match is None:
        raise ValueError("no time")
    time = datetime.strptime(match[1].decode(), "%Y%m%d%H%M%S").replace(
        microsecond=int((match[2] or b"0").ljust(6, b"0")[:6]), tzinfo=UTC)
    accuracy = next((part for part in parts[5:6] if part.tag == SEQUENCE), None)
    return time, None if accuracy is None else _accuracy(accuracy)


def _accuracy(element: Element) -> int:
    """Microseconds."""
    units = {_INTEGER: 1_000_000, 0x80: 1_000, 0x81: 1}
    return sum(int.from_bytes(each.content, "big") * units[each.tag] for each in der.elements(element.content))
