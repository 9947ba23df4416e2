"""Find the disks by the name that the host gave them. The name decides nothing but which is tried.

A disk's role is its virtio serial number or its partition's name. `appliance-models` holds a
read-only erofs file system with model files, which the policy's pins decide on. `appliance-state`
belongs to the application, which seals what it writes there. `appliance-launch` holds a policy for
an image without one. `appliance-collateral` has documents of the host's to pass on with evidence. A
virtio serial port of the name `appliance-audit` takes the audit log.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from appliance.guest.mounts import NODEV, NOEXEC, NOSUID, RDONLY, mount

MODELS_ROLE, STATE_ROLE, LAUNCH_ROLE = "appliance-models", "appliance-state", "appliance-launch"
AUDIT_PORT = "appliance-audit"
COLLATERAL_ROLE = "appliance-collateral"
LINKED = (STATE_ROLE, COLLATERAL_ROLE)  # below /dev, where policies and the boot name them
_BLOCK = Path("/sys/class/block")
_PORTS = Path("/sys/class/virtio-ports")
_DEVICES = Path("/dev")


def find(role: str, block: Path = _BLOCK) -> Path | None:
    """Return the device of a role, or None; of several, the first by name."""
    for entry in sorted(block.iterdir()):
        names = []
        with contextlib.suppress(OSError):
            names.append((entry / "serial").read_text(encoding="utf-8", errors="replace").strip())
        with contextlib.suppress(OSError):
            text = (entry / "uevent").read_text(encoding="utf-8", errors="replace")
            names += [line.partition("=")[2] for line in text.splitlines() if line.startswith("PARTNAME=")]
        if role in names:
            return _DEVICES / entry.name
    return None


def mount_models(target: Path) -> str:
    """Mount the disk with models read-only, where there is one. Raises OSError if it cannot be
    mounted.
    """
    models, state = find(MODELS_ROLE), find(STATE_ROLE)
    if models is not None:
        mount(str(models), str(target), "erofs", RDONLY | NOSUID | NODEV | NOEXEC)
    for role in LINKED:
        if (device := find(role)) is not None:
            (_DEVICES / role).symlink_to(device)
    return f"models {models or 'none'}, state {state or 'none'}"


def audit_port(ports: Path = _PORTS) -> Path | None:
    """Return the device of the port for the audit log, or None."""
    for entry in sorted(ports.iterdir()) if ports.is_dir() else []:
        with contextlib.suppress(OSError):
            if (entry / "name").read_text(encoding="utf-8", errors="replace").strip() == AUDIT_PORT:
                return _DEVICES / entry.name
    return None
