"""A cache of downloads by their SHA-256. Its bytes were hashed on that read; no server is trusted.

Superseded packages leave the mirrors: keep the cache of a release that has to be built again.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

from appliance.errors import ImageError
from appliance.openers import BoundedHttp, BoundedHttps

SECONDS = 3600.0  # for one download
LIMIT = 1 << 30  # bytes of one answer


def default_folder() -> Path:
    """`appliance` in the user's cache folder. Raises ImageError if the user has none."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "appliance"
    except RuntimeError:
        raise ImageError("this user has no home folder to keep downloads in",
                         hint="name one: --cache DIR, or set HOME") from None


def fetch(url: str) -> bytes:
    """Return the body at a http, https or file URL. Raises ImageError, which says why not."""
    if not url.startswith(("http://", "https://", "file://")):
        raise ImageError(f"{url}: not a http, https or file address")
    try:
        with urllib.request.build_opener(BoundedHttp(LIMIT), BoundedHttps(LIMIT)).open(url, timeout=SECONDS) as answer:
            body = bytes(answer.read(LIMIT + 1))
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ImageError(f"{url}: {error}", code="download-failed") from None
    if len(body) > LIMIT:
        raise ImageError(f"{url}: more than {LIMIT} bytes", code="download-failed")
    return body


class Downloads:
    """Files by digest in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, sha256: str, name: str, fetcher: Callable[[], bytes]) -> bytes:
        """Return the bytes with this digest: from the cache, or from `fetcher`. Raises ImageError
        if neither has them."""
        path = self.folder / sha256
        if path.is_file():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == sha256:
                return data
        data = fetcher()
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise ImageError(f"{name}: SHA-256 is {found}, the lock file says {sha256}", code="download-mismatch",
                             hint="the server has another file under this name; nothing of it was used")
        self.put(sha256, data)
        return data

    def has(self, sha256: str) -> bool:
        """Tell whether a file of this name lies there; `get` still hashes it."""
        return (self.folder / sha256).is_file()

    def put(self, sha256: str, data: bytes) -> None:
        """Keep bytes whose digest was checked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self.folder / f".{sha256}.{os.getpid()}"
        fresh.write_bytes(data)
        fresh.replace(self.folder / sha256)
