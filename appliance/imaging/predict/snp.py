"""The SEV-SNP launch digest of QEMU with `kernel-hashes=on`, computed from files only.

sev-snp-measure is the independent judge in the tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import islice

from pydantic import ValidationError

from appliance.attestation.binding import describe
from appliance.attestation.measured import launch
from appliance.attestation.measured.fields import MAX_VCPUS
from appliance.attestation.measured.launch import SNP_KERNEL_HASHES, LaunchDigest, LaunchFirmware
from appliance.errors import ImageError
from appliance.imaging.predict.firmware import FOUR_GIB, PAGE, Firmware


def cpu_models() -> tuple[str, ...]:
    """Return the CPU models whose signature is known, by QEMU's names."""
    return tuple(launch.MODELS)


def signature(cpu_model: str) -> int:
    """Return CPUID Fn0000_0001_EAX of a model. Raises ImageError for an unknown model."""
    if cpu_model not in launch.MODELS:
        raise ImageError(f"CPU model {cpu_model!r} is not known", hint=f"known: {', '.join(launch.MODELS)}")
    return launch.signature(cpu_model)


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


def described(firmware: Firmware) -> LaunchFirmware:
    """Return what a launch takes from a firmware. Raises ImageError unless it measures what it
    starts."""
    table, digest = check(firmware), LaunchDigest()
    digest.content(FOUR_GIB - len(firmware.data), firmware.data)
    try:
        return LaunchFirmware.model_validate({
            "sha256": hashlib.sha256(firmware.data).hexdigest(), "pages_digest": digest.value.hex(),
            "sections": [{"gpa": each.gpa, "size": each.size, "kind": each.kind} for each in firmware.snp],
            "hashes_gpa": table, "reset_eip": firmware.reset_eip})
    except ValidationError as error:
        raise ImageError(f"{firmware.what}: {describe(error)}") from None


def launch_digests(firmware: Firmware, kernel: bytes, *, vcpus: Iterable[int], cpu_models: Iterable[str],
                   initrd: bytes = b"", cmdline: bytes = b"",
                   guest_features: int = 1) -> dict[tuple[int, str], bytes]:
    """Return the digest (48 bytes) of each number of virtual CPUs with each CPU model.

    Raises ImageError unless the firmware measures `kernel`, `initrd` and `cmdline` through its page
    of kernel hashes.
    """
    found, wanted = described(firmware), sorted(set(vcpus))
    if not wanted or not 1 <= wanted[0] <= wanted[-1] <= MAX_VCPUS:
        raise ImageError(f"number of virtual CPUs: 1 to {MAX_VCPUS}")
    common = launch.before_cpus(found, launch.hashes_table(*(
        hashlib.sha256(data).digest() for data in (kernel, initrd, cmdline + b"\x00"))))
    return {(number, model): value for model in cpu_models
            for number, value in islice(launch.with_cpus(common, found.reset_eip, signature(model), guest_features),
                                        wanted[-1]) if number in wanted}
