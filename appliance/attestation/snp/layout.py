"""The shape of an AMD SEV-SNP attestation report, and the fields that the guest itself reads.

Source: AMD publication 56860, "SEV Secure Nested Paging Firmware ABI Specification", table
ATTESTATION_REPORT; all integers are little endian. `judging/abi` has all other fields.
"""

from __future__ import annotations

from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

VERSIONS = range(2, 6)
REPORT_BYTES = 0x4A0

# offset, size in bytes
VERSION_AT = (0x000, 4)
SIGNATURE_ALGO_AT = (0x034, 4)
REPORT_DATA_AT = (0x050, 64)        # chosen by the guest
MEASUREMENT_AT = (0x090, 48)        # launch digest
HOST_DATA_AT = (0x0C0, 32)          # given by the host at launch
# reserved, must be zero: offset, size, and up to which version
RESERVED = (
    (0x04C, 4, 5), (0x188, 3, 2), (0x18B, 21, 5), (0x1EB, 1, 5), (0x1EF, 1, 5), (0x1F8, 16, 4), (0x208, 152, 5),
    (0x330, 368, 5),
)
ECDSA_P384_SHA384 = 1


def cut(report: bytes, place: tuple[int, int]) -> bytes:
    """Return the bytes of a field, by its offset and size."""
    return report[place[0]:place[0] + place[1]]


def number(report: bytes, place: tuple[int, int]) -> int:
    """Return a field as a number."""
    return int.from_bytes(cut(report, place), "little")


def check_shape(report: bytes) -> int:
    """Check size, version, algorithm and reserved bytes, and return the version. Raises
    MalformedEvidenceError, UnsupportedEvidenceError."""
    if len(report) != REPORT_BYTES:
        raise MalformedEvidenceError(f"SEV-SNP report: {len(report)} bytes, expected {REPORT_BYTES}")
    version = number(report, VERSION_AT)
    if version not in VERSIONS:
        raise UnsupportedEvidenceError(
            f"SEV-SNP report: version {version} is not known, expected {VERSIONS[0]} to {VERSIONS[-1]}",
            code="snp-version")
    algorithm = number(report, SIGNATURE_ALGO_AT)
    if algorithm != ECDSA_P384_SHA384:
        raise UnsupportedEvidenceError(
            f"SEV-SNP report: signature algorithm {algorithm} is not known, expected {ECDSA_P384_SHA384} "
            "(ECDSA P-384 with SHA-384)", code="snp-algorithm")
    for offset, size, last in RESERVED:
        if version <= last and any(report[offset:offset + size]):
            raise MalformedEvidenceError(
                f"SEV-SNP report: bytes {offset:#05x} to {offset + size - 1:#05x} are not zero, but reserved in "
                f"version {version}")
    return version
