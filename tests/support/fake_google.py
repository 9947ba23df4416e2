"""Launch endorsements as Google writes them, by a hierarchy of ours. The wire format is written here, from its
specification, and not by the reader's code."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.support.fake_amd import rsa_key

NOW = datetime(2026, 6, 1, tzinfo=UTC)
START, END = NOW - timedelta(days=300), NOW + timedelta(days=3000)
MRTD, OTHER = b"\x72" * 48, b"\x73" * 48
LAUNCH = {1: b"\x41" * 48, 4: b"\x44" * 48}
FIRMWARE = b"\x11" * 48
GIB = 1 << 30
# The sections of Google's firmware, as the hand-off blocks of its public logs list them: memory and kind. Its files are
# not ours to copy, so that these stand in a file of our own.
SECTIONS = ((0xFFE20000, 0x1E0000, 0), (0xFFE00000, 0x20000, 1), (0x810000, 0x10000, 3), (0x80B000, 0x2000, 3),
            (0x809000, 0x2000, 2), (0x800000, 0x6000, 3))


def varint(value: int) -> bytes:
    """A number, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def number(field: int, value: int) -> bytes:
    """A field with a number."""
    return varint(field << 3) + varint(value)


def content(field: int, data: bytes) -> bytes:
    """A field with bytes, text or a message."""
    return varint(field << 3 | 2) + varint(len(data)) + data


def certificate(subject: str, issuer: str, *, by: str, own: str, start: datetime = START, end: datetime = END,
                authority: bool = False) -> x509.Certificate:
    """A certificate of one role's key by another's, with RSASSA-PSS."""
    def name(common: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])

    builder = x509.CertificateBuilder().subject_name(name(subject)).issuer_name(name(issuer)).public_key(
        rsa_key(own).public_key()).serial_number(7).not_valid_before(start).not_valid_after(end)
    builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    return builder.sign(rsa_key(by), hashes.SHA256(), rsa_padding=padding.PSS(
        padding.MGF1(hashes.SHA256()), salt_length=32))


class FakeGoogle:
    """A root, a signing key, and endorsements by it."""

    def __init__(self) -> None:
        self.root = certificate("GCE-cc-tcb-root", "GCE-cc-tcb-root", by="gce-root", own="gce-root", authority=True)
        self.leaf = certificate("GCE-uefi-signer", "GCE-cc-tcb-root", by="gce-root", own="gce-signer")
        self.pin = self.root.fingerprint(hashes.SHA256()).hex()

    def golden(self, **changed: Any) -> bytes:
        """VMGoldenMeasurement."""
        tdx = changed.pop("tdx", [(MRTD, 0, 0), (OTHER, 16, 1)])
        snp = changed.pop("snp", LAUNCH)
        fields = {
            1: content(1, number(1, 1_790_000_000)), 2: number(2, 700_000_000),
            4: content(4, self.leaf.public_bytes(Encoding.DER)), 5: content(5, FIRMWARE),
            6: content(6, self.root.public_bytes(Encoding.PEM)),
            7: content(7, number(1, 9) + b"".join(content(2, number(1, vcpus) + content(2, digest))
                                                  for vcpus, digest in snp.items()) + number(5, 0x70000)),
            8: content(8, number(1, 3) + b"".join(content(2, (number(1, ram) if ram else b"") + (
                number(2, early) if early else b"") + content(3, mrtd)) for mrtd, ram, early in tdx))}
        fields |= {int(name.removeprefix("field")): value for name, value in changed.items()}
        return b"".join(value for _, value in sorted(fields.items()))

    def endorsement(self, golden: bytes | None = None, *, by: str = "gce-signer", salt: int = 32,
                    **changed: Any) -> bytes:
        """VMLaunchEndorsement: what is signed, and its signature."""
        signed = self.golden(**changed) if golden is None else golden
        signature = rsa_key(by).sign(signed, padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=salt),
                                     hashes.SHA256())
        return content(1, signed) + content(2, signature)


def firmware() -> bytes:
    """A firmware file whose TDX sections are those of Google's, with content of ours. 2 MiB."""
    size, at = 0x200000, 0x1000
    data = bytearray(b"\xf4" * size)
    places = {0: (0x20000, 0x1E0000), 1: (0, 0x20000)}
    body = b"".join(struct.pack("<2I2Q2I", *places.get(kind, (0, 0)), gpa, length, kind, int(kind == 0))
                    for gpa, length, kind in SECTIONS)
    data[0x20000 + at:0x20000 + at + 16 + len(body)] = struct.pack("<4sIII", b"TDVF", 16 + len(body), 1,
                                                                   len(SECTIONS)) + body
    entry = struct.pack("<IH", size - 0x20000 - at, 22) + _guid("e47a6535-984a-4798-865e-4685a7bf8ec2")
    table = entry + struct.pack("<H", len(entry) + 18) + _guid("96b582de-1fb2-45f7-baea-a366c55a082d")
    data[size - 32 - len(table):size - 32] = table
    return bytes(data)


def _guid(text: str) -> bytes:
    first, second, third, fourth, fifth = text.split("-")
    return struct.pack("<IHH", int(first, 16), int(second, 16), int(third, 16)) + bytes.fromhex(fourth + fifth)
