"""Copies of an image in which one measured part differs, as a host would change it.

Each change keeps the length of what it changes, so that nothing else moves. A copy runs as the
image does, as far as the guest itself lets it.
"""

from __future__ import annotations

import mmap
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

from appliance.errors import ImageError
from appliance.imaging.predict import uki

PROGRAM, DISK, ROOT = "appliance.efi", "disk.raw", "root.img"
_SETUP_MAGIC, _VERSION_AT = 0x202, 0x20E  # of a bzImage: Documentation/arch/x86/boot.rst
_CPIO_TIME = 53  # the last digit of a file's time in a "newc" header
_GZIP_TIME = 4  # RFC 1952: MTIME, which no kernel reads


def kernel(data: bytes) -> int:
    """Return the place of a letter in the kernel's own version."""
    if data[_SETUP_MAGIC:_SETUP_MAGIC + 4] == b"HdrS":
        return int(struct.unpack_from("<H", data, _VERSION_AT)[0]) + 0x200
    return len(data) // 2


def initrd(data: bytes) -> int:
    """Return the place of a time that nothing in the guest depends on."""
    return _GZIP_TIME if data[:2] == b"\x1f\x8b" else _CPIO_TIME


def command_line(data: bytes) -> int:
    """Return the place of a letter in the first word of the command line that is a switch."""
    return max(data.find(b"quiet"), 0)


def program(section: str, place: Callable[[bytes], int]) -> Callable[[Path, Path], None]:
    """Return what copies an image and changes a byte of a section of its EFI program."""
    def make(image: Path, folder: Path) -> None:
        parsed = uki.parse((image / PROGRAM).read_bytes())
        content = next((each for each in parsed.pe.sections if each.name == section), None)
        if content is None:
            raise ImageError(f"{image / PROGRAM}: it has no section {section}", code="image-file")
        at = content.raw_at + place(parsed.section(section))
        _copy(image, folder, PROGRAM, DISK)
        whole = (image / PROGRAM).read_bytes()
        _flip(folder / PROGRAM, at)
        _flip(folder / DISK, _find(image / DISK, whole) + at)
    return make


def root(image: Path, folder: Path) -> None:
    """Copy an image and change a byte in the first block of its root file system."""
    _copy(image, folder, ROOT, DISK)
    _flip(folder / ROOT, 0)
    _flip(folder / DISK, _find(image / DISK, (image / ROOT).read_bytes()))


def _copy(image: Path, folder: Path, *own: str) -> None:
    """Copy the files that are to be changed; the others are the same files, where links can be."""
    folder.mkdir()
    for path in image.iterdir():
        if path.name in own or not path.is_file():
            continue
        try:
            (folder / path.name).hardlink_to(path.resolve())
        except OSError:
            shutil.copy(path, folder / path.name)
    for name in own:
        shutil.copyfile(image / name, folder / name)


def _flip(path: Path, at: int) -> None:
    """Change the lowest bit of a byte."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def _find(disk: Path, part: bytes) -> int:
    """Return the place of a file's bytes on the disk."""
    with disk.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        at = whole.find(part)
    if at < 0:
        raise ImageError(f"{disk}: a file of the image is not on it in one piece", code="image-file",
                         hint="build the image again")
    return at
