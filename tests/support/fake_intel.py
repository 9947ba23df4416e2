"""A hierarchy of keys shaped like Intel's, that signs any TDX quote and the collateral for it. The root is ours."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral

NOW = datetime(2026, 6, 1, tzinfo=UTC)
START, END = datetime(2025, 1, 1, tzinfo=UTC), datetime(2033, 1, 1, tzinfo=UTC)
FMSPC = bytes.fromhex("0a0b0c0d0e0f")
INTEL_QE = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
MRSIGNER = hashlib.sha256(b"quoting enclave").digest()
SGX_OID = x509.ObjectIdentifier("1.2.840.113741.1.13.1")
_DATE = "%Y-%m-%dT%H:%M:%SZ"


@functools.cache
def key(which: str) -> ec.EllipticCurvePrivateKey:
    """A P-256 key by its role, made once in a session."""
    return ec.generate_private_key(ec.SECP256R1())


def raw_signature(which: str, data: bytes) -> bytes:
    """ECDSA P-256 with SHA-256: r and s, 32 bytes each."""
    r, s = decode_dss_signature(key(which).sign(data, ec.ECDSA(hashes.SHA256())))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    head = bytes((size,)) if size < 128 else bytes((0x82,)) + size.to_bytes(2, "big")
    return bytes((tag,)) + head + content


def _oid(*tail: int) -> bytes:
    return _der(6, bytes.fromhex("2a864886f84d010d01") + bytes(tail))


def sgx_extension(smt: bool, lacks: int | None = None, ppid: bytes = b"\x01" * 16) -> bytes:
    """The statement of a PCK certificate about its platform: PPID, TCB, PCE id, FMSPC, type,
    platform instance, configuration; `lacks`: the number of a part that is left out."""
    components = b"".join(_der(0x30, _oid(2, number) + _der(2, b"\x05")) for number in range(1, 17))
    tcb = components + _der(0x30, _oid(2, 17) + _der(2, b"\x0b")) + _der(0x30, _oid(2, 18) + _der(4, b"\x05" * 16))
    configuration = b"".join(
        _der(0x30, _oid(7, number) + _der(1, b"\xff" if on else b"\x00"))
        for number, on in ((1, True), (2, True), (3, smt)))
    values = (_der(4, ppid), _der(0x30, tcb), _der(4, bytes(2)), _der(4, FMSPC), _der(10, b"\x01"),
              _der(4, b"\x02" * 16), _der(0x30, configuration))
    return _der(0x30, b"".join(_der(0x30, _oid(number) + value) for number, value in enumerate(values, start=1)
                               if number != lacks))


def name(common: str) -> x509.Name:
    """A subject as Intel spells it."""
    return x509.Name([
        x509.NameAttribute(NameOID.COMMON_NAME, common),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Intel Corporation"),
        x509.NameAttribute(NameOID.LOCALITY_NAME, "Santa Clara"),
        x509.NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "CA"), x509.NameAttribute(NameOID.COUNTRY_NAME, "US")])


def certificate(common: str, which: str, issuer: str, issuer_key: str, *, ca: int | None = None,
                extension: bytes | None = None, **change: Any) -> x509.Certificate:
    """A certificate for a role's key; `ca` is the path length below it, None for an end entity (-1: no limit)."""
    builder = x509.CertificateBuilder().subject_name(name(common)).issuer_name(name(issuer)).public_key(
        key(which).public_key()).serial_number(change.get("serial", 7)).not_valid_before(
        change.get("start", START)).not_valid_after(change.get("end", END))
    builder = builder.add_extension(x509.BasicConstraints(
        ca=ca is not None, path_length=None if ca is None or ca < 0 else ca), critical=True)
    builder = builder.add_extension(x509.KeyUsage(
        digital_signature=ca is None, content_commitment=ca is None, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=ca is not None, crl_sign=ca is not None, encipher_only=False,
        decipher_only=False), critical=True)
    builder = builder.add_extension(
        x509.CRLDistributionPoints([x509.DistributionPoint(
            [x509.UniformResourceIdentifier("https://example.invalid/crl")], None, None, None)]), critical=False)
    if extension is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(SGX_OID, extension), critical=False)
    return builder.sign(key(issuer_key), hashes.SHA256())


ROOT, PLATFORM, PCK, SIGNING = ("Intel SGX Root CA", "Intel SGX PCK Platform CA", "Intel SGX PCK Certificate",
                                "Intel SGX TCB Signing")


@dataclass
class FakeIntel:
    """Root, PCK chain, quoting enclave and TCB service. `options` change one thing each, see the methods."""

    options: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def root(self) -> x509.Certificate:
        """The self-signed root."""
        return certificate(ROOT, "root", ROOT, self.options.get("root_signer", "root"),
                           ca=self.options.get("root_ca", 1), serial=1)

    @functools.cached_property
    def chain(self) -> bytes:
        """PCK, intermediate and root in PEM."""
        middle = certificate(PLATFORM, "platform", ROOT, self.options.get("platform_signer", "root"),
                             ca=self.options.get("platform_ca", 0), serial=2, **self.options.get("platform", {}))
        extension = sgx_extension(self.options.get("smt", False), self.options.get("pck_lacks"),
                                  self.options.get("ppid", b"\x01" * 16))
        pck = certificate(PCK, "pck", PLATFORM, self.options.get("pck_signer", "platform"), serial=3,
                          extension=extension, **self.options.get("pck", {}))
        return b"".join(each.public_bytes(Encoding.PEM) for each in (pck, middle, self.root))

    @property
    def pins(self) -> dict[str, Any]:
        """The arguments that make a verifier trust this hierarchy."""
        return {"root": walks.fingerprint(self.root), "root_der": self.root.public_bytes(Encoding.DER)}

    def _crl(self, issuer: str, signer: str, revoked: int | None) -> str:
        update = self.options.get(f"{signer}_listed", NOW - timedelta(days=1))
        builder = x509.CertificateRevocationListBuilder().issuer_name(name(issuer)).last_update(
            update).next_update(self.options.get(f"{signer}_list_ends", NOW + timedelta(days=29))).add_extension(
            x509.CRLNumber(1), critical=False).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key(signer).public_key()), critical=False)
        if revoked is not None:
            builder = builder.add_revoked_certificate(x509.RevokedCertificateBuilder().serial_number(
                revoked).revocation_date(NOW - timedelta(days=2)).build())
        return builder.sign(key(signer), hashes.SHA256()).public_bytes(Encoding.DER).hex()

    def _dates(self, what: str) -> dict[str, str]:
        issued = self.options.get(f"{what}_issued", self.options.get("issued", NOW - timedelta(days=1)))
        return {"issueDate": issued.strftime(_DATE), "nextUpdate": (issued + timedelta(days=30)).strftime(_DATE)}

    def _tcb_info(self) -> str:
        level = {"tcb": {"sgxtcbcomponents": [{"svn": 5}] * 16, "pcesvn": 11,
                         "tdxtcbcomponents": [{"svn": 3}, {"svn": 0}] + [{"svn": 0}] * 14},
                 "tcbDate": "2025-01-01T00:00:00Z", "tcbStatus": self.options.get("status", "UpToDate"),
                 "advisoryIDs": self.options.get("advisories", [])}
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "FF" * 8}
        levels = self.options.get("module_levels", [
            {"tcb": {"isvsvn": self.options.get("module_svn", 2)}, "tcbDate": "2025-01-01T00:00:00Z",
             "tcbStatus": "UpToDate"}])
        return json.dumps({
            "id": "TDX", "version": 3, **self._dates("info"), "fmspc": self.options.get("fmspc", FMSPC.hex().upper()),
            "pceId": self.options.get("pce_id", "0000"), "tcbType": 0,
            "tcbEvaluationDataNumber": self.options.get("info_number", 17),
            "tdxModule": module, "tdxModuleIdentities": [{"id": "TDX_01", **module, "tcbLevels": levels}],
            "tcbLevels": self.options.get("levels", [level])}, separators=(",", ":"))

    def _qe_identity(self) -> str:
        return json.dumps({
            "id": "TD_QE", "version": self.options.get("qe_version", 2), **self._dates("qe"),
            "tcbEvaluationDataNumber": self.options.get("qe_number", 17), "miscselect": "00000000",
            "miscselectMask": "FFFFFFFF", "attributes": "11" + "00" * 15, "attributesMask": "FB" + "FF" * 7 + "00" * 8,
            "mrsigner": MRSIGNER.hex().upper(), "isvprodid": 2, "tcbLevels": self.options.get("qe_levels", [
                {"tcb": {"isvsvn": self.options.get("qe_svn", 4)}, "tcbDate": "2025-01-01T00:00:00Z",
                 "tcbStatus": "UpToDate"}])},
            separators=(",", ":"))

    def document(self) -> dict[str, str]:
        """Collateral in the form of the vectors."""
        signing = certificate(SIGNING, "signing", ROOT, "root", serial=4, **self.options.get("signing", {}))
        issuers = signing.public_bytes(Encoding.PEM).decode() + self.root.public_bytes(Encoding.PEM).decode()
        info, identity = self._tcb_info(), self._qe_identity()
        middle = "-----BEGIN CERTIFICATE-----" + self.chain.decode().split("-----BEGIN CERTIFICATE-----", 2)[2]
        return {
            "pck_crl_issuer_chain": middle, "root_ca_crl": self._crl(ROOT, "root", self.options.get("root_revokes")),
            "pck_crl": self._crl(PLATFORM, "platform", self.options.get("pck_revokes")),
            "tcb_info_issuer_chain": issuers, "tcb_info": info,
            "tcb_info_signature": raw_signature(self.options.get("tcb_signer", "signing"), info.encode()).hex(),
            "qe_identity_issuer_chain": issuers, "qe_identity": identity,
            "qe_identity_signature": raw_signature("signing", identity.encode()).hex()}

    def collateral(self) -> Collateral:
        """Collateral as a verifier finds it."""
        return Collateral(documents=[dict(self.document())])

    def body(self, **fields: Any) -> bytes:
        """TD10, or TD15 with `td15`."""
        plain = b"".join((
            fields.get("tee_tcb_svn", b"\x03\x01" + bytes(14)), fields.get("mr_seam", b"\x0a" * 48),
            fields.get("mr_signer_seam", bytes(48)), bytes(8),
            struct.pack("<QQ", fields.get("attributes", 1 << 28), fields.get("xfam", 0xE7)),
            *(fields.get(part, bytes(48)) for part in ("mr_td", "mr_config_id", "mr_owner", "mr_owner_config",
                                                       "rtmr0", "rtmr1", "rtmr2", "rtmr3")),
            fields.get("report_data", bytes(64))))
        svn2 = fields.get("tee_tcb_svn2", b"\x03\x01" + bytes(14))
        return plain + svn2 + fields.get("service", bytes(48)) if fields.get("td15") else plain

    def quote(self, version: int = 4, **fields: Any) -> bytes:
        """A signed quote. Options: qe_signer, qe_mrsigner, bound (the key that the QE report binds), signer."""
        body = self.body(**fields)
        head = struct.pack("<HHI", version, 2, 0x81) + bytes(4) + INTEL_QE + bytes(20)
        if version == 5:
            head += struct.pack("<HI", 3 if fields.get("td15") else 2, len(body))
        signed = head + body
        public = key("attestation").public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)[1:]
        authentication = bytes(range(32))
        bound = self.options.get("bound", public)
        report = b"".join((
            b"\x05" * 16, bytes(32), b"\x15" + bytes(7) + b"\xe7" + bytes(7), b"\x0b" * 32, bytes(32),
            self.options.get("qe_mrsigner", MRSIGNER), bytes(96), struct.pack("<HH", 2, 6), bytes(60),
            hashlib.sha256(bound + authentication).digest(), bytes(32)))
        chain = struct.pack("<HI", 5, len(self.chain)) + self.chain
        inner = (report + raw_signature(self.options.get("qe_signer", "pck"), report)
                 + struct.pack("<H", 32) + authentication + chain)
        data = (raw_signature(self.options.get("signer", "attestation"), signed) + public
                + struct.pack("<HI", 6, len(inner)) + inner)
        return signed + struct.pack("<I", len(data)) + data


def dice_certificate(quote: bytes = b"\x04\x00\x02\x00\x81\x00\x00\x00" + bytes(300), *, tag: int = 60000,
                     claims: bytes = b"\xa0") -> bytes:
    """A DER certificate that is just enough of one to carry evidence: nothing in it is signed."""
    size = bytes((0x40 + len(claims),)) if len(claims) < 24 else bytes((0x58, len(claims)))
    value = (b"\xd9" + tag.to_bytes(2, "big") + b"\x82\x59" + len(quote).to_bytes(2, "big") + quote + size + claims)
    extension = _der(0x30, bytes.fromhex("0606678105050409") + _der(4, value))
    body = _der(0x30, b"".join(_der(0x30, b"") for _ in range(6)) + _der(0xA3, _der(0x30, extension)))
    return _der(0x30, body + _der(0x30, b"") + _der(3, b"\0"))


def dice_certificate_spki() -> bytes:
    """Its stand-in for the public key: an empty sequence."""
    return _der(0x30, b"")
