"""Whether KVM works here: found out by trying, since a `/dev/kvm` can be there on which guests die.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SECONDS = 15.0
_MARK = b"init: refused"  # the initrd's init runs in user mode and refuses a command line that was not measured


def kvm_works(qemu: str, folder: Path) -> bool:
    """Start the image's kernel under KVM with a wrong command line; its refusal shows that guests
    run."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    command = [qemu, "-accel", "kvm", "-cpu", "host", "-M", "q35", "-m", "256", "-nodefaults", "-display", "none",
               "-no-reboot", "-serial", "stdio", "-kernel", str(folder / "vmlinuz"), "-initrd",
               str(folder / "initrd.cpio"), "-append", "console=ttyS0 quiet panic=-1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False)  # noqa: S603
    except (subprocess.TimeoutExpired, OSError):
        return False
    return _MARK in done.stdout


def arguments(kind: str) -> list[str]:
    """QEMU's arguments for `kvm` or `tcg`."""
    if kind == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    # One thread: with several, QEMU 7.2 now and then fails at CMPXCHG16B, which the kernel and
    # numpy both want. Left out is what promises speed, and is slow where each byte that a string
    # instruction moves, and each level of page tables, is emulated.
    return ["-accel", "tcg,thread=single,tb-size=1024", "-cpu", "max,-erms,-fsrm,-la57"]
