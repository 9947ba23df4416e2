"""The initrd: our init, kernel modules, and its own copy of the command line. image/init/init.c
says what it does."""

from __future__ import annotations

import gzip
import io

from appliance.imaging.disk import cpio
from appliance.imaging.disk.linux import Kernel

_FIRST = 10  # modules are numbered with two digits


def pack(init: bytes, kernel: Kernel, cmdline: str) -> bytes:
    """Return the compressed archive. Raises ValueError if there are more modules than numbers."""
    members = [cpio.Member("cmdline", cmdline.encode("ascii")), cpio.Member("dev"),
               cpio.Member("init", init, executable=True), cpio.Member("proc"), cpio.Member("root"), cpio.Member("sys")]
    for folder, modules in (("required", kernel.required), ("optional", kernel.optional)):
        if len(modules) > 100 - _FIRST:
            raise ValueError(f"{len(modules)} modules, more than can be numbered")
        members.append(cpio.Member(folder))
        members += [cpio.Member(f"{folder}/{number}", data) for number, (_, data) in enumerate(modules, _FIRST)]
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="", compresslevel=9) as packed:
        packed.write(cpio.pack(members))
    return out.getvalue()
