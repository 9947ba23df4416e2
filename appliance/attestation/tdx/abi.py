"""The bytes of Intel TDX quotes, versions 4 and 5.

Source: Intel, "Intel TDX DCAP: Quote Generation Library and Quote Verification Library", appendix A
(quote formats), and "Intel TDX Module Base Architecture Specification" (TDREPORT, TD attributes).
Integers are little endian. This module reads bytes; it checks no signature and judges no claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

TDX, ECDSA_P256 = 0x81, 2           # TEE type, attestation key type
HEADER_BYTES = 48
TD10, TD15 = 2, 3                   # body types of version 5; version 4 has TD10 without saying so
BODY_BYTES = {TD10: 584, TD15: 648}
QE_REPORT, PCK_CHAIN = 6, 5         # certification data types
QE_REPORT_BYTES = 384
MAX_QUOTE_BYTES = 1 << 16
# TD attributes
DEBUG_GROUP = 0xFF                  # bits 7:0, TUD: any of them and the TD is not to be trusted; bit 0 is DEBUG
SEPT_VE_DISABLE, MIGRATABLE, PKS, KEY_LOCKER, PERFMON = 1 << 28, 1 << 29, 1 << 30, 1 << 31, 1 << 63


@dataclass(frozen=True)
class TdReport:
    """The TDX module's report of the TD. Registers have 48 bytes, `report_data` 64."""

    kind: int                       # TD10 or TD15
    tee_tcb_svn: bytes              # 16 bytes
    mr_seam: bytes
    mr_signer_seam: bytes
    seam_attributes: int
    td_attributes: int
    xfam: int
    mr_td: bytes
    mr_config_id: bytes
    mr_owner: bytes
    mr_owner_config: bytes
    rtmr: tuple[bytes, bytes, bytes, bytes]
    report_data: bytes
    tee_tcb_svn2: bytes | None      # TD15: 16 bytes
    mr_service_td: bytes | None     # TD15


@dataclass(frozen=True)
class QeReport:
    """The quoting enclave's SGX report, and the PCK's signature over it."""

    raw: bytes                      # 384 bytes, signed by the PCK
    mr_enclave: bytes
    mr_signer: bytes
    isv_prod_id: int
    isv_svn: int
    report_data: bytes              # SHA-256 of attestation key and authentication data, then zeros
    signature: bytes                # ECDSA P-256, r and s of 32 bytes, big endian
    authentication_data: bytes


@dataclass(frozen=True)
class TdxQuote:
    """A parsed quote. `signed` is what the attestation key signed; `chain` the PCK's certificates
    in PEM."""

    version: int
    qe_vendor_id: bytes
    user_data: bytes                # 20 bytes
    body: TdReport
    signed: bytes
    signature: bytes                # ECDSA P-256, r and s of 32 bytes, big endian
    attestation_key: bytes          # x and y of 32 bytes, big endian
    qe: QeReport
    chain: bytes


def _body(raw: bytes, kind: int) -> TdReport:
    cursor = Cursor(raw, "TDX report", "little")
    svn = cursor.take(16, "TEE_TCB_SVN")
    seam, signer = cursor.take(48, "MRSEAM"), cursor.take(48, "MRSIGNERSEAM")
    seam_attributes, attributes = cursor.number(8, "SEAMATTRIBUTES"), cursor.number(8, "TDATTRIBUTES")
    xfam = cursor.number(8, "XFAM")
    registers = [cursor.take(48, name) for name in (
        "MRTD", "MRCONFIGID", "MROWNER", "MROWNERCONFIG", "RTMR0", "RTMR1", "RTMR2", "RTMR3")]
    data = cursor.take(64, "REPORTDATA")
    svn2 = cursor.take(16, "TEE_TCB_SVN2") if kind == TD15 else None
    service = cursor.take(48, "MRSERVICETD") if kind == TD15 else None
    cursor.end()
    mr_td, config_id, owner, owner_config, *rtmr = registers
    return TdReport(kind, svn, seam, signer, seam_attributes, attributes, xfam, mr_td, config_id, owner, owner_config,
                (rtmr[0], rtmr[1], rtmr[2], rtmr[3]), data, svn2, service)


def _qe(cursor: Cursor) -> QeReport:
    """SGX REPORT body, 384 bytes: MRENCLAVE at 64, MRSIGNER at 128, ISVPRODID at 256, ISVSVN at
    258, data at 320."""
    raw = cursor.take(QE_REPORT_BYTES, "QE report")
    return QeReport(
        raw=raw, mr_enclave=raw[64:96], mr_signer=raw[128:160], isv_prod_id=int.from_bytes(raw[256:258], "little"),
        isv_svn=int.from_bytes(raw[258:260], "little"), report_data=raw[320:384],
        signature=cursor.take(64, "QE report signature"),
        authentication_data=cursor.sized(2, "QE authentication data"))


def _certification(cursor: Cursor, wanted: int) -> Cursor:
    kind, data = cursor.number(2, "certification data type"), cursor.sized(4, "certification data")
    cursor.end()
    if kind != wanted:
        raise UnsupportedEvidenceError(
            f"TDX quote: certification data of type {kind} where {wanted} was expected", code="tdx-certification")
    return Cursor(data, "TDX quote, certification data", "little")


def _describe_body(cursor: Cursor, version: int) -> tuple[int, int]:
    """Body type and size: fixed in version 4, told in version 5."""
    if version == 4:
        return TD10, BODY_BYTES[TD10]
    kind, size = cursor.number(2, "body type"), cursor.number(4, "body size")
    if kind not in BODY_BYTES:
        raise UnsupportedEvidenceError(f"TDX quote: body type {kind} is not known", code="tdx-body")
    if size != BODY_BYTES[kind]:
        raise MalformedEvidenceError(f"TDX quote: a body of {size} bytes, type {kind} has {BODY_BYTES[kind]}")
    return kind, size


def split(data: bytes) -> tuple[bytes, bytes]:
    """The quote at the front of `data`, and what follows it, which nothing signs; zeros count as
    padding of the quote.

    Only the lengths are read. Raises MalformedEvidenceError where the quote is cut.
    """
    cursor = Cursor(data, "TDX quote", "little")
    version = cursor.number(2, "version")
    cursor.take(HEADER_BYTES - 2, "header")
    cursor.take(_describe_body(cursor, version)[1], "body")
    cursor.sized(4, "signature data")
    tail = data[cursor.at:]
    return (data[:cursor.at], tail) if any(tail) else (data, b"")


def parse(quote: bytes) -> TdxQuote:
    """Read a quote; zeros may follow it.

    Raises MalformedEvidenceError, or UnsupportedEvidenceError naming a version, TEE, key type, body
    type or certification data type that is not known.
    """
    if len(quote) > MAX_QUOTE_BYTES:
        raise MalformedEvidenceError(f"TDX quote: {len(quote)} bytes, at most {MAX_QUOTE_BYTES}")
    cursor = Cursor(quote, "TDX quote", "little")
    version, key_type, tee = cursor.number(2, "version"), cursor.number(2, "key type"), cursor.number(4, "TEE type")
    for name, found, known in (("version", version, (4, 5)), ("key type", key_type, (ECDSA_P256,)),
                               ("TEE type", tee, (TDX,))):
        if found not in known:
            raise UnsupportedEvidenceError(f"TDX quote: {name} {found} is not known", code="tdx-version")
    cursor.take(4, "reserved or security versions")
    vendor, user = cursor.take(16, "QE vendor id"), cursor.take(20, "user data")
    kind, size = _describe_body(cursor, version)
    body = _body(cursor.take(size, "body"), kind)
    signed = quote[:cursor.at]
    data = Cursor(cursor.sized(4, "signature data"), "TDX quote, signature data", "little")
    if any(cursor.take(cursor.left, "padding")):
        raise MalformedEvidenceError("TDX quote: something other than zeros follows it")
    signature, key = data.take(64, "signature"), data.take(64, "attestation key")
    inner = _certification(data, QE_REPORT)
    qe = _qe(inner)
    chain = _certification(inner, PCK_CHAIN)
    return TdxQuote(version, vendor, user, body, signed, signature, key, qe, chain.take(chain.left, "chain"))
