"""The extensions of AMD's VCEK and VLEK certificates.

Source: AMD publication 57230, "Versioned Chip Endorsement Key (VCEK) Certificate and KDS Interface
Specification", section 3.1. Below 1.3.6.1.4.1.3704.1: what the certificate says of the chip and of
its firmware. This module reads bytes; it checks no signature.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509

from appliance.attestation.snp.judging.abi import CHIP_ID_AT, SnpTcb
from appliance.errors import MalformedEvidenceError

_AMD = "1.3.6.1.4.1.3704.1."
PRODUCT_NAME = _AMD + "2"    # IA5String: "Milan-B0" in a VCEK, "Milan" in a VLEK
BOOTLOADER = _AMD + "3.1"    # INTEGER, as all security versions
TEE = _AMD + "3.2"
SNP = _AMD + "3.3"
RESERVED = tuple(_AMD + f"3.{number}" for number in (4, 5, 6, 7))  # spl4 to spl7; Turin has no spl4
MICROCODE = _AMD + "3.8"
FMC = _AMD + "3.9"           # Turin and later
HARDWARE_ID = _AMD + "4"     # VCEK: 64 bytes, on Turin 8; not wrapped in an OCTET STRING
CSP_ID = _AMD + "5"          # VLEK: IA5String, the cloud that AMD gave the key to
TURIN_HARDWARE_ID_BYTES = 8  # and Venice's
_INTEGER, _OCTETS, _IA5 = 0x02, 0x04, 0x16


@dataclass(frozen=True)
class Endorsement:
    """The claims of a VCEK or VLEK certificate. A VCEK has a hardware id, a VLEK a CSP id, never
    both."""

    product: str               # "Milan", without the stepping
    tcb: SnpTcb
    hardware_id: bytes | None  # 64 bytes; shorter ones are followed by zeros, as in CHIP_ID
    csp_id: str | None


def _integer(der: bytes) -> int | None:
    """A DER INTEGER from 0 to 255, or None."""
    if len(der) == 3 and der[:2] == bytes((_INTEGER, 1)) and der[2] < 0x80:
        return der[2]
    if len(der) == 4 and der[:3] == bytes((_INTEGER, 2, 0)) and der[3] >= 0x80:
        return der[3]
    return None


def _text(der: bytes) -> str | None:
    """A DER IA5String of printable characters, or None."""
    if len(der) < 3 or der[0] != _IA5 or der[1] >= 0x80 or len(der) != 2 + der[1]:
        return None
    text = der[2:].decode("latin-1")
    return text if text.isascii() and text.isprintable() else None


class _Extensions:
    def __init__(self, certificate: x509.Certificate) -> None:
        self._values = {
            extension.oid.dotted_string: extension.value.value for extension in certificate.extensions
            if isinstance(extension.value, x509.UnrecognizedExtension)}

    def __contains__(self, oid: str) -> bool:
        return oid in self._values

    def octets(self, oid: str) -> bytes:
        if oid not in self._values:
            raise MalformedEvidenceError(f"AMD certificate: extension {oid} is absent")
        return self._values[oid]

    def version(self, oid: str) -> int:
        found = _integer(self.octets(oid))
        if found is None:
            raise MalformedEvidenceError(f"AMD certificate: extension {oid} is no number from 0 to 255")
        return found

    def text(self, oid: str) -> str:
        found = _text(self.octets(oid))
        if found is None:
            raise MalformedEvidenceError(f"AMD certificate: extension {oid} is no IA5String")
        return found


def _hardware_id(raw: bytes) -> bytes:
    size = CHIP_ID_AT[1]
    if len(raw) in (2 + size, 2 + TURIN_HARDWARE_ID_BYTES) and raw[:2] == bytes((_OCTETS, len(raw) - 2)):
        raw = raw[2:]
    if len(raw) not in (size, TURIN_HARDWARE_ID_BYTES):
        raise MalformedEvidenceError(f"AMD certificate: a hardware id of {len(raw)} bytes, expected {size} "
                                     f"or {TURIN_HARDWARE_ID_BYTES}")
    return raw.ljust(size, b"\x00")


def _tcb(values: _Extensions) -> SnpTcb:
    turin = FMC in values
    return SnpTcb(
        bootloader=values.version(BOOTLOADER), tee=values.version(TEE), snp=values.version(SNP),
        microcode=values.version(MICROCODE), fmc=values.version(FMC) if turin else None,
        reserved=bytes(values.version(oid) for oid in (RESERVED[1:] if turin else RESERVED)))


def _venice(values: _Extensions) -> SnpTcb:
    """The TCB of a Venice, whose reserved bytes must be zero. No certificate of one was at hand:
    the extensions are those of the same components on other lines."""
    return SnpTcb(bootloader=None, tee=values.version(TEE), snp=values.version(SNP), microcode=None,
                  fmc=values.version(FMC), reserved=bytes(5))


def parse(certificate: x509.Certificate) -> Endorsement:
    """The endorsement in a certificate. Raises MalformedEvidenceError if an extension is absent or
    not in form."""
    values = _Extensions(certificate)
    if (HARDWARE_ID in values) == (CSP_ID in values):
        raise MalformedEvidenceError("AMD certificate: expected either a hardware id (VCEK) or a CSP id (VLEK)")
    product = values.text(PRODUCT_NAME).partition("-")[0]
    return Endorsement(
        product=product, tcb=_venice(values) if product == "Venice" else _tcb(values),
        hardware_id=_hardware_id(values.octets(HARDWARE_ID)) if HARDWARE_ID in values else None,
        csp_id=values.text(CSP_ID) if CSP_ID in values else None)
