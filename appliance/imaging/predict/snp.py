"""The SEV-SNP launch digest of QEMU with `kernel-hashes=on`, computed from files only.

Sources: AMD 56860 (SEV-SNP ABI), section 8.17.2 (SNP_LAUNCH_UPDATE, PAGE_INFO) for the digest. AMD
APM volume 2, table B-4, has the save area; QEMU `target/i386/sev.c` has the order of pages and the
table of hashes. sev-snp-measure is the independent judge in the tests. The digest grows page by
page: SHA-384 over the digest so far and a record of the page.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterable

from appliance.errors import ImageError
from appliance.imaging.predict.firmware import (
    FOUR_GIB,
    PAGE,
    SNP_CPUID,
    SNP_KERNEL_HASHES,
    SNP_SEC_MEM,
    SNP_SECRETS,
    SNP_SVSM_CAA,
    Firmware,
)

NORMAL, VMSA, ZERO, SECRETS, CPUID = 1, 2, 3, 5, 6  # PAGE_TYPE
PAGE_INFO_BYTES = 0x70
VMSA_GPA = 0xFFFFFFFFF000        # no address: all ones, cut to the width of a page number
BOOT_EIP = 0xFFFFFFF0            # x86 reset vector
MAX_VCPUS = 512
ZERO_DIGEST = bytes(48)

HASHES_TABLE = uuid.UUID("9438d606-4f22-4cc9-b479-a793d411fd21")
HASH_OF_KERNEL = uuid.UUID("4de79437-abd2-427f-b835-d5b172d2045b")
HASH_OF_INITRD = uuid.UUID("44baf731-3a2f-4bd7-9af1-41e29169781d")
HASH_OF_CMDLINE = uuid.UUID("97d02dd8-bd20-4c94-aa78-e7714d36ab2a")

# QEMU's CPU models by name: (family, model, stepping), which is what EDX holds at reset.
_MODELS: dict[str, tuple[int, int, int]] = {
    "EPYC": (23, 1, 2), "EPYC-v1": (23, 1, 2), "EPYC-v2": (23, 1, 2), "EPYC-v3": (23, 1, 2), "EPYC-v4": (23, 1, 2),
    "EPYC-IBPB": (23, 1, 2), "EPYC-Rome": (23, 49, 0), "EPYC-Rome-v1": (23, 49, 0), "EPYC-Rome-v2": (23, 49, 0),
    "EPYC-Rome-v3": (23, 49, 0), "EPYC-Milan": (25, 1, 1), "EPYC-Milan-v1": (25, 1, 1), "EPYC-Milan-v2": (25, 1, 1),
    "EPYC-Genoa": (25, 17, 0), "EPYC-Genoa-v1": (25, 17, 0), "EPYC-Turin": (26, 0, 0),
}
# Save area: (offset, format, value) of what is not zero; a segment is selector, attributes, limit,
# base.
_SEGMENT = "<HHIQ"
_FIXED: tuple[tuple[int, str, tuple[int, ...]], ...] = (
    (0x00, _SEGMENT, (0, 0x93, 0xFFFF, 0)), (0x20, _SEGMENT, (0, 0x93, 0xFFFF, 0)),  # ES, SS
    (0x30, _SEGMENT, (0, 0x93, 0xFFFF, 0)), (0x40, _SEGMENT, (0, 0x93, 0xFFFF, 0)),  # DS, FS
    (0x50, _SEGMENT, (0, 0x93, 0xFFFF, 0)), (0x60, _SEGMENT, (0, 0, 0xFFFF, 0)),     # GS, GDTR
    (0x70, _SEGMENT, (0, 0x82, 0xFFFF, 0)), (0x80, _SEGMENT, (0, 0, 0xFFFF, 0)),     # LDTR, IDTR
    (0x90, _SEGMENT, (0, 0x8B, 0xFFFF, 0)),                                          # TR
    (0xD0, "<Q", (0x1000,)),                                                         # EFER: SVME, which KVM sets
    (0x148, "<Q", (0x40,)), (0x158, "<Q", (0x10,)),                                  # CR4: MCE, which KVM sets; CR0
    (0x160, "<Q", (0x400,)), (0x168, "<Q", (0xFFFF0FF0,)), (0x170, "<Q", (0x2,)),    # DR7, DR6, RFLAGS
    (0x268, "<Q", (0x0007040600070406,)),                                            # PAT
    (0x3E8, "<Q", (1,)), (0x408, "<I", (0x1F80,)), (0x410, "<H", (0x37F,)),          # XCR0, MXCSR, x87 FCW
)
_CS, _RIP, _RDX, _SEV_FEATURES = 0x10, 0x178, 0x310, 0x3B0


def cpu_models() -> tuple[str, ...]:
    """Return the CPU models whose signature is known, by QEMU's names."""
    return tuple(_MODELS)


def signature(cpu_model: str) -> int:
    """CPUID Fn0000_0001_EAX of a model (AMD 25481: family above 15 goes into the extended field).
    """
    if cpu_model not in _MODELS:
        raise ImageError(f"CPU model {cpu_model!r} is not known", hint=f"known: {', '.join(_MODELS)}")
    family, model, stepping = _MODELS[cpu_model]
    return (family - 15) << 20 | (model >> 4) << 16 | 15 << 8 | (model & 15) << 4 | stepping


def save_area(eip: int, cpu_signature: int, guest_features: int) -> bytes:
    """Return the page with a virtual CPU's first state, as QEMU and KVM fill it in."""
    page = bytearray(PAGE)
    for at, layout, values in _FIXED:
        struct.pack_into(layout, page, at, *values)
    struct.pack_into(_SEGMENT, page, _CS, 0xF000, 0x9B, 0xFFFF, eip & 0xFFFF0000)
    struct.pack_into("<Q", page, _RIP, eip & 0xFFFF)
    struct.pack_into("<Q", page, _RDX, cpu_signature)
    struct.pack_into("<Q", page, _SEV_FEATURES, guest_features)
    return bytes(page)


def hashes_table(kernel: bytes, initrd: bytes, cmdline: bytes) -> bytes:
    """QEMU's table of SHA-256 digests, padded to 16 bytes; `cmdline` without its zero byte."""
    entries = b"".join(
        guid.bytes_le + struct.pack("<H", 50) + hashlib.sha256(content).digest()
        for guid, content in ((HASH_OF_CMDLINE, cmdline + b"\x00"), (HASH_OF_INITRD, initrd), (HASH_OF_KERNEL, kernel)))
    table = HASHES_TABLE.bytes_le + struct.pack("<H", 18 + len(entries)) + entries
    return table + bytes(-len(table) % 16)


class LaunchDigest:
    """The digest in the making; it starts at zero."""

    def __init__(self) -> None:
        self.value = ZERO_DIGEST

    def page(self, kind: int, gpa: int, contents: bytes = ZERO_DIGEST) -> None:
        """Take in one page; `contents` is the SHA-384 of its bytes where the kind is measured by
        content."""
        record = self.value + contents + struct.pack("<HBBBBBBQ", PAGE_INFO_BYTES, kind, 0, 0, 0, 0, 0, gpa)
        self.value = hashlib.sha384(record).digest()

    def content(self, gpa: int, data: bytes) -> None:
        """Take in whole pages by content."""
        for at in range(0, len(data), PAGE):
            self.page(NORMAL, gpa + at, hashlib.sha384(data[at:at + PAGE]).digest())


def check(firmware: Firmware) -> int:
    """Return the address of the hash table in firmware that measures what it starts. Raises
    ImageError for any other."""
    table = firmware.hashes_gpa
    if not firmware.snp:
        raise ImageError(f"{firmware.what}: has no SEV-SNP metadata, so no SEV-SNP guest starts from it",
                         code="image-firmware", hint="use OVMF.amdsev.fd, from Debian's package ovmf-amdsev")
    pages = [each for each in firmware.snp if each.kind == SNP_KERNEL_HASHES]
    if table is None or len(pages) != 1 or pages[0].size != PAGE or table // PAGE != pages[0].gpa // PAGE:
        raise ImageError(
            f"{firmware.what}: has no page for kernel hashes: its launch digest would say nothing of what boots",
            code="image-kernel-hashes", hint="use OVMF.amdsev.fd, from Debian's package ovmf-amdsev")
    if firmware.reset_eip is None:
        raise ImageError(f"{firmware.what}: does not say where further virtual CPUs begin", code="image-firmware")
    return table


def launch_digests(firmware: Firmware, kernel: bytes, *, vcpus: Iterable[int], cpu_models: Iterable[str],
                   initrd: bytes = b"", cmdline: bytes = b"",
                   guest_features: int = 1) -> dict[tuple[int, str], bytes]:
    """Return the digest (48 bytes) of each number of virtual CPUs with each CPU model.

    Raises ImageError unless the firmware measures `kernel`, `initrd` and `cmdline` through its page
    of kernel hashes.
    """
    table, common = check(firmware), LaunchDigest()
    common.content(FOUR_GIB - len(firmware.data), firmware.data)
    page = bytes(table % PAGE) + hashes_table(kernel, initrd, cmdline)
    if len(page) > PAGE:
        raise ImageError(f"{firmware.what}: the table of kernel hashes does not fit into its page")
    _prepared(common, firmware, page.ljust(PAGE, b"\x00"))
    wanted = sorted(set(vcpus))
    if not wanted or not 1 <= wanted[0] <= wanted[-1] <= MAX_VCPUS:
        raise ImageError(f"number of virtual CPUs: 1 to {MAX_VCPUS}")
    found = {}
    for model in cpu_models:
        digest = LaunchDigest()
        digest.value = common.value
        first, further = (hashlib.sha384(save_area(eip, signature(model), guest_features)).digest()
                          for eip in (BOOT_EIP, firmware.reset_eip or 0))
        for number in range(1, wanted[-1] + 1):
            digest.page(VMSA, VMSA_GPA, first if number == 1 else further)
            if number in wanted:
                found[number, model] = digest.value
    return found


def _prepared(digest: LaunchDigest, firmware: Firmware, hashes: bytes) -> None:
    """The pages that the firmware's metadata ask for, in their order."""
    for each in firmware.snp:
        if each.kind == SNP_KERNEL_HASHES:
            digest.content(each.gpa, hashes)
        elif each.kind in (SNP_SEC_MEM, SNP_SVSM_CAA):
            for at in range(0, each.size, PAGE):
                digest.page(ZERO, each.gpa + at)
        elif each.kind in (SNP_SECRETS, SNP_CPUID):
            digest.page(SECRETS if each.kind == SNP_SECRETS else CPUID, each.gpa)
        else:
            raise ImageError(f"{firmware.what}: SEV-SNP section of unknown kind {each.kind:#x}")
