"""Certificates of a first key broker: its own root, which the policy pins, and the server's."""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ROOT_DAYS, _SERVER_DAYS = 3650, 365


@dataclass(frozen=True, slots=True)
class ServerFiles:
    """The files of a broker, in PEM, and the pin of its root in hex."""

    root_key: bytes
    chain: bytes
    server_key: bytes
    root_sha256: str


def make(host: str) -> ServerFiles:
    """Make a root, and a certificate under it for a host: a DNS name or an IP address."""
    root_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = _signed("root of the keys", "root of the keys", root_key, root_key, _ROOT_DAYS, None)
    leaf = _signed(host, "root of the keys", server_key, root_key, _SERVER_DAYS, _host(host))
    return ServerFiles(
        _pem(root_key), leaf.public_bytes(Encoding.PEM) + root.public_bytes(Encoding.PEM), _pem(server_key),
        hashlib.sha256(root.public_bytes(Encoding.DER)).hexdigest())


def _signed(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, signer: ec.EllipticCurvePrivateKey, days: int,
            host: x509.GeneralName | None) -> x509.Certificate:
    """Return a certificate of a key; without a host, an authority's."""
    ca, now = host is None, datetime.now(UTC)
    builder = (
        x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer)).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.KeyUsage(
            digital_signature=not ca, key_cert_sign=ca, crl_sign=ca, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False), critical=True))
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
