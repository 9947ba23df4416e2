"""Read a Debian package: deb(5) is an ar archive whose member `data.tar.*` holds the files.

No maintainer script is ever run, and no owner, special bit or time stamp is taken over.
"""

from __future__ import annotations

import io
import lzma
import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.errors import ImageError

_MAGIC = b"!<arch>\n"
_HEADER = 60  # bytes of an ar member's header: name 16, date 12, owner 6+6, mode 8, size 10, end 2


@dataclass(frozen=True)
class Entry:
    """A file or a link of a package, at a path without leading slash."""

    path: str
    data: bytes = b""
    link: str | None = None
    executable: bool = False


def entries(package: bytes, name: str) -> Iterator[Entry]:
    """Files and links in the order of the archive; a hard link comes as the file's copy. Raises
    ImageError if malformed."""
    seen: dict[str, Entry] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(_data(package, name)), mode="r:") as archive:
            for member in archive:
                path = _clean(member.name, name)
                if member.isfile():
                    body = archive.extractfile(member)
                    entry = Entry(path, body.read() if body else b"", executable=bool(member.mode & 0o111))
                elif member.issym():
                    entry = Entry(path, link=member.linkname)
                elif member.islnk():
                    target = seen[_clean(member.linkname, name)]
                    entry = Entry(path, target.data, target.link, target.executable)
                elif member.isdir():
                    continue
                else:
                    raise ImageError(f"{name}: {path} is neither file nor link")
                seen[path] = entry
                yield entry
    except (tarfile.TarError, KeyError, EOFError, lzma.LZMAError) as error:
        raise ImageError(f"{name}: not a Debian package: {error}") from None


def _clean(path: str, name: str) -> str:
    clean = posixpath.normpath(path).lstrip("/")
    if clean.split("/")[0] == "..":
        raise ImageError(f"{name}: {path} leaves the package")
    return clean


def _data(package: bytes, name: str) -> bytes:
    """Return the unpacked `data.tar`."""
    if not package.startswith(_MAGIC):
        raise ImageError(f"{name}: not a Debian package")
    position = len(_MAGIC)
    while position + _HEADER <= len(package):
        header = package[position:position + _HEADER]
        member = header[:16].decode("ascii", "replace").strip().rstrip("/")
        try:
            size = int(header[48:58])
        except ValueError:
            raise ImageError(f"{name}: malformed member size") from None
        body = package[position + _HEADER:position + _HEADER + size]
        if member == "data.tar.xz":
            return lzma.decompress(body)
        if member == "data.tar":
            return body
        if member.startswith("data.tar"):
            raise ImageError(f"{name}: {member} is not supported; expected data.tar.xz")
        position += _HEADER + size + (size & 1)
    raise ImageError(f"{name}: no data.tar")
