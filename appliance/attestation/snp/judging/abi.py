"""The bytes of an AMD SEV-SNP attestation report, versions 2 to 5.

Source: AMD publication 56860, "SEV Secure Nested Paging Firmware ABI Specification", table
ATTESTATION_REPORT; all integers are little endian; `layout` has what the guest reads, too. This
module reads bytes; it checks no signature and judges no claim. The meaning of a security version
number (TCB_VERSION) depends on the product line, so `SnpTcb.decode` is called once that is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.attestation.snp.layout import HOST_DATA_AT, MEASUREMENT_AT, REPORT_DATA_AT, check_shape, cut, number
from appliance.errors import MalformedEvidenceError

SIGNED_BYTES = 0x2A0  # the signature covers everything before it

# offset, size in bytes
GUEST_SVN_AT = (0x004, 4)
POLICY_AT = (0x008, 8)              # guest policy, see GuestPolicy
FAMILY_ID_AT = (0x010, 16)          # from the ID block
IMAGE_ID_AT = (0x020, 16)           # from the ID block
VMPL_AT = (0x030, 4)                # who asked: 0 to 3, or all ones for the host
CURRENT_TCB_AT = (0x038, 8)
PLATFORM_INFO_AT = (0x040, 8)       # see PlatformInfo
KEY_INFO_AT = (0x048, 4)            # see KeyInfo
ID_KEY_DIGEST_AT = (0x0E0, 48)
AUTHOR_KEY_DIGEST_AT = (0x110, 48)
REPORT_ID_AT = (0x140, 32)
REPORT_ID_MA_AT = (0x160, 32)       # of the migration agent; all ones without one
REPORTED_TCB_AT = (0x180, 8)        # the TCB that the signing key was derived for
CPUID_FAMILY_AT = (0x188, 1)        # combined family; version 3 and later
CPUID_MODEL_AT = (0x189, 1)         # combined model; version 3 and later
CPUID_STEPPING_AT = (0x18A, 1)      # version 3 and later
CHIP_ID_AT = (0x1A0, 64)            # zero if the host masks it; 8 bytes and zeros on Turin
COMMITTED_TCB_AT = (0x1E0, 8)
CURRENT_VERSION_AT = (0x1E8, 3)     # build, minor, major of the firmware
COMMITTED_VERSION_AT = (0x1EC, 3)   # build, minor, major
LAUNCH_TCB_AT = (0x1F0, 8)
LAUNCH_MIT_VECTOR_AT = (0x1F8, 8)   # version 5
CURRENT_MIT_VECTOR_AT = (0x200, 8)  # version 5
SIGNATURE_R_AT = (0x2A0, 72)        # little endian
SIGNATURE_S_AT = (0x2E8, 72)        # little endian
HOST_VMPL = 0xFFFF_FFFF
VCEK, VLEK, UNSIGNED = 0, 1, 7      # KEY_INFO.SIGNING_KEY


@dataclass(frozen=True)
class SnpTcb:
    """The security version of each firmware component; None where a product line has it not. `fmc`
    exists from Turin on; Venice has neither boot loader nor microcode. `reserved` is zero so far.
    """

    bootloader: int | None
    tee: int
    snp: int
    microcode: int | None
    fmc: int | None = None
    reserved: bytes = b""

    @classmethod
    def decode(cls, raw: bytes, product: str) -> SnpTcb:
        """TCB_VERSION (8 bytes) in the layout of a product line: Turin and Venice moved every
        component (Venice's by virtee/sev, pull request 396, checked there against 56860, 2.3)."""
        if product == "Turin":
            return cls(fmc=raw[0], bootloader=raw[1], tee=raw[2], snp=raw[3], reserved=raw[4:7], microcode=raw[7])
        if product == "Venice":
            return cls(fmc=raw[0], tee=raw[1], snp=raw[2], reserved=raw[3:], bootloader=None, microcode=None)
        return cls(bootloader=raw[0], tee=raw[1], reserved=raw[2:6], snp=raw[6], microcode=raw[7])

    def encode(self) -> bytes:
        """TCB_VERSION as a report spells it."""
        front: tuple[int | None, ...] = (self.fmc, self.bootloader, self.tee, self.snp)
        back: tuple[int | None, ...] = (self.microcode,)
        if self.fmc is None:
            front, back = (self.bootloader, self.tee), (self.snp, self.microcode)
        first, last = (bytes(each for each in part if each is not None) for part in (front, back))
        return first + self.reserved + last

    def components(self) -> dict[str, int]:
        """Name to security version, in the order of the chain of trust."""
        found = {"fmc": self.fmc, "bootloader": self.bootloader, "tee": self.tee, "snp": self.snp,
                 "microcode": self.microcode}
        return {name: version for name, version in found.items() if version is not None}


@dataclass(frozen=True)
class GuestPolicy:
    """The host's permissions, fixed by the guest's owner at launch."""

    raw: int
    abi: tuple[int, int]            # bits 15:8, 7:0: lowest firmware ABI, major and minor
    smt: bool                       # bit 16: may run where SMT is on
    migration_agent: bool           # bit 18: may be bound to a migration agent
    debug: bool                     # bit 19: the host may decrypt the guest
    single_socket: bool             # bit 20: only on one socket
    cxl: bool                       # bit 21: CXL devices may hold its memory
    aes256_xts: bool                # bit 22: needs AES-256-XTS
    rapl_disabled: bool             # bit 23: needs the power meter off
    ciphertext_hiding: bool         # bit 24: needs ciphertext hiding for DRAM
    page_swap_disabled: bool        # bit 25: the host may not move or swap its pages
    unknown: int                    # bits 63:26, and bit 17 if it is 0 although it must be 1

    @classmethod
    def decode(cls, raw: int) -> GuestPolicy:
        """The policy out of its 64 bits."""
        def bit(number: int) -> bool:
            return bool(raw >> number & 1)

        return cls(raw, ((raw >> 8) & 0xFF, raw & 0xFF), bit(16), bit(18), bit(19), bit(20), bit(21), bit(22),
                   bit(23), bit(24), bit(25), (raw >> 26 << 26) | (~raw & 1 << 17))


@dataclass(frozen=True)
class PlatformInfo:
    """How the machine is set up: PLATFORM_INFO of AMD publication 56860, ATTESTATION_REPORT; bit 6
    since its revision 1.58."""

    raw: int
    smt: bool                       # bit 0
    tsme: bool                      # bit 1: transparent memory encryption
    ecc: bool                       # bit 2
    rapl_disabled: bool             # bit 3
    ciphertext_hiding: bool         # bit 4
    alias_check_complete: bool      # bit 5: no aliased memory (BadRAM) since the last reset
    iommu_write_safe: bool          # bit 6
    tio: bool                       # bit 7: SEV-TIO
    unknown: int                    # every other bit

    @classmethod
    def decode(cls, raw: int) -> PlatformInfo:
        """The set-up out of its 64 bits."""
        def bit(number: int) -> bool:
            return bool(raw >> number & 1)

        return cls(raw, bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7), raw & ~0xFF)


@dataclass(frozen=True)
class KeyInfo:
    """How the report was signed."""

    author_key: bool                # bit 0: AUTHOR_KEY_EN, the author key's digest is present
    mask_chip_key: bool             # bit 1: the host forbids the VCEK
    signing_key: int                # bits 4:2: VCEK, VLEK or UNSIGNED


@dataclass(frozen=True)
class SnpReport:
    """A parsed report. TCBs are the raw 8 bytes; `cpuid` is family, model, stepping from version 3
    on."""

    version: int
    guest_svn: int
    policy: GuestPolicy
    family_id: bytes                # 16 bytes
    image_id: bytes                 # 16 bytes
    vmpl: int
    current_tcb: bytes
    platform_info: PlatformInfo
    key_info: KeyInfo
    report_data: bytes              # 64 bytes
    measurement: bytes              # 48 bytes
    host_data: bytes                # 32 bytes
    id_key_digest: bytes            # 48 bytes
    author_key_digest: bytes        # 48 bytes
    report_id: bytes                # 32 bytes
    report_id_ma: bytes             # 32 bytes
    reported_tcb: bytes
    cpuid: tuple[int, int, int] | None
    chip_id: bytes                  # 64 bytes
    committed_tcb: bytes
    current_version: tuple[int, int, int]    # major, minor, build
    committed_version: tuple[int, int, int]  # major, minor, build
    launch_tcb: bytes
    launch_mit_vector: int | None
    current_mit_vector: int | None
    signature: tuple[int, int]      # r, s
    signed: bytes                   # the bytes that the signature covers


def _firmware(report: bytes, place: tuple[int, int]) -> tuple[int, int, int]:
    build, minor, major = cut(report, place)
    return major, minor, build


def _key_info(raw: int) -> KeyInfo:
    signing_key = raw >> 2 & 7
    if raw >> 5 or signing_key not in (VCEK, VLEK, UNSIGNED):
        raise MalformedEvidenceError(f"SEV-SNP report: key information {raw:#010x} has reserved bits or values")
    return KeyInfo(bool(raw & 1), bool(raw & 2), signing_key)


def parse(report: bytes) -> SnpReport:
    """Read a report.

    Raises MalformedEvidenceError on another size or on reserved bytes or values,
    UnsupportedEvidenceError on a version or a signature algorithm that is not known.
    """
    version = check_shape(report)
    vmpl = number(report, VMPL_AT)
    if vmpl > 3 and vmpl != HOST_VMPL:
        raise MalformedEvidenceError(f"SEV-SNP report: VMPL {vmpl} is no level")
    cpuid = (report[CPUID_FAMILY_AT[0]], report[CPUID_MODEL_AT[0]], report[CPUID_STEPPING_AT[0]])
    return SnpReport(
        version=version, guest_svn=number(report, GUEST_SVN_AT),
        policy=GuestPolicy.decode(number(report, POLICY_AT)), vmpl=vmpl,
        family_id=cut(report, FAMILY_ID_AT), image_id=cut(report, IMAGE_ID_AT),
        platform_info=PlatformInfo.decode(number(report, PLATFORM_INFO_AT)),
        key_info=_key_info(number(report, KEY_INFO_AT)),
        report_data=cut(report, REPORT_DATA_AT), measurement=cut(report, MEASUREMENT_AT),
        host_data=cut(report, HOST_DATA_AT), id_key_digest=cut(report, ID_KEY_DIGEST_AT),
        author_key_digest=cut(report, AUTHOR_KEY_DIGEST_AT), report_id=cut(report, REPORT_ID_AT),
        report_id_ma=cut(report, REPORT_ID_MA_AT), cpuid=cpuid if version >= 3 else None,
        chip_id=cut(report, CHIP_ID_AT),
        current_tcb=cut(report, CURRENT_TCB_AT), reported_tcb=cut(report, REPORTED_TCB_AT),
        committed_tcb=cut(report, COMMITTED_TCB_AT), launch_tcb=cut(report, LAUNCH_TCB_AT),
        current_version=_firmware(report, CURRENT_VERSION_AT),
        committed_version=_firmware(report, COMMITTED_VERSION_AT),
        launch_mit_vector=number(report, LAUNCH_MIT_VECTOR_AT) if version >= 5 else None,
        current_mit_vector=number(report, CURRENT_MIT_VECTOR_AT) if version >= 5 else None,
        signature=(number(report, SIGNATURE_R_AT), number(report, SIGNATURE_S_AT)),
        signed=report[:SIGNED_BYTES])
