"""QEMU's words for a confidential machine, where processor, kernel and QEMU offer one."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SNP = Path("/sys/module/kvm_amd/parameters/sev_snp")
_TDX = Path("/sys/module/kvm_intel/parameters/tdx")


def offered(qemu: str) -> str | None:
    """`snp` or `tdx` where the host can, else None."""
    for name, switch, kind in (("snp", _SNP, "sev-snp-guest"), ("tdx", _TDX, "tdx-guest")):
        try:
            if switch.read_text(encoding="ascii").strip() not in ("Y", "1"):
                continue
        except OSError:
            continue
        done = subprocess.run([qemu, "-object", "help"], capture_output=True, text=True, check=False)  # noqa: S603
        if kind in done.stdout:
            return name
    return None


def arguments(kind: str) -> tuple[str, ...]:
    """The words: first what is added to `-M`, then the rest. The kernel's hash goes into the launch measurement."""
    if kind == "snp":
        return ("confidential-guest-support=cc0,memory-backend=ram0", "-object",
                "sev-snp-guest,id=cc0,cbitpos=51,reduced-phys-bits=1,kernel-hashes=on", "-object",
                "memory-backend-memfd,id=ram0,size={memory}M,share=true,prealloc=false")
    return ("confidential-guest-support=cc0,kernel-irqchip=split,memory-backend=ram0", "-object", "tdx-guest,id=cc0",
            "-object", "memory-backend-ram,id=ram0,size={memory}M")
