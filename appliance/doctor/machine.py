"""The machine itself: system, processor, memory, disk."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from appliance.doctor.line import BOOT, BUILD, SERVE, Line, State

_AREA = "machine"
_BUILD_NBYTES = 3 << 30  # of a first build: packages, wheels, kernels, root and disk
_RELEASES = {"bookworm": 12, "trixie": 13, "forky": 14}


def lines(root: Path = Path("/")) -> Iterator[Line]:
    """Yield what is there. `root`: of the file system that is looked at."""
    yield _system(root)
    yield from _processor(root)
    yield from _memory()
    yield _disk()


def _system(root: Path) -> Line:
    try:
        pairs = (line.partition("=") for line in (root / "etc/os-release").read_text().splitlines())
        told = {name: value.strip('"') for name, _, value in pairs}
    except OSError:
        told = {}
    name, code = told.get("PRETTY_NAME", "an unknown system"), told.get("VERSION_CODENAME", "")
    fit = told.get("ID") == "debian" and code in _RELEASES
    fix = "" if fit else "images were built on Debian 12 (bookworm) and newer; elsewhere, build them in a container"
    return Line(_AREA, "system", "yes" if fit else "note", f"{name}, {platform.machine()}, Linux {platform.release()}, "
                f"Python {platform.python_version()}", fix)


def _processor(root: Path) -> Iterator[Line]:
    told = _cpuinfo(root)
    what = f"{told.get('model name', platform.machine())}, microcode {told.get('microcode', 'unknown')}"
    if platform.machine() not in ("x86_64", "aarch64"):
        yield Line(_AREA, "processor", "no", what, "use a machine with x86_64 or aarch64", (SERVE, BUILD, BOOT))
        return
    images = "" if platform.machine() == "x86_64" else "images are for x86_64: build and boot them there"
    yield Line(_AREA, "processor", "no" if images else "yes", what, images, (BUILD, BOOT) if images else ())
    try:
        from appliance.kernels.runtime import ahead, quota, targets
    except ImportError:  # a client's installation
        yield Line(_AREA, "packages", "no", "this is a client's installation: it verifies, and serves nothing",
                   "pip install './CHECKOUT[server]'", (SERVE, BUILD, BOOT))
        return
    yield Line(_AREA, "cores", "yes", f"{quota.cpus()} for this process")
    target = targets.detect()
    there = ahead.default_path(target).is_file()
    yield Line(_AREA, "kernels", "yes" if there else "note", f"for this processor: target {target.name}"
               + (", built" if there else ", not built: the first start compiles them"),
               "" if there else "appliance kernels build")


def _cpuinfo(root: Path) -> dict[str, str]:
    """Return what the kernel says of the first processor."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _memory() -> Iterator[Line]:
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = os.sysconf("SC_AVPHYS_PAGES") * size
    try:
        from appliance.boot.planning import machine

        total, free = machine.total_memory() or pages * size, machine.available_memory() or free
    except ImportError:
        total = pages * size
    yield Line(_AREA, "memory", "yes" if free >= 512 << 20 else "note", f"{_gib(total)} for this process, {_gib(free)} "
               "free", "" if free >= 512 << 20 else "the demo model needs 512 MiB")
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    yield Line(_AREA, "locked memory", "yes" if unlimited or soft >= 64 << 20 else "note",
               "no limit" if unlimited else f"{soft >> 20} MiB",
               "" if unlimited or soft >= 64 << 20 else "keys and clear weights are locked: ulimit -l unlimited, or "
               "LimitMEMLOCK=infinity in systemd")


def _disk() -> Line:
    free = shutil.disk_usage(Path.cwd()).free
    state: State = "yes" if free >= _BUILD_NBYTES else "no"
    return Line(_AREA, "disk", state, f"{_gib(free)} free in this folder", "" if state == "yes" else
                f"a first image takes about {_gib(_BUILD_NBYTES)}: choose another folder", () if state == "yes" else
                (BUILD,))


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
