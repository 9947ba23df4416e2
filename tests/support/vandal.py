"""Another process that alters a file on command, one command a line; and a disk that fails for
good."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.require import absent

_LOOP = """
import os, sys
def pread(p, n, at):
    with open(p, "rb") as f:
        f.seek(at)
        return f.read(n)
def write(p, data, at):
    with open(p, "r+b", buffering=0) as f:
        f.seek(at)
        f.write(data)
def flip(p, at):
    write(p, bytes([pread(p, 1, at)[0] ^ 1 << at % 8]), at)
def blank(p, at, n):
    write(p, bytes(n), at)
def cut(p, at):
    os.truncate(p, at)
def swap(p, a, b, n):
    one, other = pread(p, n, a), pread(p, n, b)
    write(p, other, a)
    write(p, one, b)
def put(p, at, n, source):
    write(p, pread(source, n, at), at)
def become(p, source):
    os.replace(source, p)
def gone(p):
    os.unlink(p)
for line in sys.stdin:
    name, *words = line.rstrip("\\n").split("\\t")
    globals()[name](*(int(word) if word.isdigit() else word for word in words))
    print("done", flush=True)
"""


@contextmanager
def vandal() -> Iterator[Callable[..., None]]:
    """Call it with a command of `_LOOP` and its arguments; it returns when the file is altered."""
    with subprocess.Popen([sys.executable, "-c", _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as child:
        stdin, stdout = child.stdin, child.stdout
        assert stdin is not None
        assert stdout is not None

        def tell(*words: object) -> None:
            stdin.write("\t".join(map(str, words)) + "\n")
            stdin.flush()
            assert "done\n" == stdout.readline()

        yield tell
        stdin.close()


@contextmanager
def failing_disk(folder: Path, nbytes: int) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """A folder on a disk of its own, and what makes every further read of a file on it an I/O error of the kernel: an
    ext4 on a loop device whose backing file is cut to nothing, with nothing left in the page cache."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists():
        absent("root, loop devices, and mkfs.ext4 of the Debian package e2fsprogs")
    disk, place = folder / "disk", folder / "mounted"
    place.mkdir()
    with disk.open("wb") as file:
        file.truncate(nbytes)
    subprocess.run(["mkfs.ext4", "-q", disk], check=True)
    if subprocess.run(["mount", "-o", "loop", disk, place], check=False).returncode:
        absent("the right to mount a loop device")

    def fail(path: Path) -> None:
        os.sync()
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.truncate(disk, 0)

    try:
        yield place, fail
    finally:
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
