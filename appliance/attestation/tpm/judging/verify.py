"""From a TPM quote to authentic claims: signature, nonce, PCR digest, event log, and whose key it
is.

A virtual TPM belongs to whoever runs it. A quote alone therefore gives at best "measured boot, host
trusted"; it means more only if its attestation key (AK) is bound in an SEV-SNP or TDX report, which
the caller has verified.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from appliance.attestation.case import event_log
from appliance.attestation.snp.judging.verify import SnpClaims
from appliance.attestation.tdx.judging.verify import TdxClaims
from appliance.attestation.tpm import abi
from appliance.attestation.tpm.abi import HASHES, Pcrs, PublicArea, TpmQuote
from appliance.attestation.tpm.judging.signature import Signature, parse_signature
from appliance.attestation.trust import tpm
from appliance.attestation.x509 import walks
from appliance.attestation.x509.walks import name_of
from appliance.codec import der
from appliance.errors import (
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

_AK_USE = x509.ObjectIdentifier("2.23.133.8.3")  # tcg-kp-AIKCertificate
_TPM_USE = x509.ObjectIdentifier("2.23.133.8.1")  # tcg-kp-EKCertificate: Google's attestation keys until 2022 have it
_HASHES: Mapping[str, type[hashes.HashAlgorithm]] = {
    "sha256": hashes.SHA256, "sha384": hashes.SHA384, "sha512": hashes.SHA512}
_BY_SIZE: Mapping[int, str] = {hashlib.new(name).digest_size: name for name in HASHES.values()}
_AREAS = tuple(kind.to_bytes(2, "big") for kind in (abi.RSA, abi.ECC))  # as a public area begins
PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class AttestationKey:
    """An AK's public key. `area` is known if it came as TPM2B_PUBLIC, which also tells its
    attributes."""

    key: PublicKey
    area: PublicArea | None = None

    def spki(self) -> bytes:
        """DER SubjectPublicKeyInfo."""
        return spki(self.key)


@dataclass(frozen=True)
class SignedTpmQuote:
    """A quote that its key signed; nonce and registers are still to be compared."""

    quote: TpmQuote
    key: AttestationKey
    hash_name: str  # of the signature, and of the quote's PCR digest


@dataclass(frozen=True)
class TpmClaims:
    """The claims of an authentic quote. `pcrs` holds only values that the signed digest covers;
    empty if none came. `uncovered` names those that came beside them: nothing is signed about
    these."""

    quote: TpmQuote
    key: AttestationKey
    pcrs: Pcrs
    uncovered: tuple[tuple[str, int], ...] = ()  # (bank, register)
    events: tuple[event_log.Event, ...] = field(default=(), repr=False)
    log: event_log.Explanation | None = None  # what the event log explains; None without log or values
    root: str | None = None           # the pinned root above the AK's certificate
    bound_by: SnpClaims | TdxClaims | None = None  # the hardware's report or quote that binds the AK
    ek_certificate: bytes | None = None  # DER, and proof of nothing: that takes a challenge
    others: tuple[x509.Certificate, ...] = field(default=(), repr=False)  # at hand to build chains with


def spki(key: PublicKey) -> bytes:
    """DER SubjectPublicKeyInfo of a key."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def load_key(data: bytes) -> AttestationKey:
    """An AK from PEM, DER (SubjectPublicKeyInfo), TPM2B_PUBLIC, TPMT_PUBLIC or a certificate.
    Raises MalformedEvidenceError."""
    if b"-----BEGIN CERTIFICATE-----" in data:
        return AttestationKey(_usable(walks.load(data, "AK")[0].public_key()))
    if data[:1] not in (b"\x30", b"-"):
        bare = data[:2] in _AREAS  # as a length, either is too short for any key
        area = abi.parse_area(data) if bare else abi.parse_public(data)
        return AttestationKey(area.key, area)
    try:
        if data[:1] == b"-":
            return AttestationKey(_usable(serialization.load_pem_public_key(data)))
        return AttestationKey(_usable(serialization.load_der_public_key(der.unpadded(data))))
    except MalformedEvidenceError:
        raise
    except Exception:  # noqa: BLE001 - the parser's errors are of many kinds, all of them: malformed
        if data[:1] == b"\x30":
            return AttestationKey(_usable(walks.load(data, "AK")[0].public_key()))
        raise MalformedEvidenceError("AK: no public key can be read from it") from None


def _usable(key: object) -> PublicKey:
    if isinstance(key, rsa.RSAPublicKey) and 2048 <= key.key_size <= 4096:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in ("secp256r1", "secp384r1", "secp521r1"):
        return key
    raise MalformedEvidenceError("AK: neither RSA of 2,048 to 4,096 bits nor ECDSA on a NIST curve")


def load_signature(data: bytes, key: PublicKey, quote: TpmQuote) -> Signature:
    """TPMT_SIGNATURE, or the plain form, which names no algorithm: RSASSA or RSAPSS, or ECDSA in
    DER, with the hash of the quote's own PCR digest, which is the scheme's (Part 3, section
    18.4.1)."""
    name = _BY_SIZE.get(len(quote.pcr_digest), f"a hash of {len(quote.pcr_digest)} bytes")
    if isinstance(key, rsa.RSAPublicKey) and len(data) == (key.key_size + 7) // 8:
        return Signature(abi.NULL, name, data)
    if isinstance(key, ec.EllipticCurvePublicKey) and data[:1] == b"\x30":
        try:
            return Signature(abi.ECDSA, name, decode_dss_signature(data))
        except ValueError:
            raise MalformedEvidenceError("TPM signature: no ECDSA signature in DER") from None
    return parse_signature(data)


def _signed(quote: TpmQuote, signature: Signature, key: PublicKey) -> bool:
    if signature.hash_name not in _HASHES:
        raise UnsupportedEvidenceError(f"TPM signature: {signature.hash_name} is too weak", code="tpm-algorithm")
    digest, value = _HASHES[signature.hash_name](), signature.value
    if isinstance(key, rsa.RSAPublicKey) and isinstance(value, bytes):
        schemes: dict[int, padding.PKCS1v15 | padding.PSS] = {
            abi.RSASSA: padding.PKCS1v15(), abi.RSAPSS: padding.PSS(padding.MGF1(digest), padding.PSS.AUTO)}
        return any(_signed_by_rsa(key, value, quote.signed, scheme, digest) for number, scheme in schemes.items()
                   if signature.scheme in (number, abi.NULL))
    try:
        if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(value, bytes):
            key.verify(encode_dss_signature(*value), quote.signed, ec.ECDSA(digest))
            return True
    except (InvalidSignature, ValueError):
        return False
    return False


def _signed_by_rsa(key: rsa.RSAPublicKey, value: bytes, signed: bytes, scheme: padding.PKCS1v15 | padding.PSS,
                   digest: hashes.HashAlgorithm) -> bool:
    try:
        key.verify(value, signed, scheme, digest)
    except (InvalidSignature, ValueError):
        return False
    return True


def signed_by(quote: TpmQuote, signature: bytes, key: AttestationKey) -> SignedTpmQuote | None:
    """The quote as one that `key`, which may be any, signed; None if it did not."""
    try:
        parsed = load_signature(signature, key.key, quote)
        return SignedTpmQuote(quote, key, parsed.hash_name) if _signed(quote, parsed, key.key) else None
    except (MalformedEvidenceError, UnsupportedEvidenceError):
        return None


def verify_signature(quote: TpmQuote, signature: bytes, key: AttestationKey) -> SignedTpmQuote:
    """The quote, which `key` must have signed. Raises as `verify` does on account of key and
    signature."""
    if key.area is not None and not key.area.attests:
        raise ForgedEvidenceError(
            f"AK: attributes {key.area.attributes:#x} are not those of a restricted signing key fixed to its TPM, so "
            "it signs anything", code="tpm-ak-attributes")
    parsed = load_signature(signature, key.key, quote)
    if not _signed(quote, parsed, key.key):
        raise ForgedEvidenceError("TPM quote: the signature is not by this AK", code="tpm-signature")
    return SignedTpmQuote(quote, key, parsed.hash_name)


def _quoted(quote: TpmQuote, pcrs: Pcrs, hash_name: str) -> dict[str, dict[int, bytes]]:
    """The values that the quote covers, after checking that its digest is over just these."""
    found: dict[str, dict[int, bytes]] = {}
    if not quote.covers:
        return found
    for selection in quote.selections:
        if selection.bank in found:
            raise MalformedEvidenceError(f"TPM quote: it selects {selection.bank} twice")
        bank = pcrs.get(selection.bank, {})
        absent = [number for number in selection.pcrs if number not in bank]
        if absent:
            raise UncheckedEvidenceError(f"TPM quote: the value of PCR {absent[0]} ({selection.bank}) is absent")
        found[selection.bank] = {number: bank[number] for number in selection.pcrs}
    together = b"".join(found[each.bank][number] for each in quote.selections for number in each.pcrs)
    if not hmac.compare_digest(hashlib.new(hash_name, together).digest(), quote.pcr_digest):
        raise ForgedEvidenceError("TPM quote: the PCR digest is not that of the values given", code="tpm-pcr-digest")
    return {bank: values for bank, values in found.items() if values}


def certifies(certificate: x509.Certificate, key: AttestationKey) -> bool:
    """Whether a certificate is for this AK."""
    found = certificate.public_key()
    return isinstance(found, rsa.RSAPublicKey | ec.EllipticCurvePublicKey) and spki(found) == key.spki()


def is_ak_certificate(certificate: x509.Certificate) -> bool:
    """Whether a certificate was issued for an attestation key: for the use 2.23.133.8.3, or for
    signatures alone.

    Google's certificates name no use, or, until 2022, that of an endorsement key (2.23.133.8.1).
    Its authority certifies endorsement keys as well: their key usage tells them apart, since these
    do not sign.
    """
    found = {each.oid: each.value for each in certificate.extensions}
    uses, usage = found.get(x509.ExtendedKeyUsage.oid), found.get(x509.KeyUsage.oid)
    constraints = found.get(x509.BasicConstraints.oid)
    if isinstance(constraints, x509.BasicConstraints) and constraints.ca:
        return False  # Azure's authorities name the use of what they certify
    if isinstance(uses, x509.ExtendedKeyUsage) and _AK_USE in list(uses):
        return True
    named = isinstance(uses, x509.ExtendedKeyUsage) and _TPM_USE not in list(uses)
    return not named and isinstance(usage, x509.KeyUsage) and usage.digital_signature and not (
        usage.key_encipherment or usage.key_agreement or usage.data_encipherment or usage.key_cert_sign)


def certify(key: AttestationKey, certificate: x509.Certificate, others: Iterable[x509.Certificate], *,
            at: datetime, roots: Mapping[str, str] = tpm.ROOTS) -> str:
    """The name of the pinned root above an AK's certificate.

    `roots`: SHA-256 of a root certificate to its name. Raises ForgedEvidenceError if the
    certificate is for another key or the chain does not hold, UncheckedEvidenceError if an issuer
    or its root's pin is absent.
    """
    if not certifies(certificate, key):
        raise ForgedEvidenceError(
            f"AK certificate {name_of(certificate)}: it is for another key than the one that signed",
            code="tpm-ak-certificate")
    if not is_ak_certificate(certificate):
        raise ForgedEvidenceError(
            f"AK certificate {name_of(certificate)}: not issued for attestation (2.23.133.8.3, or signatures alone)",
            code="tpm-ak-certificate")
    walks.check_critical(certificate, walks.READ)
    return walks.root_of(certificate, others, at=at, roots=roots)


def verify(message: bytes, signature: bytes, key: AttestationKey, *, nonce: bytes | None = None,
           pcrs: Pcrs | None = None, log: bytes | None = None) -> TpmClaims:
    """The claims of a quote that `key` signed; where the key comes from is `certify`'s question.

    `nonce` and `pcrs` are checked if given. `log` is compared with the values, and decides nothing.
    Raises MalformedEvidenceError, UnsupportedEvidenceError; ForgedEvidenceError if signature, nonce
    or PCR digest do not hold; UncheckedEvidenceError if a quoted PCR's value is absent.
    """
    signed = verify_signature(abi.parse_quote(message), signature, key)
    return authenticate(signed, nonce=nonce, pcrs=pcrs, log=log)


def authenticate(signed: SignedTpmQuote, *, nonce: bytes | None = None, pcrs: Pcrs | None = None,
                 log: bytes | None = None) -> TpmClaims:
    """The claims of a quote whose signature holds; parameters and errors are those of `verify`."""
    quote = signed.quote
    if nonce is not None and not hmac.compare_digest(quote.extra_data, nonce):
        raise ForgedEvidenceError("TPM quote: made for another nonce", code="tpm-nonce")
    values = {} if pcrs is None else _quoted(quote, pcrs, signed.hash_name)
    uncovered = tuple((bank, number) for bank, given in (pcrs or {}).items() for number in sorted(given)
                      if number not in values.get(bank, {}))
    claims = TpmClaims(quote, signed.key, values, uncovered)
    if log is None or not values:
        return claims
    events, explanation = event_log.explained(log, values)
    return replace(claims, events=events, log=explanation)
