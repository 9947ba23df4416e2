"""The launch disk: a policy that is given to an image when it is started. Spec:
docs/formats/launch-disk.md.

The disk is a plain archive (ustar, POSIX.1-1988) without a file system, so that no file system
driver of the kernel reads what the host wrote. It is read once, into memory, and parsed strictly;
what decides is the binding (placement).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.codec.regularfile import open_file
from appliance.errors import BootError

POLICY: Final = "deployment.hcl"
MAX_BYTES: Final = 4 << 20
MAX_FILES: Final = 64
_BLOCK: Final = 512
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
_OCTAL = re.compile(rb" *([0-7]{1,11})[ \0]*")

# Fields of a header: offset, length
_NAME_AT, _SIZE_AT, _SUM_AT, _TYPE_AT, _MAGIC_AT, _PREFIX_AT = (
    (0, 100), (124, 12), (148, 8), (156, 1), (257, 8), (345, 155))
_MAGICS: Final = (b"ustar\x0000", b"ustar  \0")  # POSIX; what GNU tar writes where it may


def _refused(what: str) -> BootError:
    return BootError(f"launch disk: {what}", code="launch-disk",
                     hint=f"write it with: tar --format=ustar -cf DISK -C FOLDER {POLICY} …")


def _field(header: bytes, place: tuple[int, int]) -> bytes:
    return header[place[0]:place[0] + place[1]]


def _number(header: bytes, place: tuple[int, int], what: str) -> int:
    match = _OCTAL.fullmatch(_field(header, place))
    if match is None:
        raise _refused(f"{what} is not an octal number")
    return int(match[1], 8)


def _name(header: bytes) -> str:
    """The name in a header that is in form and of a plain file."""
    if _field(header, _MAGIC_AT) not in _MAGICS:
        raise _refused("not a ustar archive")
    without = header[:_SUM_AT[0]] + b" " * _SUM_AT[1] + header[sum(_SUM_AT):]
    if _number(header, _SUM_AT, "a checksum") != sum(without):
        raise _refused("the checksum of a header is wrong")
    name = _field(header, _NAME_AT)
    plain = name.rstrip(b"\0")
    strange = _field(header, _TYPE_AT) not in (b"0", b"\0") or any(_field(header, _PREFIX_AT))
    if strange or _NAME.fullmatch(plain) is None:
        raise _refused("an entry that is not a plain file with a plain name")
    return plain.decode("ascii")


def entries(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Each file of an archive with its name, as they come. BootError where it is not in form."""
    at = 0
    while any(header := data[at:at + _BLOCK]):
        if len(header) < _BLOCK:
            raise _refused("cut off in a header")
        name, size = _name(header), _number(header, _SIZE_AT, "a size")
        at += _BLOCK
        end = at + -(-size // _BLOCK) * _BLOCK
        if end > len(data) or any(data[at + size:end]):
            raise _refused(f"{name} is cut off, or padded with something")
        yield name, data[at:at + size]
        at = end
    if at >= len(data):
        raise _refused("no end of the archive")


def parse(data: bytes) -> dict[str, bytes]:
    """Every file by name; what stands behind the end of the archive is not looked at. BootError for
    anything else."""
    files: dict[str, bytes] = {}
    for name, content in entries(data):
        if name in files or len(files) >= MAX_FILES:
            raise _refused(f"{name} twice, or more than {MAX_FILES} files")
        files[name] = content
    if POLICY not in files:
        raise _refused(f"no {POLICY}")
    return files


def _head(path: Path, nbytes: int) -> bytes:
    """The first bytes of a block device or file."""
    descriptor, _ = open_file(path, disk=True)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        found = b""
        while len(found) < nbytes and (more := file.read(nbytes - len(found))):
            found += more
    return found


def read(path: Path) -> dict[str, bytes]:
    """The files of a launch disk. BootError when it cannot be read or is not one."""
    try:
        return parse(_head(path, MAX_BYTES))
    except OSError as error:
        raise _refused(f"{path}: {error.strerror}") from None
