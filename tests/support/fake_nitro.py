"""A Nitro hypervisor of the tests' own: its certificates, its documents as AWS's look, and a NitroTPM that hands them
out. It verifies only for those who name its root."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.trust.roots import Roots
from tests.support.fake_amd import NOW

NV_INDEX, BUFFER = 0x01801A50, 8192
RESET = {number: bytes(48) if number < 17 or number > 22 else b"\xff" * 48 for number in range(24)}
NULL = object()


def cbor(value: Any) -> bytes:
    """A value as AWS's writer has it: maps of members are of indefinite length, others are not."""
    def head(major: int, number: int) -> bytes:
        for width, code in ((1, 24), (2, 25), (4, 26), (8, 27)):
            if number < 24:
                return bytes((major << 5 | number,))
            if number < 1 << 8 * width:
                return bytes((major << 5 | code,)) + number.to_bytes(width, "big")
        raise ValueError(number)

    if value is NULL:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value)) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    pairs = b"".join(cbor(name) + cbor(each) for name, each in value.items())
    named = any(isinstance(name, str) for name in value)
    return b"\xbf" + pairs + b"\xff" if named else head(5, len(value)) + pairs


@dataclass
class FakeNitro:
    """Root, a region's authority below it, and the certificate that signs; one thing at a time may be wrong."""

    at: datetime = NOW
    life: timedelta = timedelta(hours=3)
    leaf_is_authority: bool = False
    leaf_signs: bool = True
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    chain: dict[str, x509.Certificate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, issuer in (("aws.nitro-enclaves", "aws.nitro-enclaves"), ("region", "aws.nitro-enclaves"),
                             ("i-0-tpm0", "region")):
            self.keys[name] = ec.generate_private_key(ec.SECP384R1())
            self.chain[name] = self._certificate(name, issuer)

    def _certificate(self, name: str, issuer: str) -> x509.Certificate:
        authority = name != "i-0-tpm0" or self.leaf_is_authority
        life = self.life if name == "i-0-tpm0" else timedelta(days=20)
        signs = self.leaf_signs or authority
        usage = x509.KeyUsage(signs, False, False, False, False, authority, authority, False, False)
        made = x509.CertificateBuilder().subject_name(_named(name)).issuer_name(_named(issuer))
        made = made.public_key(self.keys[name].public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(self.at - timedelta(minutes=5)).not_valid_after(self.at + life)
        made = made.add_extension(x509.BasicConstraints(authority, None), True).add_extension(usage, True)
        return made.sign(self.keys[issuer], hashes.SHA384())

    @property
    def root(self) -> str:
        """SHA-256 of the root."""
        return self.chain["aws.nitro-enclaves"].fingerprint(hashes.SHA256()).hex()

    @property
    def roots(self) -> Roots:
        """The vendors' roots with this one in AWS's place."""
        return Roots(others={"aws-nitrotpm": self.root})

    def members(self, pcrs: Mapping[int, bytes] = RESET, **changes: Any) -> dict[str, Any]:
        """The map of a document, to which `changes` are made."""
        der = {name: each.public_bytes(Encoding.DER) for name, each in self.chain.items()}
        return {"module_id": "i-0-tpm0", "digest": "SHA384", "timestamp": int(self.at.timestamp() * 1000),
                "nitrotpm_pcrs": dict(pcrs), "certificate": der["i-0-tpm0"],
                "cabundle": [der["aws.nitro-enclaves"], der["region"]], "public_key": NULL, "user_data": NULL,
                "nonce": NULL, **changes}

    def sign(self, payload: bytes, protected: bytes = b"\xa1\x01\x38\x22", *, tag: bool = False,
             unprotected: Any = None) -> bytes:
        """COSE_Sign1 around a payload."""
        signed = b"\x84" + cbor("Signature1") + cbor(protected) + cbor(b"") + cbor(payload)
        r, s = decode_dss_signature(self.keys["i-0-tpm0"].sign(signed, ec.ECDSA(hashes.SHA384())))
        signature = r.to_bytes(48, "big") + s.to_bytes(48, "big")
        whole = b"\x84" + cbor(protected) + (b"\xa0" if unprotected is None else cbor(unprotected)) + cbor(payload)
        return (b"\xd2" if tag else b"") + whole + cbor(signature)

    def document(self, pcrs: Mapping[int, bytes] = RESET, **changes: Any) -> bytes:
        """A document."""
        return self.sign(cbor(self.members(pcrs, **changes)))


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


class NitroTpm:
    """A TPM with two banks of registers, one NV index and AWS's command, as far as the appliance asks it. `answer`:
    what it writes in place of a document; `refuses`: a TPM of somebody else, which knows no such command."""

    def __init__(self, nitro: FakeNitro, pcrs: Mapping[int, bytes] = RESET, *, answer: bytes | None = None,
                 refuses: bool = False) -> None:
        self.nitro, self.answer, self.refuses = nitro, answer, refuses
        self.banks = {0x000B: {number: bytes(32) for number in range(24)}, 0x000C: dict(pcrs)}
        self.nv: bytearray | None = None
        self.written = False
        self.codes: list[int] = []

    def execute(self, command: bytes) -> bytes:
        """The answer to one command."""
        _, size, code = struct.unpack_from(">HII", command)
        assert size == len(command)
        self.codes.append(code)
        body = command[10:]
        found = {0x169: self._public, 0x12A: self._define, 0x137: self._write, 0x14E: self._read, 0x122: self._undefine,
                 0x20000001: self._attest, 0x17E: self._pcr_read, 0x182: self._extend}[code](body)
        if isinstance(found, int):
            return struct.pack(">HII", 0x8001, 10, found)
        sessions = struct.unpack_from(">H", command)[0] == 0x8002
        body = struct.pack(">I", len(found)) + found + bytes(5) if sessions else found
        return struct.pack(">HII", 0x8002 if sessions else 0x8001, 10 + len(body), 0) + body

    def _public(self, body: bytes) -> bytes | int:
        if self.nv is None:
            return 0x18B
        area = struct.pack(">IHIHH", NV_INDEX, 0x000B, 1 << 2 | 1 << 18 | self.written << 29, 0, BUFFER)
        return struct.pack(">H", len(area)) + area + b"\0\0"

    def _define(self, body: bytes) -> bytes | int:
        if self.nv is not None:
            return 0x14C
        self.nv, self.written = bytearray(b"\xff" * BUFFER), False
        return b""

    def _write(self, body: bytes) -> bytes:
        at = 8 + 4 + struct.unpack_from(">I", body, 8)[0]
        size = struct.unpack_from(">H", body, at)[0]
        assert self.nv is not None
        self.nv[:size], self.written = body[at + 2:at + 2 + size], True
        self.asked = bytes(self.nv[:size])
        return b""

    def _read(self, body: bytes) -> bytes:
        at = 8 + 4 + struct.unpack_from(">I", body, 8)[0]
        size, offset = struct.unpack_from(">HH", body, at)
        assert self.nv is not None
        return struct.pack(">H", size) + bytes(self.nv[offset:offset + size])

    def _undefine(self, body: bytes) -> bytes:
        self.nv = None
        return b""

    def _attest(self, body: bytes) -> bytes | int:
        if self.refuses:
            return 0x143  # TPM_RC_COMMAND_CODE
        head = b"\xa1\x6bAttestation\xa3\x69user_data\x58\x40"
        assert self.asked.startswith(head)
        document = self.nitro.document(self.banks[0x000C], user_data=self.asked[len(head):len(head) + 64])
        found = b"\xa1\x6bAttestation\xa1\x68document" + cbor(document) if self.answer is None else self.answer
        assert self.nv is not None
        self.nv[:] = found.ljust(BUFFER, b"\xff")
        return b""

    def _pcr_read(self, body: bytes) -> bytes:
        _, bank, size = struct.unpack_from(">IHB", body)
        bits = int.from_bytes(body[7:7 + size], "little")
        values = [self.banks[bank][number] for number in range(24) if bits >> number & 1]
        return struct.pack(">I", 1) + body + struct.pack(">I", len(values)) + b"".join(
            struct.pack(">H", len(each)) + each for each in values)

    def _extend(self, body: bytes) -> bytes:
        number = struct.unpack_from(">I", body)[0]
        at = 4 + 4 + struct.unpack_from(">I", body, 4)[0]
        _, bank = struct.unpack_from(">IH", body, at)
        values, name = self.banks[bank], {0x000B: "sha256", 0x000C: "sha384"}[bank]
        values[number] = hashlib.new(name, values[number] + body[at + 6:]).digest()
        return b""


@contextlib.contextmanager
def listening(tpm: NitroTpm) -> Iterator[Path]:
    """The path of a socket that stands for the TPM's device."""
    with tempfile.TemporaryDirectory(prefix="nitro-") as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder) / "tpm0"
        server.bind(str(path))
        server.listen()
        threading.Thread(target=_serve, args=(server, tpm), daemon=True).start()
        yield path


def _serve(server: socket.socket, tpm: NitroTpm) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection, tpm), daemon=True).start()


def _answer(connection: socket.socket, tpm: NitroTpm) -> None:
    with connection, contextlib.suppress(OSError):
        while command := connection.recv(65536):
            connection.sendall(tpm.execute(command))
