"""The signatures and keys of AMD's hierarchy: RSASSA-PSS with SHA-384, and ECDSA on P-384."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import SignatureAlgorithmOID

from appliance.attestation.x509.walks import MIN_RSA_BITS
from appliance.codec import der


def signed_with_pss_sha384(certificate: x509.Certificate | x509.CertificateRevocationList,
                           key: object) -> bool:
    """Whether `key` (RSA, of 2,048 bits at least) signed by RSASSA-PSS with SHA-384, MGF1 with
    SHA-384 and a salt of 48 bytes. Nothing else passes, and the algorithm that the signature covers
    is the one beside it."""
    if certificate.signature_algorithm_oid != SignatureAlgorithmOID.RSASSA_PSS or not isinstance(
            key, rsa.RSAPublicKey) or key.key_size < MIN_RSA_BITS:
        return False
    if not der.algorithm_is_signed(certificate.public_bytes(Encoding.DER)):
        return False
    signed = (certificate.tbs_certificate_bytes if isinstance(certificate, x509.Certificate)
              else certificate.tbs_certlist_bytes)
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), salt_length=48)
    try:
        key.verify(certificate.signature, signed, scheme, hashes.SHA384())
    except (InvalidSignature, ValueError):
        return False
    return True


def is_p384(key: object) -> bool:
    """Whether a public key is ECDSA on P-384."""
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1)
