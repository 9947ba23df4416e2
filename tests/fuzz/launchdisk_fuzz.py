"""Fuzz target: launch disks, which the host writes."""

from __future__ import annotations

import contextlib
import io
import tarfile

from appliance.boot.placement import launchdisk
from appliance.errors import BootError


def archive(files: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """An archive as Python's own library writes it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def fuzz(data: bytes) -> None:
    """Parse; what is accepted must be what Python's library finds in it, if that can read it: it refuses owners and
    times that are no numbers, which mean nothing to a launch disk."""
    try:
        found = launchdisk.parse(data)
    except BootError:
        return
    with contextlib.suppress(tarfile.ReadError), tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar.getmembers():
            extracted = tar.extractfile(member)
            if extracted is None or found[member.name] != extracted.read():
                raise AssertionError("two readers find two contents")


def seeds() -> list[bytes]:
    """Archives of one and of three files."""
    return [archive({"deployment.hcl": b"appliance {}\n"}), archive({"deployment.hcl": b"x" * 600}, tarfile.GNU_FORMAT),
            archive({"deployment.hcl": b"a", "tenants.json": b"{}" * 300, "a.sig": bytes(64)})]
