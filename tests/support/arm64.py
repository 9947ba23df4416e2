"""The appliance on an emulated aarch64: a root of Debian's arm64 packages and PyPI's aarch64 wheels, run by QEMU.

    python -m tests.support.arm64        makes the root in build/arm64, as `make test` and `make soak` do

It has what the image's recipe puts into an image to run (`image/packages.toml`, role `root`; `wheels.toml`), for the
other architecture: packages by Debian's signed indices, wheels by the digests of `requirements-image.lock`. QEMU
emulates the instructions of an ARMv8.0 CPU; system calls are this machine's. No maintainer script is run. Without a
network tests are skipped: exit code 0 all the same, unless APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from appliance.errors import ApplianceError, EngineError
from appliance.imaging.disk import rootfs
from appliance.imaging.packages import debian, lockfile, mirrors, resolve, wheels
from appliance.imaging.packages.downloads import Downloads, default_folder, fetch
from appliance.imaging.recipe import recipe
from appliance.kernelbuild import build
from appliance.kernels.compiler import registry
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import ahead, targets
from tests.support import require
from tests.support.environment import children_unmeasured
from tests.support.require import absent

ROOT = Path(__file__).parents[2]
TREE = ROOT / "build" / "arm64"
REQUIREMENTS = ROOT / "requirements-image.lock"
LINKER = "aarch64-linux-gnu-ld"
NEON = targets.by_name("neon")
FEW = ("Q4_1", "Q4_K", "Q6_K", "Q8_0")  # products of several shapes, and what the model "mixed" needs
CPU = "cortex-a72"  # no feature beyond the baseline that the kernels are compiled for


def need() -> None:
    """The emulator, a linker and the root must be there, or the test skips (fails where all must run)."""
    for tool, package in (("qemu-aarch64", "qemu-user"), (LINKER, "binutils-aarch64-linux-gnu")):
        if shutil.which(tool) is None:
            absent(f"{tool}: install {package}")
    if not _made():
        absent("no arm64 root in build/arm64: run `make arm64`")


def run(*words: object, timeout: float = 300) -> str:
    """Run the root's Python with these words, and return its output. The checkout's packages can be
    imported."""
    require.guests()
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1",
                   "PYTHONPATH": f"{ROOT}:{TREE / 'usr/lib/python3/dist-packages'}"}
    command = ["qemu-aarch64", "-cpu", CPU, "-L", str(TREE), str(TREE / "usr/bin/python3.13"), *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout,
                          check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def library(formats: tuple[str, ...] = FEW) -> Path:
    """The library with the kernels that models in these formats need, built once for all tests and workers."""
    folder = ROOT / "build" / "tests" / "neon" / "-".join(formats if formats == FEW else ("all",))
    folder.mkdir(parents=True, exist_ok=True)
    suffixes = {shape.suffix for name, shape in shapes.SHAPES.items() if name not in formats}
    names = [name for name in registry.definitions() if name.partition("_")[2] not in suffixes
             or name.partition("_")[0] not in ("product", "gather")]
    with (folder / "lock").open("w") as lock, children_unmeasured():
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return ahead.open_library(ahead.default_path(NEON, folder), NEON).path
        except EngineError:
            return build.build(NEON, folder, names=names).library


def make() -> None:
    """Fetch and unpack; the tree appears when it is whole."""
    image = recipe.load()
    leave_out = {name: reason for name, reason in image.wheels_leave_out.items() if name != "tqdm"}  # of the commands
    platforms = tuple(name.replace("x86_64", "aarch64") for name in image.wheels_platforms)
    arm = dataclasses.replace(image, architecture="arm64", wheels_platforms=platforms, wheels_leave_out=leave_out)
    downloads, fresh = Downloads(default_folder() / "downloads"), TREE.with_name("arm64.new")
    for folder in (fresh, TREE):
        shutil.rmtree(folder, ignore_errors=True)
    tree = rootfs.begin(fresh, arm)
    rootfs.unpack(tree, _packages(arm, downloads), downloads, ("etc/*", "usr/share/*", "var/*"))
    rootfs.install_wheels(tree, arm, wheels.resolve(arm, wheels.read(REQUIREMENTS), downloads), downloads)
    tree.file("made-from", _digest().encode())
    fresh.rename(TREE)


def _packages(arm: recipe.Recipe, downloads: Downloads) -> list[lockfile.Package]:
    """The newest packages of the role `root`; they are in the cache then."""
    addresses = mirrors.choose([archive.name for archive in arm.archives], {})
    candidates = [candidate for archive in arm.archives
                  for candidate in debian.index(archive, addresses[archive.name], arm.architecture)[1]]
    found = []
    for item in resolve.closure(arm.roles["root"], resolve.newest(candidates)):
        address = f"{addresses[item.archive]}/{item.path}"
        downloads.get(item.sha256, item.name, lambda address=address: fetch(address))  # type: ignore[misc]
        found.append(lockfile.Package("root", item.name, item.version, item.size, item.sha256, item.archive, item.path))
    return found


def _digest() -> str:
    """Of what decides what is in the tree."""
    recipes = [recipe.FOLDER / f"{name}.toml" for name in ("packages", "wheels", "layout", "prune")]
    files = [Path(__file__), REQUIREMENTS, *recipes]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _made() -> bool:
    stamp = TREE / "made-from"
    return stamp.is_file() and stamp.read_text() == _digest()


def main() -> int:
    """Make the root unless it is there, or nothing is installed that could run it. Of two that run
    at the same time, the second waits, and finds what the first has made."""
    required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
    if _made() or (shutil.which("qemu-aarch64") is None and not required):
        return 0
    TREE.parent.mkdir(parents=True, exist_ok=True)
    with TREE.with_name("arm64.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return 0 if _made() else _made_now(required)


def _made_now(required: bool) -> int:
    """Make the root, and return the exit code."""
    print(f"fetching Debian's arm64 Python and its wheels into {TREE} (about 45 MB)", file=sys.stderr)
    try:
        make()
    except ApplianceError as error:
        print(f"{'error' if required else 'warning'}: {error}; without it tests on aarch64 are skipped",
              file=sys.stderr)
        return 2 if required else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
