"""A hierarchy of keys shaped like AMD's, that signs any report: the certificates are ours, and so is the root.

RSA keys of 4,096 bits take seconds to make, so one set serves all sessions of a checkout: it lies in `build/tests`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral

NOW = datetime(2026, 6, 1, tzinfo=UTC)
KEYS = Path(__file__).parents[2] / "build" / "tests" / "keys"
START, END = datetime(2025, 1, 1, tzinfo=UTC), datetime(2033, 1, 1, tzinfo=UTC)
CHIP = bytes(range(64))
TURIN_CHIP = bytes(range(1, 9)).ljust(64, b"\0")
CPUID = {"Milan": (0x19, 0x01, 1), "Genoa": (0x19, 0x11, 1), "Turin": (0x1A, 0x02, 1), "Venice": (0x1A, 0x50, 0)}
SIENA = (0x19, 0xA0, 2)  # with Genoa's keys
# A Genoa machine with all that policies/sev-snp-production.hcl demands: TCB, report, guest policy (one socket, power
# meter off, ciphertext hidden) and platform (error correction, meter off, ciphertext hidden, no aliases).
PATCHED_TCB = {"bootloader": 10, "tee": 0, "snp": 27, "microcode": 86}
PATCHED: dict[str, Any] = {
    "version": 5, "svn": 3, "mitigations": (0xB, 0xB), "platform": 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5,
    "policy": 1 << 17 | 1 << 20 | 1 << 23 | 1 << 24, "id_key": hashlib.sha384(b"made up: an ID key").digest()}
OID = "1.3.6.1.4.1.3704.1."
_PSS = padding.PSS(padding.MGF1(hashes.SHA384()), salt_length=48)


@functools.cache
def rsa_key(which: str) -> rsa.RSAPrivateKey:
    """An RSA key by its role, made once in a session; strangers need no long one."""
    return _kept(which) if which in ("ark", "ask") else rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _kept(which: str) -> rsa.RSAPrivateKey:
    """A long key, made once in a checkout. Of two that are made at once the first serves all: a test and the service
    that it starts have the same."""
    path = KEYS / f"{which}.pem"
    if not path.exists():
        made = rsa.generate_private_key(public_exponent=65537, key_size=4096)
        KEYS.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=KEYS) as file:
            file.write(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                          serialization.NoEncryption()))
            file.flush()
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(file.name)
    found = serialization.load_pem_private_key(path.read_bytes(), None, unsafe_skip_rsa_key_validation=True)
    assert isinstance(found, rsa.RSAPrivateKey)
    return found


@functools.cache
def ec_key(which: str) -> ec.EllipticCurvePrivateKey:
    """A P-384 key by its role, made once in a session."""
    return ec.generate_private_key(ec.SECP384R1())


def name(common: str) -> x509.Name:
    """A subject as AMD spells it."""
    return x509.Name([
        x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "Engineering"),
        x509.NameAttribute(NameOID.COUNTRY_NAME, "US"), x509.NameAttribute(NameOID.LOCALITY_NAME, "Santa Clara"),
        x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "CA"),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Advanced Micro Devices"),
        x509.NameAttribute(NameOID.COMMON_NAME, common)])


def integer(value: int) -> bytes:
    """A DER INTEGER from 0 to 255."""
    return bytes((2, 1, value)) if value < 128 else bytes((2, 2, 0, value))


def text(value: str) -> bytes:
    """A DER IA5String."""
    return bytes((0x16, len(value))) + value.encode()


def tcb_bytes(product: str, tcb: Mapping[str, int]) -> bytes:
    """TCB_VERSION in a product line's layout."""
    part = {"fmc": 1, "bootloader": 4, "tee": 1, "snp": 20, "microcode": 200, **tcb}
    if product == "Turin":
        return bytes((part["fmc"], part["bootloader"], part["tee"], part["snp"], 0, 0, 0, part["microcode"]))
    if product == "Venice":
        return bytes((part["fmc"], part["tee"], part["snp"], 0, 0, 0, 0, 0))
    return bytes((part["bootloader"], part["tee"], 0, 0, 0, 0, part["snp"], part["microcode"]))


def extensions(product: str, raw_tcb: bytes, **changes: bytes | None) -> dict[str, bytes]:
    """The extensions of a VCEK, by OID suffix; a change of None leaves one out."""
    turin = product in ("Turin", "Venice")
    at = ({"3.9": 0, "3.2": 1, "3.3": 2} if product == "Venice" else
          {"3.9": 0, "3.1": 1, "3.2": 2, "3.3": 3, "3.5": 4, "3.6": 5, "3.7": 6, "3.8": 7} if turin else
          {"3.1": 0, "3.2": 1, "3.4": 2, "3.5": 3, "3.6": 4, "3.7": 5, "3.3": 6, "3.8": 7})
    values: dict[str, bytes | None] = {"1": integer(1), "2": text(product if turin else f"{product}-B0")}
    values |= {suffix: integer(raw_tcb[index]) for suffix, index in at.items()}
    values["4"] = TURIN_CHIP[:8] if turin else CHIP
    values |= changes
    return {suffix: value for suffix, value in values.items() if value is not None}


@dataclass
class FakeAmd:
    """One product line: `ark`, `ask` (or ASVK), `leaf`, and reports signed with the leaf's key.

    `options` change one thing each: see `authority` and `leaf_certificate`.
    """

    product: str = "Milan"
    vlek: bool = False
    tcb: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def ark(self) -> x509.Certificate:
        """The self-signed root."""
        return self.authority(f"ARK-{self.product}", "ark", f"ARK-{self.product}", "ark", serial=0x10000)

    @functools.cached_property
    def ask(self) -> x509.Certificate:
        """The intermediate: ASK, or ASVK for a VLEK."""
        return self.authority(self.ask_name, "ask", f"ARK-{self.product}", "ark", serial=0x10001, path_length=0)

    @property
    def ask_name(self) -> str:
        """The intermediate's common name."""
        return f"SEV-VLEK-{self.product}" if self.vlek else f"SEV-{self.product}"

    def authority(self, common: str, key: str, issuer: str, issuer_key: str, *, serial: int,
                  path_length: int | None = None) -> x509.Certificate:
        """A CA certificate; `options[key]` may give name, issuer, ca, usage, start, end, padding, hash, path_length."""
        change = dict(self.options.get(key, {}))
        return _certificate(
            name(change.get("name", common)), name(change.get("issuer", issuer)), rsa_key(key).public_key(),
            rsa_key(change.get("signer", issuer_key)), serial, change, ca=True,
            path_length=change.get("path_length", path_length))

    @property
    def raw_tcb(self) -> bytes:
        """The TCB that the leaf was derived for."""
        return tcb_bytes(self.product, self.tcb)

    @functools.cached_property
    def leaf(self) -> x509.Certificate:
        """The VCEK or VLEK; `options["leaf"]` may change what `authority` may, and `extensions`, by OID suffix."""
        change = dict(self.options.get("leaf", {}))
        own = {"4": None, "5": text("A Cloud"), "2": text(self.product)} if self.vlek else {}
        kind = "SEV-VLEK" if self.vlek else "SEV-VCEK"
        return _certificate(
            name(change.get("name", kind)), name(change.get("issuer", self.ask_name)),
            change.get("key", ec_key("leaf")).public_key(), rsa_key(change.get("signer", "ask")),
            change.get("serial", 7), change,
            extra=extensions(self.product, self.raw_tcb, **{**own, **change.get("extensions", {})}))

    @property
    def roots(self) -> dict[str, str]:
        """The pin that makes a verifier trust this hierarchy."""
        return {self.product: walks.fingerprint(self.ark)}

    def collateral(self) -> Collateral:
        """All three certificates."""
        return Collateral(certificates=reread([self.leaf, self.ark, self.ask]))

    def crl(self, *, signer: str = "ark", issuer: str | None = None, serial: int = 1,
            of: str | None = None, start: datetime = NOW - timedelta(days=1),
            end: datetime = NOW + timedelta(days=30)) -> x509.CertificateRevocationList:
        """A revocation list with one entry; `of` names another issuer of that certificate."""
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(start)
        if of is not None:
            entry = entry.add_extension(x509.CertificateIssuer([x509.DirectoryName(name(of))]), critical=True)
        builder = x509.CertificateRevocationListBuilder().issuer_name(
            name(issuer or f"ARK-{self.product}")).last_update(start).next_update(end)
        return builder.add_revoked_certificate(entry.build()).sign(
            rsa_key(signer), hashes.SHA384(), rsa_padding=_PSS)

    def report(self, *, version: int = 3, sign: bool = True, **fields: Any) -> bytes:
        """A signed report. Fields: policy, platform, flags, vmpl, svn, report_data, measurement, host_data, ids,
        tcbs by name (current, reported, committed, launch), chip_id, cpuid, current_version, committed_version,
        mitigations (at launch, now)."""
        head = self._head(version, fields)
        if not sign:
            return head + bytes(512)
        r, s = decode_dss_signature(
            fields.get("key", ec_key("leaf")).sign(head, ec.ECDSA(hashes.SHA384())))
        return head + r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(368)

    def _head(self, version: int, fields: Mapping[str, Any]) -> bytes:
        chip = TURIN_CHIP if self.product in ("Turin", "Venice") else CHIP
        family, model, stepping = fields.get("cpuid", CPUID.get(self.product, (0x1A, 0xF0, 0)))
        cpuid = bytes((family, model, stepping)) if version >= 3 else bytes(3)
        vectors = struct.pack("<QQ", *fields.get("mitigations", (0, 0)))
        return b"".join((
            struct.pack("<IIQ", version, fields.get("svn", 0), fields.get("policy", 1 << 17)),
            fields.get("family_id", bytes(16)), fields.get("image_id", bytes(16)),
            struct.pack("<II", fields.get("vmpl", 0), fields.get("algorithm", 1)),
            fields.get("current", self.raw_tcb), struct.pack("<Q", fields.get("platform", 0)),
            struct.pack("<II", fields.get("flags", 4 if self.vlek else 0), 0),
            fields.get("report_data", bytes(64)), fields.get("measurement", bytes(48)),
            fields.get("host_data", bytes(32)), fields.get("id_key", bytes(48)), fields.get("author_key", bytes(48)),
            bytes(32), fields.get("report_id_ma", b"\xff" * 32), fields.get("reported", self.raw_tcb),
            cpuid, bytes(21), fields.get("chip_id", chip), fields.get("committed", self.raw_tcb),
            bytes(fields.get("current_version", (10, 55, 1))), b"\0",
            bytes(fields.get("committed_version", (10, 55, 1))), b"\0",
            fields.get("launch", self.raw_tcb), fields.get("tail", vectors + bytes(0x98))))


def reread(certificates: list[x509.Certificate]) -> list[x509.Certificate]:
    """Certificates as a verifier reads them."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return [walks.load(each.public_bytes(Encoding.DER), "test")[0] for each in certificates]


def _certificate(subject: x509.Name, issuer: x509.Name, key: Any, signer: rsa.RSAPrivateKey, serial: int,
                 change: Mapping[str, Any], *, ca: bool = False, path_length: int | None = None,
                 extra: Mapping[str, bytes] | None = None) -> x509.Certificate:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(
        serial).not_valid_before(change.get("start", START)).not_valid_after(change.get("end", END))
    if ca and change.get("ca", True) is not None:
        authority = change.get("ca", True)
        builder = builder.add_extension(
            x509.BasicConstraints(ca=authority, path_length=path_length if authority else None), critical=True)
        builder = builder.add_extension(x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
            key_agreement=False, key_cert_sign=change.get("usage", True), crl_sign=True, encipher_only=False,
            decipher_only=False), critical=True)
    for suffix, value in (extra or {}).items():
        oid = x509.ObjectIdentifier(OID + suffix)
        builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
    for oid, value in change.get("critical", {}).items():
        builder = builder.add_extension(
            x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), value), critical=True)
    return builder.sign(signer, change.get("hash", hashes.SHA384()), rsa_padding=change.get("padding", _PSS))
