"""The launch of an image as an IGVM file for QEMU: firmware, the pages that its metadata ask for,
the page with the kernel's hash, and the state of each virtual CPU.

The order is that of QEMU's own layout: `snp` in `predict` has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

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
from appliance.imaging.igvm import headers
from appliance.imaging.igvm.headers import PAGE, GuestPolicy, IgvmFile, PageData, Platform, ProcessorState
from appliance.imaging.predict import snp
from appliance.imaging.predict.firmware import FOUR_GIB, Firmware, SnpSection

MASK = 1
_KINDS = {SNP_SEC_MEM: headers.NORMAL, SNP_SVSM_CAA: headers.NORMAL, SNP_SECRETS: headers.SECRETS,
          SNP_CPUID: headers.CPUID}


def make(firmware: Firmware, kernel: bytes, *, vcpus: int, signature: int, policy: int,
         guest_features: int = 1) -> IgvmFile:
    """Return the file for a guest of `vcpus` virtual CPUs of one model. Raises ImageError unless
    the firmware measures the kernel."""
    table = snp.check(firmware)
    if not 1 <= vcpus <= MAX_VCPUS:
        raise ImageError(f"number of virtual CPUs: 1 to {MAX_VCPUS}")
    digests = launch.hashes_table(hashlib.sha256(kernel).digest(), launch.NO_INITRD, launch.NO_CMDLINE)
    hashes = (bytes(table % PAGE) + digests).ljust(PAGE, b"\x00")
    if len(hashes) > PAGE:
        raise ImageError(f"{firmware.what}: the table of kernel hashes does not fit into its page")
    start = FOUR_GIB - len(firmware.data)
    pages = [PageData(start + at, MASK, content=firmware.data[at:at + PAGE])
             for at in range(0, len(firmware.data), PAGE)]
    for section in firmware.snp:
        pages += _section(firmware, section, hashes)
    states = [ProcessorState(launch.VMSA_GPA, MASK, number, launch.save_area(
        launch.BOOT_EIP if number == 0 else firmware.reset_eip or 0, signature, guest_features))
        for number in range(vcpus)]
    return IgvmFile((Platform(MASK, headers.SEV_SNP),), (GuestPolicy(MASK, policy),), (*pages, *states))


def _section(firmware: Firmware, section: SnpSection, hashes: bytes) -> Iterator[PageData]:
    if section.kind == SNP_KERNEL_HASHES:
        yield PageData(section.gpa, MASK, content=hashes)
        return
    if section.kind not in _KINDS:
        raise ImageError(f"{firmware.what}: SEV-SNP section of unknown kind {section.kind:#x}")
    kind = _KINDS[section.kind]
    for at in range(0, section.size if kind == headers.NORMAL else PAGE, PAGE):
        yield PageData(section.gpa + at, MASK, kind)
