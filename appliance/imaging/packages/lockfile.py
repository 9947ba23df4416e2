"""Lock files: one artefact a line, in columns, sorted; `#` begins a comment.

`packages.lock` columns: role, name, version, size, SHA-256, archive, path in the archive.
`wheels.lock` columns: name, version, size, SHA-256, file name. The header line `# epoch N` is the
build's time stamp, the newest date of the indices that it was resolved from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TypeVar

from appliance.errors import ImageError

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, order=True)
class Package:
    """A Debian package."""

    role: str
    name: str
    version: str
    size: int  # bytes
    sha256: str
    archive: str
    path: str


@dataclass(frozen=True, order=True)
class Wheel:
    """A Python wheel."""

    name: str
    version: str
    size: int  # bytes
    sha256: str
    file: str


Row = TypeVar("Row", Package, Wheel)


def read_packages(path: Path) -> tuple[int, tuple[Package, ...]]:
    """Return the build's epoch (seconds), and every package. Raises ImageError, which names the
    line."""
    return _epoch(path), _read(path, lambda words: Package(
        words[0], words[1], words[2], int(words[3]), words[4], words[5], words[6]), 7)


def read_wheels(path: Path) -> tuple[Wheel, ...]:
    """Return every wheel. Raises ImageError, which names the line."""
    return _read(path, lambda words: Wheel(words[0], words[1], int(words[2]), words[3], words[4]), 5)


def write(path: Path, rows: Iterable[Package | Wheel], header: Iterable[str]) -> None:
    """Write a lock file whole, or leave the old one."""
    text = "".join(f"# {line}\n" for line in header)
    text += "".join(" ".join(str(value) for value in astuple(row)) + "\n" for row in sorted(rows))
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text, encoding="ascii")
    fresh.replace(path)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ImageError(f"{path}: {error.strerror}", hint="write it: appliance image lock") from None


def _epoch(path: Path) -> int:
    for line in _lines(path):
        found = re.fullmatch(r"# epoch (\d+)", line)
        if found:
            return int(found[1])
    raise ImageError(f"{path}: no line `# epoch SECONDS`", hint="write it again: appliance image lock")


def _read(path: Path, make: Callable[[list[str]], Row], columns: int) -> tuple[Row, ...]:
    rows = []
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if not words or line.startswith("#"):
            continue
        try:
            if len(words) != columns:
                raise ValueError(f"{len(words)} columns, expected {columns}")
            row = make(words)
        except ValueError as error:
            raise ImageError(f"{path}:{number}: {error}") from None
        if not _SHA256.match(row.sha256):
            raise ImageError(f"{path}:{number}: {row.sha256!r} is not a SHA-256")
        rows.append(row)
    return tuple(rows)
