"""Publishers' bundles of the OpenSSF's model-signing: Sigstore bundles whose DSSE payload is an
in-toto statement about the files of a model.

Offline: by a key, or by a certificate's key and its chain. The key is the policy's in both, so no
log and no clock decides; a certificate adds whose key it is. Sources: model-signing 1.0, Sigstore
bundle 0.3, DSSE 1.0.2, in-toto attestation 1.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.attestation.x509 import walks
from appliance.codec import strict
from appliance.codec.printable import plain, quantity
from appliance.errors import AttestationError, NoteError, PinError
from appliance.transparency import ed25519

MAX_BYTES: Final = 4 << 20
MAX_RESOURCES: Final = 65_536
_MEDIA = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "https://model_signing/signature/v1.0"
_CURVES: Final[dict[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]]] = {
    "p256": (ec.SECP256R1(), hashes.SHA256()), "p384": (ec.SECP384R1(), hashes.SHA384()),
    "p521": (ec.SECP521R1(), hashes.SHA512())}
PublicKey = Ed25519PublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class PublishedModel:
    """A bundle that holds. `model` and `resource` are the publisher's names of model and file;
    `identities` those of the certificate, none where it has none."""

    model: str
    resource: str
    identities: tuple[str, ...]


def public_key(text: str) -> PublicKey:
    """A key as a policy has it: `ed25519:` or `p256:`, `p384:`, `p521:` and hex, the point of a
    curve compressed. PinError."""
    kind, _, digits = text.partition(":")
    try:
        raw = bytes.fromhex(digits)
        if kind == "ed25519":
            return Ed25519PublicKey.from_public_bytes(ed25519.require(raw, "the publisher's key"))
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVES[kind][0], raw)
    except (ValueError, KeyError, UnsupportedAlgorithm, NoteError):
        raise PinError(f"the publisher's key {text[:24]}… is no point of its curve, or signs nothing",
                       code="model-signature",
                       hint="write the compressed point: openssl ec -pubin -conv_form compressed") from None


def check(data: bytes, key: str, sha256: bytes, *, root_sha256: str | None = None,
          identity: str | None = None) -> PublishedModel:
    """Whether the bundle's publisher signed a model whose plaintext file has this SHA-256 (32
    bytes).

    `key` as `public_key` has it. With `root_sha256` the bundle's certificate chain must end in the
    certificate of that SHA-256 (hex), and be for `identity` where that is given. PinError."""
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"{len(data)} bytes, at most {MAX_BYTES}")
        bundle = strict.json_value(data)
        payload, signature = _envelope(bundle)
        _signed_by(key, payload, signature)
        model, resource = _resource(strict.json_value(payload), sha256)
        identities = _identities(bundle["verificationMaterial"], key, root_sha256)
    except (ValueError, LookupError, TypeError, AttributeError, AttestationError) as error:
        said = error.summary if isinstance(error, AttestationError) else str(error) if type(error) is ValueError else (
            "it is not in form")
        raise PinError(f"the publisher's bundle does not hold: {said}", code="model-signature",
                       hint="is it a bundle of model-signing 1.0 over this model's GGUF file, by the policy's key?"
                       ) from None
    if identity is not None and identity not in identities:
        found = ", ".join(identities) or "none"
        raise PinError(f"the publisher's bundle is for {found}, not for {plain(identity, 200)}", code="model-signature",
                       hint="the policy's publisher.identity is one of the certificate's names")
    return PublishedModel(model, resource, identities)


def _envelope(bundle: Any) -> tuple[bytes, bytes]:
    if bundle["mediaType"] != _MEDIA:
        raise ValueError("it is not a Sigstore bundle of version 0.3")
    envelope = bundle["dsseEnvelope"]
    (signature,) = envelope["signatures"]
    if envelope["payloadType"] != _PAYLOAD:
        raise ValueError("its payload is no in-toto statement")
    return strict.base64(envelope["payload"]), strict.base64(signature["sig"])


def _signed_by(text: str, payload: bytes, signature: bytes) -> None:
    """The signature over DSSE's encoding."""
    signed = b"DSSEv1 %d %b %d %b" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)
    key = public_key(text)
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, signed)
        else:
            key.verify(signature, signed, ec.ECDSA(_CURVES[text.partition(":")[0]][1]))
    except InvalidSignature:
        raise ValueError("its signature is not by the policy's key") from None


def _resource(statement: Any, sha256: bytes) -> tuple[str, str]:
    """Names of the model, and of the file with this digest, in a statement that is whole."""
    if (statement["_type"], statement["predicateType"]) != (_STATEMENT, _PREDICATE):
        raise ValueError("its statement is of another type")
    predicate, (subject,) = statement["predicate"], statement["subject"]
    serialization = predicate["serialization"]
    if (serialization["method"], serialization["hash_type"]) != ("files", "sha256"):
        raise ValueError("it is over something else than SHA-256 of whole files")
    resources = predicate["resources"]
    if len(resources) > MAX_RESOURCES or any(each["algorithm"] != "sha256" for each in resources):
        raise ValueError("it has too many files, or another digest than SHA-256")
    digests = [bytes.fromhex(each["digest"]) for each in resources]
    whole = hashlib.sha256(b"".join(digests)).hexdigest()
    if not hmac.compare_digest(whole, subject["digest"]["sha256"]):
        raise ValueError("its files are not those of its subject")
    found = next((each["name"] for each, digest in zip(resources, digests, strict=True) if digest == sha256), None)
    if found is None:
        raise ValueError(f"it names {quantity(len(resources), 'file')}, none with sha256 {sha256.hex()}")
    return plain(str(subject["name"]), 200), plain(str(found), 200)


def _identities(material: Any, key: str, root_sha256: str | None) -> tuple[str, ...]:
    """The names of the certificate, once its chain ends in the pinned one. It is judged at the
    beginning of its own validity, as the package does: no clock here is trusted."""
    if root_sha256 is None:
        return ()
    if "x509CertificateChain" not in material:
        raise ValueError("it has no certificates, and the policy asks for a chain")
    raw = [strict.base64(each["rawBytes"]) for each in material["x509CertificateChain"]["certificates"]]
    pool = [walks.load(each, "bundle")[0] for each in raw]
    leaf = pool[0]
    if _key_bytes(leaf.public_key()) != _key_bytes(public_key(key)):
        raise ValueError("its certificate is for another key than the policy's")
    walks.check_critical(leaf, walks.READ)
    _for_signing(leaf)
    walks.root_of(leaf, pool[1:], at=leaf.not_valid_before_utc, roots={root_sha256: "publisher"})
    return _names(leaf)


def _key_bytes(key: Any) -> bytes:
    return bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def _for_signing(leaf: x509.Certificate) -> None:
    found = {extension.oid: extension.value for extension in leaf.extensions}
    usage, extended = found.get(x509.KeyUsage.oid), found.get(x509.ExtendedKeyUsage.oid)
    signs = isinstance(usage, x509.KeyUsage) and usage.digital_signature
    if not signs and not (isinstance(extended, x509.ExtendedKeyUsage) and x509.OID_CODE_SIGNING in extended):
        raise ValueError("its certificate is not for signing")


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    """Alternative names, and the common name."""
    found: list[str] = []
    for extension in leaf.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            for kind in (x509.RFC822Name, x509.UniformResourceIdentifier, x509.DNSName):
                found += extension.value.get_values_for_type(kind)
    common = walks.common_name(leaf.subject)
    return tuple(plain(each, 200) for each in (*found, *([common] if common else [])))
