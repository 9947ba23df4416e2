"""`image.json`: what a build made, as canonical JSON (docs/formats/image.md)."""

from __future__ import annotations

import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any

from appliance.codec.canonical import canonical
from appliance.errors import ImageError
from appliance.policy import Loaded

FORMAT = "appliance/image/v1"
NAME = "image.json"
FILES = ("appliance.efi", "cmdline", "disk.raw", "gate.bin", "initrd.cpio", "root.img", "vmlinuz")


def describe(path: Path) -> dict[str, Any]:
    """SHA-256 and size of a file."""
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": path.stat().st_size}


def write(folder: Path, facts: dict[str, Any]) -> None:
    """Write the manifest beside the files that it describes."""
    document = {"format": FORMAT, "files": {name: describe(folder / name) for name in FILES}, **facts}
    (folder / NAME).write_bytes(canonical(document))


def read(folder: Path) -> dict[str, Any]:
    """Return the manifest of a built image. Raises ImageError if there is none."""
    path = folder / NAME
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint="build one: appliance image build FILE -o DIR") from None
    except (ValueError, RecursionError):
        raise ImageError(f"{path} is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ImageError(f"{path}: not a manifest of format {FORMAT}")
    return document


def listeners(policy: Loaded | None) -> list[dict[str, Any]]:
    """Where the policy's service listens in the guest, for whoever forwards a port to it."""
    places = policy.policy.service.listeners if policy else ()
    return [{"name": place.name, "kind": place.kind, "port": place.port,
             "loopback": ipaddress.ip_address(place.host).is_loopback}
            for place in places if place.kind in ("tcp", "tls", "ra-tls") and place.transport != "vsock"]
