"""An SEV-SNP launch digest in the making, as QEMU with `kernel-hashes=on` adds pages and virtual
CPUs.

Sources: AMD 56860 (SEV-SNP ABI), section 8.17.2 (SNP_LAUNCH_UPDATE, PAGE_INFO) for the digest. AMD
APM volume 2, table B-4, has the save area; QEMU `target/i386/sev.c` has the order of pages and the
table of hashes. The digest grows page by page: SHA-384 over the digest so far and a record of the
page.
"""

from __future__ import annotations

import hashlib
import struct
import uuid
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from appliance.attestation.binding import Frozen, Hex32, Hex48
from appliance.attestation.measured.fields import MAX_VCPUS, Number

PAGE = 4096
SNP_SEC_MEM, SNP_SECRETS, SNP_CPUID, SNP_SVSM_CAA, SNP_KERNEL_HASHES = 1, 2, 3, 4, 0x10  # kinds of sections, by OVMF
MAX_SECTIONS, MAX_PREPARED = 64, 1 << 26  # bytes in all sections
NORMAL, VMSA, ZERO, SECRETS, CPUID = 1, 2, 3, 5, 6  # PAGE_TYPE
PAGE_INFO_BYTES = 0x70
VMSA_GPA = 0xFFFFFFFFF000        # no address: all ones, cut to the width of a page number
BOOT_EIP = 0xFFFFFFF0            # x86 reset vector
ZERO_DIGEST = bytes(48)

HASHES_TABLE = uuid.UUID("9438d606-4f22-4cc9-b479-a793d411fd21")
HASH_OF_KERNEL = uuid.UUID("4de79437-abd2-427f-b835-d5b172d2045b")
HASH_OF_INITRD = uuid.UUID("44baf731-3a2f-4bd7-9af1-41e29169781d")
HASH_OF_CMDLINE = uuid.UUID("97d02dd8-bd20-4c94-aa78-e7714d36ab2a")

# QEMU's CPU models by name: (family, model, stepping), which is what EDX holds at reset.
MODELS: dict[str, tuple[int, int, int]] = {
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


class PreparedSection(Frozen):
    """Guest memory that the VMM prepares: `size` bytes at `gpa`, whole pages. `kind` by OVMF."""

    gpa: Number
    size: Number
    kind: Number

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.gpa % PAGE or self.size % PAGE:
            raise ValueError("a section is whole pages")
        if self.kind not in (SNP_SEC_MEM, SNP_SECRETS, SNP_CPUID, SNP_SVSM_CAA, SNP_KERNEL_HASHES):
            raise ValueError(f"SEV-SNP section of unknown kind {self.kind:#x}")
        return self


class LaunchFirmware(Frozen):
    """All that a launch takes from a firmware that measures the kernel which it starts.

    `pages_digest` is the digest after the pages of the file. `hashes_gpa` is the address of the
    table of kernel hashes, `reset_eip` the place where virtual CPUs but the first begin.
    """

    sha256: Hex32
    pages_digest: Hex48
    sections: Annotated[tuple[PreparedSection, ...], Field(max_length=MAX_SECTIONS)]
    hashes_gpa: Number
    reset_eip: Number

    @model_validator(mode="after")
    def _measures(self) -> Self:
        pages = [each for each in self.sections if each.kind == SNP_KERNEL_HASHES]
        if len(pages) != 1 or pages[0].size != PAGE or self.hashes_gpa // PAGE != pages[0].gpa // PAGE:
            raise ValueError("a firmware without a page for kernel hashes says nothing of an image")
        if self.hashes_gpa % PAGE + TABLE_BYTES > PAGE:
            raise ValueError("the table of kernel hashes does not fit into its page")
        if not self.reset_eip or sum(each.size for each in self.sections) > MAX_PREPARED:
            raise ValueError("reset_eip is zero, or its sections are too large")
        return self


def signature(cpu_model: str) -> int:
    """CPUID Fn0000_0001_EAX of a known model (AMD 25481: family above 15 goes into the extended
    field)."""
    family, model, stepping = MODELS[cpu_model]
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
    """QEMU's table of SHA-256 digests, padded to 16 bytes; `cmdline` is that of the command line
    with its zero byte."""
    entries = b"".join(guid.bytes_le + struct.pack("<H", 50) + digest for guid, digest in (
        (HASH_OF_CMDLINE, cmdline), (HASH_OF_INITRD, initrd), (HASH_OF_KERNEL, kernel)))
    table = HASHES_TABLE.bytes_le + struct.pack("<H", 18 + len(entries)) + entries
    return table + bytes(-len(table) % 16)


TABLE_BYTES = len(hashes_table(bytes(32), bytes(32), bytes(32)))
NO_INITRD, NO_CMDLINE = hashlib.sha256(b"").digest(), hashlib.sha256(b"\x00").digest()


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

    def prepare(self, firmware: LaunchFirmware, table: bytes) -> None:
        """Take in the pages that the firmware's metadata ask for, in their order, with the table of
        kernel hashes in its page."""
        for each in firmware.sections:
            if each.kind == SNP_KERNEL_HASHES:
                self.content(each.gpa, (bytes(firmware.hashes_gpa % PAGE) + table).ljust(PAGE, b"\x00"))
            elif each.kind in (SNP_SEC_MEM, SNP_SVSM_CAA):
                for at in range(0, each.size, PAGE):
                    self.page(ZERO, each.gpa + at)
            else:
                self.page(SECRETS if each.kind == SNP_SECRETS else CPUID, each.gpa)


def before_cpus(firmware: LaunchFirmware, table: bytes) -> bytes:
    """Return the digest of a launch before its first virtual CPU."""
    digest = LaunchDigest()
    digest.value = bytes.fromhex(firmware.pages_digest)
    digest.prepare(firmware, table)
    return digest.value


def with_cpus(value: bytes, reset_eip: int, cpu_signature: int, guest_features: int) -> Iterator[tuple[int, bytes]]:
    """Yield each number of virtual CPUs with the digest of the launch that has so many."""
    digest = LaunchDigest()
    digest.value = value
    first, further = (hashlib.sha384(save_area(eip, cpu_signature, guest_features)).digest()
                      for eip in (BOOT_EIP, reset_eip))
    for number in range(1, MAX_VCPUS + 1):
        digest.page(VMSA, VMSA_GPA, first if number == 1 else further)
        yield number, digest.value
