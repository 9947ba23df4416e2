"""SEV-SNP launch digests as Google's and AWS's hypervisors lay out pages and virtual CPUs.

Their firmware has no page for kernel hashes that they fill, so that such a digest covers only
the firmware. Sources: google/gce-tcb-verifier (sev/ld_from_ovmf.go); virtee/sev-snp-measure
(vmsa.py, guest.py), which is the independent judge in the tests.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from appliance.attestation.measured import launch
from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.launch import (
    SNP_CPUID,
    SNP_KERNEL_HASHES,
    SNP_SEC_MEM,
    SNP_SECRETS,
    SNP_SVSM_CAA,
)
from appliance.errors import ImageError
from appliance.imaging.predict.firmware import FOUR_GIB, PAGE, Firmware, SnpSection

Vmm = Literal["gce", "ec2"]
UNMEASURED = 4  # PAGE_TYPE: the address counts, and the content does not
_RDX = 0x600
_CS, _SS, _TR, _PAT, _MXCSR, _FCW = 0x12, 0x22, 0x92, 0x268, 0x408, 0x410


@dataclass(frozen=True)
class Layout:
    """The differences from QEMU: attributes of segments, the page attribute table, the kind of a
    section's pages, and whether the page for CPUID comes last."""

    first_cs: int
    ss: int
    tr: int
    pat: int
    working: int
    cpuid_last: bool


LAYOUTS: dict[Vmm, Layout] = {
    "gce": Layout(0x9B, 0x93, 0x8B, 0x00070106, UNMEASURED, cpuid_last=False),
    "ec2": Layout(0x9A, 0x92, 0x83, 0x0007040600070406, launch.ZERO, cpuid_last=True),
}


def save_area(eip: int, layout: Layout, guest_features: int) -> bytes:
    """Return the page with a virtual CPU's first state."""
    page = bytearray(launch.save_area(eip, _RDX, guest_features))
    struct.pack_into("<H", page, _CS, layout.first_cs if eip == launch.BOOT_EIP else 0x9B)
    struct.pack_into("<H", page, _SS, layout.ss)
    struct.pack_into("<H", page, _TR, layout.tr)
    struct.pack_into("<Q", page, _PAT, layout.pat)
    struct.pack_into("<I", page, _MXCSR, 0)
    struct.pack_into("<H", page, _FCW, 0)
    return bytes(page)


def launch_digests(firmware: Firmware, vmm: Vmm, vcpus: Iterable[int], guest_features: int = 1) -> dict[int, bytes]:
    """Return the digest (48 bytes) for each number of save areas. Raises ImageError for firmware
    that no SEV-SNP guest starts from."""
    if not firmware.snp or firmware.reset_eip is None:
        raise ImageError(f"{firmware.what}: has no SEV-SNP metadata, so no SEV-SNP guest starts from it",
                         code="image-firmware", hint="take the file that the cloud publishes")
    wanted, layout, digest = sorted(set(vcpus)), LAYOUTS[vmm], launch.LaunchDigest()
    if not wanted or not 1 <= wanted[0] <= wanted[-1] <= MAX_VCPUS:
        raise ImageError(f"number of virtual CPUs: 1 to {MAX_VCPUS}")
    digest.content(FOUR_GIB - len(firmware.data), firmware.data)
    late = [each for each in firmware.snp if layout.cpuid_last and each.kind == SNP_CPUID]
    for each in [*(one for one in firmware.snp if one not in late), *late]:
        _section(digest, firmware, each, layout)
    found = {}
    for number in range(1, wanted[-1] + 1):
        eip = launch.BOOT_EIP if number == 1 else firmware.reset_eip
        digest.page(launch.VMSA, launch.VMSA_GPA, hashlib.sha384(save_area(eip, layout, guest_features)).digest())
        if number in wanted:
            found[number] = digest.value
    return found


def _section(digest: launch.LaunchDigest, firmware: Firmware, section: SnpSection, layout: Layout) -> None:
    kinds = {SNP_SEC_MEM: layout.working, SNP_SVSM_CAA: launch.ZERO, SNP_KERNEL_HASHES: launch.ZERO,
             SNP_SECRETS: launch.SECRETS, SNP_CPUID: launch.CPUID}
    if section.kind not in kinds:
        raise ImageError(f"{firmware.what}: SEV-SNP section of unknown kind {section.kind:#x}")
    single = section.kind in (SNP_SECRETS, SNP_CPUID)
    for at in range(0, PAGE if single else section.size, PAGE):
        digest.page(kinds[section.kind], section.gpa + at)
