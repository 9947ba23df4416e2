"""The hardware that protects or measures: TEEs as host and as guest, KVM, TPM, vsock."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.doctor.line import Line
from appliance.platforms import PLATFORMS, SNP, TDX, TPM

_AREA = "hardware"
_SWITCHES = {SNP.name: "sys/module/kvm_amd/parameters/sev_snp", TDX.name: "sys/module/kvm_intel/parameters/tdx"}
_REPORTS = "sys/kernel/config/tsm/report"
_GUESTS = {SNP.name: "dev/sev-guest", TDX.name: "dev/tdx_guest"}
_KVM_GET_API_VERSION, _KVM_API = 0xAE00, 12  # linux/kvm.h
_SEV_ISSUE_CMD, _SNP_PLATFORM_STATUS = 0xC0105300, 9  # linux/psp-sev.h; packed: command, address, error
_STATUS = struct.Struct("<BBBBIIIQQ")  # struct sev_user_data_snp_status


@dataclass(frozen=True, slots=True)
class SnpFirmware:
    """The firmware of an SEV-SNP host, as it reports itself."""

    api: str
    build: int
    current_tcb: int
    reported_tcb: int


def lines(root: Path = Path("/")) -> Iterator[Line]:
    """Yield what is there. `root`: of the file system that is looked at."""
    yield from _host(root)
    yield from _guest(root)
    yield _kvm(root)
    yield _tpm(root)
    vsock = (root / "dev/vhost-vsock").exists()
    yield Line(_AREA, "vsock", "yes" if vsock else "note", "guests can have it" if vsock else "not for guests",
               "" if vsock else "only for listeners with transport = \"vsock\": modprobe vhost_vsock")


def platforms_here(root: Path = Path("/")) -> tuple[str, ...]:
    """Return the hardware platforms that this machine can attest."""
    found = [name for name, device in _GUESTS.items() if (root / device).exists()]
    if TPM.device is not None and (root / TPM.device.removeprefix("/")).exists():
        found.append(TPM.name)
    return tuple(each.name for each in PLATFORMS if each.name in found)


def _host(root: Path) -> Iterator[Line]:
    """Yield whether this machine can run confidential guests."""
    hosts = [name for name, path in _SWITCHES.items() if _switched_on(root / path)]
    if not hosts:
        yield Line(_AREA, "TEE host", "note", "this machine runs no confidential guests",
                   "for SEV-SNP or TDX: docs/guides/sev-snp.md, docs/guides/tdx.md")
    for name in hosts:
        yield Line(_AREA, "TEE host", "yes", f"{name}{_firmware(name, root)}")


def _switched_on(path: Path) -> bool:
    try:
        return path.read_text(encoding="ascii").strip() in ("Y", "1")
    except (OSError, ValueError):
        return False


def _firmware(name: str, root: Path) -> str:
    """Return the firmware's version. TDX's module is named by the kernel as it starts."""
    if name != SNP.name:
        return "; the kernel names its module's version: dmesg | grep -i tdx"
    try:
        found = snp_firmware(root / "dev/sev")
    except OSError as error:
        return f"; its firmware does not answer ({error.strerror}): run this as root"
    return (f", firmware {found.api} build {found.build}, TCB {found.current_tcb:#018x} (reported "
            f"{found.reported_tcb:#018x})")


def snp_firmware(device: Path) -> SnpFirmware:
    """Ask the host's firmware for its version. Raises OSError."""
    status = bytearray(_STATUS.size)
    place = (ctypes.c_char * len(status)).from_buffer(status)
    command = bytearray(struct.pack("<IQI", _SNP_PLATFORM_STATUS, ctypes.addressof(place), 0))
    with device.open("rb", buffering=0) as file:
        fcntl.ioctl(file, _SEV_ISSUE_CMD, command)
    return snp_status(bytes(status))


def snp_status(data: bytes) -> SnpFirmware:
    """Read 32 bytes of SNP_PLATFORM_STATUS (SEV-SNP Firmware ABI, 8.3)."""
    major, minor, _, _, build, _, _, current, reported = _STATUS.unpack(data[:_STATUS.size])
    return SnpFirmware(f"{major}.{minor}", build, current, reported)


def _guest(root: Path) -> Iterator[Line]:
    """Yield whether this machine is a confidential guest itself."""
    inside = [name for name, device in _GUESTS.items() if (root / device).exists()]
    if not inside:
        yield Line(_AREA, "TEE guest", "note", "this machine is not a confidential guest", "")
    for name in inside:
        reports = (root / _REPORTS).is_dir()
        yield Line(_AREA, "TEE guest", "yes" if reports else "no", f"{name}, reports by "
                   + ("configfs-tsm" if reports else "no interface that this version reads"),
                   "" if reports else "Linux 6.7 or newer; mount -t configfs none "
                   "/sys/kernel/config")


def _kvm(root: Path) -> Line:
    device = root / "dev/kvm"
    if not device.exists():
        return Line(_AREA, "KVM", "note", "not here: guests are emulated, about eighty times slower",
                    "load it on the host (modprobe kvm_amd or kvm_intel); a guest needs nested virtualisation")
    if not os.access(device, os.R_OK | os.W_OK):
        return Line(_AREA, "KVM", "note", "this user may not open /dev/kvm: guests are emulated, and slow",
                    "sudo usermod -aG kvm $USER, and log in again")
    with suppress(OSError), device.open("rb+", buffering=0) as file:
        version = fcntl.ioctl(file, _KVM_GET_API_VERSION)
        if version == _KVM_API:
            return Line(_AREA, "KVM", "yes", "it answers; `appliance image boot` tries whether guests run")
    return Line(_AREA, "KVM", "note", "/dev/kvm is there and does not answer: guests are emulated, and slow", "")


def _tpm(root: Path) -> Line:
    device = root / (TPM.device or "").removeprefix("/")
    if not device.exists():
        return Line(_AREA, "TPM", "note", "not here",
                    "a guest of QEMU gets a software TPM: appliance image boot --tpm-state DIR")
    if not os.access(device, os.R_OK | os.W_OK):
        return Line(_AREA, "TPM", "note", f"this user may not open {TPM.device}",
                    "sudo usermod -aG tss $USER, and log in again")
    return Line(_AREA, "TPM", "yes", f"{TPM.device} can be opened")
