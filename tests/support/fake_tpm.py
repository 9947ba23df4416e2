"""A TPM's attestation key in software: signs any quote, and writes keys, values and logs as a TPM's tools do."""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NONCE = bytes(range(32))
AK_ATTRIBUTES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 16 | 1 << 18
SHA256, SHA384 = 0x000B, 0x000C
PCRS = {number: hashlib.sha256(bytes((number,))).digest() for number in range(8)}


@functools.cache
def rsa_key(which: str) -> rsa.RSAPrivateKey:
    """An RSA key by its role, made once in a session."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@functools.cache
def ec_key(which: str) -> ec.EllipticCurvePrivateKey:
    """A P-256 key by its role, made once in a session."""
    return ec.generate_private_key(ec.SECP256R1())


def sized(data: bytes) -> bytes:
    """TPM2B: two bytes of size, big endian, before it."""
    return struct.pack(">H", len(data)) + data


def quote(pcrs: Mapping[int, bytes] | None = None, *, nonce: bytes = NONCE, magic: bytes = b"\xff\x54\x43\x47",
          kind: int = 0x8018, digest: bytes | None = None, bank: int = SHA256) -> bytes:
    """TPMS_ATTEST over these values."""
    values = PCRS if pcrs is None else pcrs
    bits = sum(1 << number for number in values)
    together = hashlib.sha256(b"".join(values[number] for number in sorted(values))).digest()
    return b"".join((
        magic, struct.pack(">H", kind), sized(b"\x00\x0b" + bytes(32)), sized(nonce),
        struct.pack(">QIIBQ", 1000, 2, 3, 1, 4), struct.pack(">IHB", 1, bank, 3), bits.to_bytes(3, "little"),
        sized(together if digest is None else digest)))


def sign(message: bytes, scheme: str = "rsassa", which: str = "ak") -> bytes:
    """TPMT_SIGNATURE by scheme, or `plain` for the bare RSA signature."""
    if scheme == "ecdsa":
        r, s = decode_dss_signature(ec_key(which).sign(message, ec.ECDSA(hashes.SHA256())))
        return struct.pack(">HH", 0x18, SHA256) + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))
    if scheme == "rsapss":
        signed = rsa_key(which).sign(message, padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256())
        return struct.pack(">HH", 0x16, SHA256) + sized(signed)
    signed = rsa_key(which).sign(message, padding.PKCS1v15(), hashes.SHA256())
    return signed if scheme == "plain" else struct.pack(">HH", 0x14, SHA256) + sized(signed)


def public(kind: str = "rsa", attributes: int = AK_ATTRIBUTES, which: str = "ak") -> bytes:
    """TPM2B_PUBLIC of the key."""
    head = struct.pack(">HI", SHA256, attributes) + sized(b"")
    if kind == "ecc":
        numbers = ec_key(which).public_key().public_numbers()
        area = struct.pack(">H", 0x23) + head + struct.pack(">HHHHH", 0x10, 0x18, SHA256, 0x03, 0x10) + sized(
            numbers.x.to_bytes(32, "big")) + sized(numbers.y.to_bytes(32, "big"))
    else:
        modulus = rsa_key(which).public_key().public_numbers().n.to_bytes(256, "big")
        area = struct.pack(">H", 0x01) + head + struct.pack(">HHHHI", 0x10, 0x14, SHA256, 2048, 0) + sized(modulus)
    return sized(area)


def pem(which: str = "ak") -> bytes:
    """The RSA key's SubjectPublicKeyInfo in PEM."""
    return rsa_key(which).public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def pcr_file(pcrs: Mapping[int, bytes] | None = None) -> bytes:
    """The values as `tpm2_quote --pcr` writes them."""
    values = PCRS if pcrs is None else pcrs
    bits = sum(1 << number for number in values)
    selection = struct.pack("<HB", SHA256, 3) + bits.to_bytes(4, "little") + b"\0"
    ordered = [values[number] for number in sorted(values)]
    lists = [ordered[at:at + 8] for at in range(0, len(ordered), 8)]
    return struct.pack("<I", 1) + selection + bytes(8 * 15) + struct.pack("<I", len(lists)) + b"".join(
        struct.pack("<I", len(part)) + b"".join(struct.pack("<H", len(each)) + each.ljust(64, b"\0") for each in part)
        + bytes(66 * (8 - len(part))) for part in lists)


def event_log(events: Sequence[tuple[int, int, bytes]], *, locality: int | None = None) -> bytes:
    """A crypto-agile log with a SHA-256 bank: (register, event type, measured bytes)."""
    spec = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 1) + struct.pack("<HH", SHA256, 32) + b"\0"
    out = struct.pack("<II", 0, 3) + bytes(20) + struct.pack("<I", len(spec)) + spec

    def event(register: int, kind: int, digest: bytes, data: bytes) -> bytes:
        return struct.pack("<IIIH", register, kind, 1, SHA256) + digest + struct.pack("<I", len(data)) + data

    if locality is not None:
        out += event(0, 3, bytes(32), b"StartupLocality\0" + bytes((locality,)))
    return out + b"".join(
        event(register, kind, hashlib.sha256(data).digest(), data) for register, kind, data in events)


def certificate(key: Any, subject: str, issuer: str, signer: Any, *, ca: bool = False, ak: bool = True,
                usage: tuple[str, ...] = (), purpose: str | None = None, critical: bool = False,
                end: datetime = datetime(2033, 1, 1, tzinfo=UTC)) -> x509.Certificate:
    """An AK certificate, or one of the authorities above it. `usage`: of its key, with `purpose` or without a use by
    number; `critical`: with a critical extension that nobody knows."""
    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer)).public_key(
        key.public_key()).serial_number(5).not_valid_before(datetime(2025, 1, 1, tzinfo=UTC)).not_valid_after(end)
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if ca:
        builder = builder.add_extension(x509.KeyUsage(
            digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False),
            critical=True)
    elif usage:
        every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                 "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
        builder = builder.add_extension(x509.KeyUsage(**{name: name in usage for name in every}), critical=True)
    uses = purpose or ("2.23.133.8.3" if ak and not ca and not usage else None)
    if uses is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier(uses)]), critical=False)
    if critical:
        builder = builder.add_extension(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
    return builder.sign(signer, hashes.SHA256())
