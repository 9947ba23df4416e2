"""QEMU's command line for an image: a q35 machine with virtio disks, one network card, a serial
console, no more."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from appliance.imaging.qemu import accelerator, relay

# Where Debian's `ovmf` puts firmware and an empty store of variables.
FIRMWARE = (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_VARS_4M.fd"))


@dataclass(frozen=True)
class Forward:
    """A TCP port of this machine's loopback, forwarded to the guest."""

    port: int
    guest_port: int
    guest_address: str = ""  # empty: DHCP's

    @property
    def rule(self) -> str:
        """Return the forward as an option of QEMU's user network."""
        return f"hostfwd=tcp:127.0.0.1:{self.port}-{self.guest_address}:{self.guest_port}"


@dataclass(frozen=True)
class Reach:
    """The one thing that a guest may connect to: a port of `ADDRESS`, behind which is a host and
    port of this side."""

    ADDRESS: ClassVar[str] = "10.0.2.100"  # of the guest's network; it names it in its policy

    host: str
    port: int

    @property
    def rule(self) -> str:
        """In QEMU's words: a process of its own for each connection."""
        command = shlex.join([sys.executable, "-I", "-S", str(relay.__file__), self.host, str(self.port)])
        return f"guestfwd=tcp:{self.ADDRESS}:{self.port}-cmd:{command.replace(',', ',,')}"


@dataclass(frozen=True)
class Machine:
    """One machine. `variables` None: no firmware, the kernel is loaded by QEMU; `tpm`: a control
    socket of swtpm."""

    folder: Path
    accelerator: str
    memory: int  # MiB
    cpus: int = 1
    variables: Path | None = None
    tpm: Path | None = None
    models: Path | None = None
    state: Path | None = None
    launch: Path | None = None
    collateral: Path | None = None  # documents of the host's, which the guest passes on
    audit: Path | None = None  # a file that the audit log is written to
    forwards: tuple[Forward | Reach, ...] = ()
    vsock: int | None = None
    confidential: tuple[str, ...] = ()  # the addition to -M, then further words
    firmware: Path = FIRMWARE[0]
    extra: tuple[str, ...] = ()

    def command(self, qemu: str) -> list[str]:
        """Return the whole command line."""
        machine = "q35,smm=off,hpet=off,vmport=off" + "".join(f",{word}" for word in self.confidential[:1])
        words = [qemu, *accelerator.arguments(self.accelerator), "-M", machine, "-smp", str(self.cpus), "-m",
                 str(self.memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial",
                 "stdio", *self.confidential[1:], *self._boot(), *self._network()]
        if self.models is not None:
            words += _disk("models", self.models, read_only=True)
        if self.state is not None:
            words += _disk("state", self.state, read_only=False)
        if self.launch is not None:
            words += _disk("launch", self.launch, read_only=True)
        if self.collateral is not None:
            words += _disk("collateral", self.collateral, read_only=True)
        if self.audit is not None:
            words += ["-device", "virtio-serial-pci", "-chardev", f"file,id=audit,path={_escaped(self.audit)}",
                      "-device", "virtserialport,chardev=audit,name=appliance-audit"]
        if self.vsock is not None:
            words += ["-device", f"vhost-vsock-pci,guest-cid={self.vsock}"]
        if self.tpm is not None:
            words += ["-chardev", f"socket,id=tpm,path={self.tpm}", "-tpmdev", "emulator,id=tpm0,chardev=tpm",
                      "-device", "tpm-crb,tpmdev=tpm0"]
        return [*words, *self.extra]

    def _boot(self) -> list[str]:
        if any("tdx-guest" in word for word in self.confidential):  # RTMR 1 and 2 are predicted for the disk
            return ["-bios", str(self.firmware), *_disk("root", self.folder / "disk.raw", read_only=True, boot=True)]
        if self.confidential:  # SEV-SNP: the kernel is measured with the firmware: kernel-hashes
            return ["-bios", str(self.firmware), "-kernel", str(self.folder / "appliance.efi"),
                    *_disk("root", self.folder / "root.img", read_only=True)]
        if self.variables is not None:
            return ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={_escaped(self.firmware)}",
                    "-drive", f"if=pflash,unit=1,format=raw,file={self.variables}",
                    *_disk("root", self.folder / "disk.raw", read_only=True, boot=True)]
        return ["-kernel", str(self.folder / "vmlinuz"), "-initrd", str(self.folder / "initrd.cpio"), "-append",
                (self.folder / "cmdline").read_text(encoding="ascii"),
                *_disk("root", self.folder / "root.img", read_only=True)]

    def _network(self) -> list[str]:
        rules = "".join("," + forward.rule for forward in self.forwards)
        return ["-netdev", f"user,id=net,restrict=on{rules}", "-device", "virtio-net-pci,netdev=net,romfile="]


def _disk(name: str, path: Path, *, read_only: bool, boot: bool = False) -> list[str]:
    """Return a virtio disk; its serial number is the role that the guest looks for. Bytes that a
    guest flushes are on this machine's disk before it goes on."""
    return ["-drive", f"if=none,id={name},file={_escaped(path)},format=raw,cache=writeback,"
            f"read-only={'on' if read_only else 'off'}",
            "-device", f"virtio-blk-pci,drive={name},serial=appliance-{name}{',bootindex=1' if boot else ''}"]


def _escaped(path: Path) -> str:
    """Return a path in a QEMU option."""
    return str(path).replace(",", ",,")
