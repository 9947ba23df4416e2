"""QEMU's words for a confidential machine, where processor, kernel and QEMU offer one."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

from appliance.errors import ImageError
from appliance.policy import Loaded

_SNP = Path("/sys/module/kvm_amd/parameters/sev_snp")
_TDX = Path("/sys/module/kvm_intel/parameters/tdx")
_QGS = Path("/var/run/tdx-qgs/qgs.socket")
_FIRMWARE = {"snp": Path("/usr/share/ovmf/OVMF.amdsev.fd"), "tdx": Path("/usr/share/ovmf/OVMF.fd")}
KINDS = tuple(_FIRMWARE)


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


def arguments(kind: str, memory: int, policy: Loaded | None) -> tuple[str, ...]:
    """Return the words: first what is added to `-M`, then the rest. `memory` in MiB; a policy given
    at launch is bound.

    The kernel's hash goes into the launch measurement (kernel-hashes), and into nothing else that a
    guest could check.
    """
    if kind == "snp":
        bound = f",host-data={_base64(policy.host_data)}" if policy else ""
        return ("confidential-guest-support=cc0,memory-backend=ram0", "-object",
                f"sev-snp-guest,id=cc0,cbitpos=51,reduced-phys-bits=1,kernel-hashes=on{bound}", "-object",
                f"memory-backend-memfd,id=ram0,size={memory}M,share=true,prealloc=false")
    bound = f",mrconfigid={_base64(policy.digest)}" if policy else ""
    return ("confidential-guest-support=cc0,kernel-irqchip=split,memory-backend=ram0", "-object",
            f"tdx-guest,id=cc0{bound},{_quotes()}", "-object", f"memory-backend-ram,id=ram0,size={memory}M")


def _quotes() -> str:
    """Where QEMU finds the host's quote generation service (QGS), without which a TD gets no quote:
    its Unix socket, or the vsock port of a service that is set up for one."""
    of = "quote-generation-socket"
    if _QGS.exists():
        return f"{of}.type=unix,{of}.path={_QGS}"
    return f"{of}.type=vsock,{of}.cid=2,{of}.port=4050"


def firmware(kind: str) -> Path:
    """Return the firmware of Debian's `ovmf-amdsev`, and for TDX of `ovmf` (trixie or newer): that
    of `ovmf-inteltdx` has Secure Boot on with Microsoft's keys, and refuses the image. Raises
    ImageError if it is not installed."""
    path = _FIRMWARE[kind]
    if not path.is_file():
        raise ImageError(f"{path} is not there", code="tool-missing", hint="install it, or name one: --firmware FILE")
    return path


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
