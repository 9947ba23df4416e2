"""The tests on a machine that lacks one of the tools that they use: they skip, and nothing fails for it.

    python -m tests.absent [TOOL ...]       all of `TOOLS` by default, one at a time: an hour

Each time the tests that have to do with the tool run with a PATH of everything but it. Exits 1 when any of them fails.
A test that begins, and then finds that it cannot go on, may leave behind what makes the next one fail: that is how it
shows.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TPM = ("tests/attestation", "tests/keys/test_key_release.py", "tests/keys/test_key_release_boot.py",
       "tests/boot/test_placement.py", "tests/client", "tests/imaging")
IMAGE = ("tests/imaging",)
TOOLS = {  # by a word for them: programs that go together, and the tests that ask for them
    "swtpm": (("swtpm", "swtpm_setup", "swtpm_localca", "swtpm_cert"), TPM),
    "tpm2-tools": (("tpm2", "tpm2_*"), TPM),
    "openssl": (("openssl",), ("tests/signed", "tests/http/test_service_tls.py", "tests/receipts",
                               "tests/audit", "tests/auditor")),
    "gcc": (("gcc*", "cc", "x86_64-linux-gnu-gcc*"), ("tests/imaging", "tests/service/test_hanging_disk.py",
                                                     "tests/kernels/test_kernel_runtime_build.py")),
    "iasl": (("iasl",), IMAGE),
    "chromium": (("chromium",), ("tests/project/test_site.py", "tests/auditor/test_pack_report.py")),
    "go": (("go",), ("tests/policy",)),
    "erofs-utils": (("mkfs.erofs", "fsck.erofs", "dump.erofs"), IMAGE),
    "cryptsetup": (("veritysetup", "cryptsetup"), IMAGE),
    "cpio": (("cpio",), IMAGE),
    "mtools": (("mtools", "mdir", "mcopy", "mtype"), IMAGE),
    "dosfstools": (("fsck.fat", "fsck.vfat", "mkfs.fat", "mkfs.vfat"), IMAGE),
    "fdisk": (("sfdisk", "fdisk"), IMAGE),
    "gpgv": (("gpgv",), IMAGE),
    "qemu-img": (("qemu-img",), IMAGE),
    "qemu": (("qemu-system-x86_64",), IMAGE),
    "qemu-user": (("qemu-aarch64",), ("tests/kernels/test_aarch64.py", "tests/auditor/test_replays.py")),
    "aarch64 binutils": (("aarch64-linux-gnu-ld",), ("tests/kernels/test_aarch64.py",)),
    "docker": (("docker", "dockerd"), ("tests/imaging/test_image_container.py", "tests/boot/test_memory_limits.py")),
    "e2fsprogs": (("mkfs.ext4",), ("tests/models", "tests/boot/test_sealed_boot.py")),
    "util-linux": (("unshare", "prlimit"), ("tests/client", "tests/sandbox/test_boot_hardening.py")),
}


def _path_without(patterns: tuple[str, ...], folder: Path) -> None:
    """Make links in `folder` to every program on the PATH, but for those that a pattern names."""
    for name in os.environ["PATH"].split(os.pathsep):
        for program in Path(name).iterdir() if Path(name).is_dir() else ():
            if not any(program.match(pattern) for pattern in patterns) and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)


def run(tool: str) -> bool:
    """Run the tests without a tool; whether none failed."""
    patterns, tests = TOOLS[tool]
    with tempfile.TemporaryDirectory(prefix="path-") as folder:
        _path_without(patterns, Path(folder))
        environment = {name: value for name, value in os.environ.items() if name != "APPLIANCE_TESTS_REQUIRE"}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-n", "2", "--no-loadscope-reorder", "-m", "not soak", "-p",
             "no:cacheprovider", *tests], cwd=ROOT, env=environment | {"PATH": folder}, check=False)
    print(f"{'passed' if done.returncode == 0 else 'FAILED'}  without {tool}", flush=True)
    return done.returncode == 0


def main() -> int:
    """Run the tests without each tool that is named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", nargs="*", metavar="TOOL", help=f"one of: {', '.join(TOOLS)}")
    args = parser.parse_args()
    if unknown := set(args.tool) - set(TOOLS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; allowed: {', '.join(TOOLS)}")
    passed = [run(tool) for tool in args.tool or TOOLS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
