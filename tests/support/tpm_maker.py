"""A maker of TPMs for tests: certifies endorsement keys, rightly or with one thing wrong, and puts NV in order."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm.chip import activate as tpm_activate
from appliance.attestation.tpm.chip import device as tpm_device
from appliance.attestation.tpm.chip.client import OWNER, Command, Tpm, sized
from tests.support import fake_tpm

# TPM 2.0 Library, Part 3: what only whoever sets a machine up needs
NV_DEFINE = Command("TPM2_NV_DefineSpace", 0x12A, "31.3", authorised=1)
NV_UNDEFINE = Command("TPM2_NV_UndefineSpace", 0x122, "31.4", authorised=1)
NV_WRITE = Command("TPM2_NV_Write", 0x137, "31.7", authorised=1)
NV_ATTRIBUTES = 1 << 1 | 1 << 2 | 1 << 17 | 1 << 18  # owner and index may write and read
L1, L2, H1, H2, H3, H4, H6 = 0x01C00002, 0x01C0000A, 0x01C00012, 0x01C00014, 0x01C00016, 0x01C00018, 0x01C0001C


def write_nv(tpm: Tpm, index: int, data: bytes) -> None:
    """Define an NV index of the owner's and write it, in place of what was there."""
    tpm.execute(NV_UNDEFINE, (OWNER, index))
    area = struct.pack(">IHI", index, 0x000B, NV_ATTRIBUTES) + sized(b"") + struct.pack(">H", len(data))
    tpm.require(NV_DEFINE, (OWNER,), sized(b"") + sized(area))
    for at in range(0, len(data), 512):
        tpm.require(NV_WRITE, (OWNER, index), sized(data[at:at + 512]) + struct.pack(">H", at))


def endorsement_key(tpm: Tpm, index: int = L2) -> Any:
    """The public endorsement key that a default template gives."""
    made = tpm_device.create_primary(tpm, tpm_activate.TEMPLATES[index].area())
    tpm.flush(made.handle)
    return tpm_abi.parse_public(made.public).key


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


@dataclass(frozen=True)
class Maker:
    """A root and an authority under it; `name` tells one maker from another, `until` is when the root ends."""

    name: str = "Maker"
    until: datetime = datetime(2033, 1, 1, tzinfo=UTC)

    @property
    def root(self) -> x509.Certificate:
        """The self-signed root."""
        key = fake_tpm.ec_key(f"{self.name} root")
        return fake_tpm.certificate(key, f"{self.name} Root", f"{self.name} Root", key, ca=True, end=self.until)

    @property
    def authority(self) -> x509.Certificate:
        """The name of the issuer."""
        return fake_tpm.certificate(fake_tpm.ec_key(f"{self.name} ca"), f"{self.name} CA", f"{self.name} Root",
                                    fake_tpm.ec_key(f"{self.name} root"), ca=True)

    def folder(self, path: Path, *more: x509.Certificate, chain: bool = True) -> Path:
        """A folder for `--ek-roots`."""
        path.mkdir(exist_ok=True)
        for number, each in enumerate((self.root, *([self.authority] if chain else []), *more)):
            (path / f"{number}.pem").write_bytes(each.public_bytes(Encoding.PEM))
        return path

    def certify(self, key: Any, *, days: tuple[int, int] = (-300, 2400), use: str | None = "2.23.133.8.1",
                ca: bool = False, encrypts: bool = True, critical: bool = False,
                signer: str | None = None) -> x509.Certificate:
        """An EK certificate as the TCG's profile has it: no subject, the TPM in a critical alternative name."""
        is_rsa = isinstance(key, rsa.RSAPublicKey)
        usage = dict.fromkeys(("content_commitment", "data_encipherment", "key_cert_sign", "crl_sign", "encipher_only",
                               "decipher_only"), False)
        tpm = x509.DirectoryName(x509.Name([x509.NameAttribute(x509.ObjectIdentifier("2.23.133.2.1"), "id:00001014")]))
        first, last = (fake_tpm.NOW + timedelta(days=each) for each in days)
        builder = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(_name(f"{self.name} CA"))
        builder = builder.public_key(key).serial_number(7).not_valid_before(first).not_valid_after(last)
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
        builder = builder.add_extension(x509.SubjectAlternativeName([tpm]), True).add_extension(x509.KeyUsage(
            digital_signature=not encrypts, key_encipherment=is_rsa and encrypts, key_agreement=not is_rsa and encrypts,
            **usage), True)
        if use is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier(use)]), False)
        if critical:
            builder = builder.add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\5\0"), True)
        return builder.sign(fake_tpm.ec_key(signer or f"{self.name} ca"), hashes.SHA256())

    def furnish(self, path: Path, *, index: int = L2, chain: bool = False, **changes: Any) -> x509.Certificate:
        """Give the TPM behind a socket a certificate of its endorsement key, and the authority's if `chain`."""
        tpm = Tpm(path)
        certificate = self.certify(endorsement_key(tpm, index), **changes)
        write_nv(tpm, index, certificate.public_bytes(Encoding.DER) + bytes(40))  # padded, as makers do
        if chain:
            write_nv(tpm, 0x01C00100, self.authority.public_bytes(Encoding.DER))
        tpm.close()
        return certificate


def other_key() -> ec.EllipticCurvePublicKey:
    """The endorsement key of no TPM."""
    return fake_tpm.ec_key("another endorsement key").public_key()
