"""The requests to a TPM for evidence: an attestation key, PCR values, a quote over them,
certificates from NV."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from appliance.attestation.tpm import abi
from appliance.attestation.tpm.abi import sized
from appliance.attestation.tpm.chip import client
from appliance.attestation.tpm.chip.client import Tpm
from appliance.attestation.x509 import walks
from appliance.codec.cursor import Cursor
from appliance.errors import AttestationError

SHA256, SHA384, AES, CFB = 0x000B, 0x000C, 0x0006, 0x0043
BANKS = {"sha256": SHA256, "sha384": SHA384}
ALL_PCRS = tuple(range(24))
MAX_NV_BYTES, _NV_CHUNK = 1 << 16, 512
_READ_AT_ONCE = 8  # PCR values in one answer at most (Part 3, section 22.4)
# TPMA_NV, Part 2, section 13.4
_PP_READ, _OWNER_READ, _AUTH_READ, _WRITTEN = 1 << 16, 1 << 17, 1 << 18, 1 << 29
# TPMA_OBJECT, Part 2, section 8.3: beside what tpm_abi names
_USER_WITH_AUTH, _NO_DA = 1 << 6, 1 << 10

# EK certificates by NV index: TCG "EK Credential Profile", section 2.2.1.4. Curves first: such keys
# are made quickly
EK_CERTIFICATES = (0x01C00016, 0x01C00014, 0x01C0000A, 0x01C00012, 0x01C00002, 0x01C00018, 0x01C0001C, 0x01C0001E)
EK_CHAIN = range(0x01C00100, 0x01C00108)  # authorities above them, as many to an index as fit: section 2.2.1.5.2
MAX_CHAIN_BYTES = 8192


@dataclass(frozen=True)
class LoadedKey:
    """A loaded key: its handle, its public area (TPM2B_PUBLIC), and a certificate that a cloud put
    beside it."""

    handle: int
    public: bytes
    certificate: bytes | None = None


@dataclass(frozen=True)
class CloudKey:
    """Where a cloud keeps an attestation key that it certified: certificate and template, or
    handle."""

    cloud: str
    certificate: int
    template: int | None = None
    handle: int | None = None


# Google: "Virtual Trusted Platform Module" (Compute Engine); Azure: "Guest attestation for
# confidential VMs"
CLOUDS = (
    CloudKey("Google", 0x01C10002, template=0x01C10003),
    CloudKey("Google", 0x01C10000, template=0x01C10001),
    CloudKey("Azure", 0x01C101D0, handle=0x81000003),
)
AZURE_REPORT = 0x01400001


def own_template() -> bytes:
    """TPMT_PUBLIC of our attestation key: ECDSA P-256 with SHA-256, restricted, fixed to the TPM,
    empty password.

    The same template gives the same key for as long as the TPM's endorsement seed lives.
    """
    attributes = (abi.FIXED_TPM | abi.FIXED_PARENT | abi.SENSITIVE_ORIGIN | abi.RESTRICTED
                  | abi.SIGN | _USER_WITH_AUTH | _NO_DA)
    return (struct.pack(">HHI", abi.ECC, SHA256, attributes) + sized(b"")
            + struct.pack(">HHHHH", abi.NULL, abi.ECDSA, SHA256, 0x0003, abi.NULL)
            + sized(hashlib.sha256(b"appliance/attestation-key/v1").digest()) + sized(b""))


def create_primary(tpm: Tpm, template: bytes) -> LoadedKey:
    """A key of the endorsement hierarchy from a template (TPMT_PUBLIC). Raises AttestationError."""
    sensitive = sized(sized(b"") + sized(b""))  # TPM2B_SENSITIVE_CREATE: empty password, no data
    answer = tpm.require(client.CREATE_PRIMARY, (client.ENDORSEMENT,),
                         sensitive + sized(template) + sized(b"") + struct.pack(">I", 0))
    return LoadedKey(answer.handles[0], sized(answer.cursor("public area").sized(2, "public area")))


def attestation_key(tpm: Tpm) -> LoadedKey:
    """The key that a cloud provisioned and certified, if it is one that only quotes; else our own.
    """
    for cloud in CLOUDS:
        certificate = read_nv(tpm, cloud.certificate)
        certificate = None if certificate is None else der(certificate)
        key = None if certificate is None else _provisioned(tpm, cloud)
        if key is not None and certificate is not None:
            if _usable(key, certificate):
                return replace(key, certificate=certificate)
            if cloud.handle is None:
                tpm.flush(key.handle)
    return create_primary(tpm, own_template())


def _usable(key: LoadedKey, certificate: bytes) -> bool:
    """Whether a key signs nothing but what its TPM made, and the certificate is for it."""
    try:
        area = abi.parse_public(key.public)
        return area.attests and walks.load(certificate, "AK")[0].public_key() == area.key
    except AttestationError:
        return False


def _provisioned(tpm: Tpm, cloud: CloudKey) -> LoadedKey | None:
    if cloud.handle is not None:
        answer = tpm.execute(client.READ_PUBLIC, (cloud.handle,))
        if answer.code != client.SUCCESS:
            return None
        return LoadedKey(cloud.handle, sized(answer.cursor("public area").sized(2, "public area")))
    template = None if cloud.template is None else read_nv(tpm, cloud.template)
    return None if template is None else create_primary(tpm, template)


def selection(pcrs: Sequence[int], bank: int = SHA256) -> bytes:
    """TPML_PCR_SELECTION of one bank (Part 2, section 10.9.7)."""
    bits = sum(1 << number for number in pcrs)
    return struct.pack(">IHB", 1, bank, 3) + bits.to_bytes(3, "little")


def _selected(cursor: Cursor) -> list[int]:
    """The PCRs in a TPML_PCR_SELECTION of one bank."""
    count = cursor.number(4, "number of PCR banks")
    found: list[int] = []
    for _ in range(min(count, abi.MAX_BANKS)):
        cursor.take(2, "PCR bank")
        bits = int.from_bytes(cursor.sized(1, "PCR selection"), "little")
        found += [number for number in ALL_PCRS if bits >> number & 1]
    return found


def read_pcrs(tpm: Tpm, pcrs: Sequence[int] = ALL_PCRS, bank: int = SHA256) -> dict[int, bytes]:
    """Values of a bank, by its algorithm. Raises AttestationError if the TPM does not have it."""
    values: dict[int, bytes] = {}
    wanted = sorted(set(pcrs))
    while wanted:
        answer = tpm.require(client.PCR_READ, parameters=selection(wanted[:_READ_AT_ONCE], bank))
        cursor = answer.cursor("PCR values")
        cursor.take(4, "update counter")
        given = _selected(cursor)
        digests = [cursor.sized(2, "digest") for _ in range(min(cursor.number(4, "number of digests"), len(given)))]
        if not given or len(digests) != len(given) or not set(given) <= set(wanted):
            name = next(name for name, each in BANKS.items() if each == bank).replace("sha", "SHA-")
            raise AttestationError(f"TPM: PCR {wanted[0]} of {name} is not there", code="tpm-bank",
                                   hint=f"allocate the {name} bank in the firmware's set-up")
        values |= zip(given, digests, strict=True)
        wanted = [number for number in wanted if number not in values]
    return dict(sorted(values.items()))


def quote(tpm: Tpm, key: LoadedKey, data: bytes, pcrs: Sequence[int] = ALL_PCRS) -> tuple[bytes, bytes]:
    """TPMS_ATTEST and TPMT_SIGNATURE over PCRs of the SHA-256 bank; `data` becomes extraData (at
    most 32 bytes)."""
    parameters = sized(data) + struct.pack(">H", abi.NULL) + selection(pcrs)  # the key's own scheme
    cursor = tpm.require(client.QUOTE, (key.handle,), parameters).cursor("quote")
    message = cursor.sized(2, "quote")
    return message, cursor.take(cursor.left, "signature")


def read_nv(tpm: Tpm, index: int) -> bytes | None:
    """Read an NV index; None if it is not defined, not written, or not to be read. Raises
    AttestationError."""
    answer = tpm.execute(client.NV_READ_PUBLIC, (index,))
    if answer.code != client.SUCCESS:
        return None
    area = Cursor(answer.cursor("NV index").sized(2, "NV area"), "TPM, NV area", "big")  # TPMS_NV_PUBLIC, 13.6
    area.take(6, "index and name algorithm")
    attributes = area.number(4, "attributes")
    area.sized(2, "policy")
    size = area.number(2, "size")
    reader = index if attributes & _AUTH_READ else client.OWNER
    if not attributes & _WRITTEN or not attributes & (_AUTH_READ | _OWNER_READ) or size > MAX_NV_BYTES:
        return None
    data = b""
    while len(data) < size:
        part = tpm.execute(client.NV_READ, (reader, index),
                           struct.pack(">HH", min(_NV_CHUNK, size - len(data)), len(data)))
        if part.code != client.SUCCESS:
            return None
        chunk = part.cursor("NV data").sized(2, "NV data")
        if not chunk:
            raise AttestationError(f"TPM: NV index {index:#010x} ends early", code="tpm-answer")
        data += chunk
    return data[:size]


class EkCertificate(NamedTuple):
    """An endorsement key's certificate in DER, and the NV index that tells which template the key
    is of."""

    nv: int
    certificate: bytes


def der(data: bytes) -> bytes | None:
    """A DER certificate without what fills the NV index up behind it; None if it is none."""
    if data[:2] != b"\x30\x82" or len(data) < 4:
        return None
    size = 4 + int.from_bytes(data[2:4], "big")
    return data[:size] if size <= len(data) else None


def ek_certificate(tpm: Tpm) -> EkCertificate | None:
    """The first endorsement key certificate that the TPM's maker left."""
    for index in EK_CERTIFICATES:
        found = read_nv(tpm, index)
        certificate = None if found is None else der(found)
        if certificate is not None:
            return EkCertificate(index, certificate)
    return None


def ek_chain(tpm: Tpm) -> tuple[bytes, ...]:
    """The authorities' certificates that the TPM's maker left beside them, in DER; none if they are
    too long."""
    data = b""
    for index in EK_CHAIN:
        part = read_nv(tpm, index)
        if part is None:
            break
        data += part
    if len(data) > MAX_CHAIN_BYTES:
        return ()
    found: list[bytes] = []
    while (first := der(data)) is not None:
        found.append(first)
        data = data[len(first):]
    return tuple(found)
