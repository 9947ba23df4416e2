"""The signatures of a TDX quote, up to Intel's root: what holds without Intel's documents.

The quote is signed by an attestation key, which the quoting enclave (QE) made. The QE's report,
signed by the platform's PCK, binds that key. The PCK's chain, inside of the quote, leads to Intel's
root, which is pinned here by the SHA-256 of its DER certificate.

Intel serves the root at https://certificates.trustedservices.intel.com. The value was compared with
the copies that google/go-tdx-guest and flashbots/attested-tls ship, and with the chains inside of
quotes.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.tdx.abi import TdxQuote
from appliance.attestation.x509 import walks
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError

ROOT = "44a0196b2b99f889b8e149e95b807a350e7424964399e885a7cbb8ccfab674d3"  # Intel SGX Root CA, until 2049-12-31


@dataclass(frozen=True)
class SignedTdxQuote:
    """A quote whose signatures hold up to the pinned root; that its quoting enclave is Intel's is
    not yet shown."""

    quote: TdxQuote
    chain: tuple[x509.Certificate, ...]  # PCK, intermediate, root

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """SHA-256 of each certificate, hex."""
        return tuple(walks.fingerprint(each) for each in self.chain)


def p256_signed(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    """Return whether a P-256 key signed some data with SHA-256; the signature is r and s, 32 bytes
    each, big endian."""
    r, s = int.from_bytes(signature[:32], "big"), int.from_bytes(signature[32:], "big")
    try:
        key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _attestation_key(quote: TdxQuote) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + quote.attestation_key)
    except ValueError:
        raise ForgedEvidenceError("TDX quote: the attestation key is no point of P-256", code="tdx-key") from None


def _chain(quote: TdxQuote) -> list[x509.Certificate]:
    """The certificates, which must be PEM in its usual form to the byte: PCK, intermediate, root.
    """
    text = quote.chain.rstrip(b"\x00")
    chain = walks.load(text, "TDX quote")
    if text.rstrip(b"\n") != b"".join(each.public_bytes(Encoding.PEM) for each in chain).rstrip(b"\n"):
        raise MalformedEvidenceError("TDX quote: the chain is not PEM in its usual form")
    if len(chain) != 3:
        raise MalformedEvidenceError(f"TDX quote: {len(chain)} certificates, expected PCK, intermediate and root")
    return chain


def verify_signatures(quote: TdxQuote, *, at: datetime, root: str = ROOT) -> SignedTdxQuote:
    """Check everything that holds without collateral.

    Not enough to trust a quote: that the QE is Intel's is not among it. Raises ForgedEvidenceError.
    """
    chain = _chain(quote)
    pck, authority, top = chain
    for child, issuer in ((pck, authority), (authority, top), (top, top)):
        walks.check_issued(child, issuer)
    if walks.fingerprint(top) != root:
        raise ForgedEvidenceError(
            f"certificate {walks.name_of(top)}: not the pinned root of Intel ({walks.fingerprint(top)})",
            code="chain-root")
    walks.check_authority(top, below=1)
    walks.check_authority(authority, below=0)
    for certificate in chain:
        walks.check_critical(certificate)
        walks.check_valid(certificate, at)
    key = pck.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not p256_signed(key, quote.qe.signature, quote.qe.raw):
        raise ForgedEvidenceError("TDX quote: the QE report's signature is not by the PCK", code="tdx-qe-signature")
    bound = hashlib.sha256(quote.attestation_key + quote.qe.authentication_data).digest() + bytes(32)
    if not hmac.compare_digest(bound, quote.qe.report_data):
        raise ForgedEvidenceError("TDX quote: the QE report does not bind the attestation key", code="tdx-qe-binding")
    if not p256_signed(_attestation_key(quote), quote.signature, quote.signed):
        raise ForgedEvidenceError("TDX quote: the signature is not by its attestation key", code="tdx-signature")
    return SignedTdxQuote(quote, tuple(chain))
