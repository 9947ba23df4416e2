"""The programs that tasks need, and the Debian packages that bring them."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.doctor.line import BOOT, BUILD, SERVE, Line

_AREA = "programs"


@dataclass(frozen=True, slots=True)
class Need:
    """A program by its name, or a file by its path, with its use and its packages."""

    what: str
    use: str
    packages: tuple[str, ...]
    tasks: tuple[str, ...] = ()  # none: only a part of them needs it


NEEDS = (
    Need("ld", "links the kernels", ("binutils",), (SERVE, BUILD)),
    Need("gpgv", "checks the signatures of package indices", ("gpgv", "debian-archive-keyring"), (BUILD,)),
    Need("mkfs.erofs", "packs models for a guest", ("erofs-utils",), (BOOT,)),
    Need("qemu-system-x86_64", "runs guests", ("qemu-system-x86",), (BOOT,)),
    Need("/usr/share/OVMF/OVMF_CODE_4M.fd", "starts guests: their firmware", ("ovmf",), (BOOT,)),
    Need("swtpm", "is a guest's software TPM", ("swtpm",), (BOOT,)),
    Need("swtpm_setup", "makes a software TPM with its certificate", ("swtpm-tools",), (BOOT,)),
    Need("openssl", "makes keys of authorities and brokers by hand", ("openssl",)),
    Need("curl", "asks the first question", ("curl",)),
)


def lines() -> Iterator[Line]:
    """Yield each program, there or not."""
    for need in NEEDS:
        path = need.what if need.what.startswith("/") else shutil.which(need.what)
        there = path is not None and Path(path).exists()
        name = Path(need.what).name
        yield Line(_AREA, name, "yes" if there else "no" if need.tasks else "note",
                   need.use if there else f"not installed: it {need.use}",
                   "" if there else install(need.packages), () if there else need.tasks,
                   () if there else need.packages)
    compiler = importlib.util.find_spec("numba") is not None
    yield Line(_AREA, "numba", "yes" if compiler else "note", "compiles the kernels" if compiler else
               "not installed: it compiles the kernels", "" if compiler else "pip install './CHECKOUT[server]'")


def install(packages: Sequence[str]) -> str:
    """Return the command that installs packages of Debian's."""
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get install {' '.join(dict.fromkeys(packages))}"
