"""A folder that becomes a file system: every file written with a fixed mode, whatever the user's
umask.

Files have mode 0644, or 0755 if they may be executed; folders 0755; owners and times are set when
it is packed.
"""

from __future__ import annotations

import fnmatch
import os
import posixpath
from collections.abc import Iterable, Iterator
from pathlib import Path

from appliance.errors import ImageError

FILE, PROGRAM, FOLDER = 0o644, 0o755, 0o755


class Tree:
    """A folder tree below `root` that is being filled."""

    def __init__(self, root: Path, links: dict[str, str] | None = None) -> None:
        self.root = root
        self._links = links or {}  # merged folders: a path through one is written to its target
        self.folder("")
        for name, target in sorted(self._links.items()):
            self.folder(target)
            self.link(name, target)

    def place(self, path: str) -> str:
        """Where a path goes once merged folders are followed. Raises ImageError if it leaves the
        tree."""
        clean = posixpath.normpath(path)
        first, _, rest = clean.partition("/")
        if clean.startswith("/") or first == "..":
            raise ImageError(f"{path} leaves the tree")
        if first in self._links and rest:
            return f"{self._links[first]}/{rest}"
        return clean

    def folder(self, path: str) -> None:
        """A folder and those above it."""
        here = self.root
        for part in ["", *filter(None, path.split("/"))]:
            here = here / part
            if not here.is_dir():
                here.mkdir(parents=True)
                here.chmod(FOLDER)

    def file(self, path: str, data: bytes, *, executable: bool = False) -> None:
        """Put a file at a path, in place of any that is there."""
        target = self._ready(path)
        target.write_bytes(data)
        target.chmod(PROGRAM if executable else FILE)

    def link(self, path: str, target: str) -> None:
        """A symbolic link."""
        self._ready(path, merge=False).symlink_to(target)

    def add(self, path: str, data: bytes, link: str | None, executable: bool) -> None:
        """A file or link as a package has it, at its merged place."""
        place = self.place(path)
        if link is None:
            self.file(place, data, executable=executable)
        else:
            self.link(place, link)

    def paths(self) -> Iterator[str]:
        """Yield every path below the root, sorted, folders before what is in them."""
        for path in sorted(self.root.rglob("*"), key=lambda path: path.relative_to(self.root).parts):
            yield path.relative_to(self.root).as_posix()

    def prune_empty(self, keep: Iterable[str]) -> None:
        """Remove folders with nothing in them but those to keep."""
        kept = set(keep)
        for path in sorted(self.paths(), reverse=True):
            full = self.root / path
            if full.is_dir() and not full.is_symlink() and path not in kept and not any(full.iterdir()):
                full.rmdir()

    def stamp(self, epoch: int) -> None:
        """Set every time stamp."""
        for path in ["", *self.paths()]:
            os.utime(self.root / path, (epoch, epoch), follow_symlinks=False)

    def _ready(self, path: str, *, merge: bool = True) -> Path:
        place = self.place(path) if merge else posixpath.normpath(path)
        self.folder(posixpath.dirname(place))
        target = self.root / place
        if target.is_symlink() or target.exists():
            target.unlink()
        return target


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Tell whether a path matches one of the patterns; `*` crosses folders."""
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)
