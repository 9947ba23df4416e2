"""Wheels for the image's CPython: fetched by pip (which knows the machine's index), accepted only
by their SHA-256."""

from __future__ import annotations

import hashlib
import io
import posixpath
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from appliance.errors import ImageError
from appliance.imaging.packages.downloads import Downloads
from appliance.imaging.packages.lockfile import Wheel
from appliance.imaging.recipe.recipe import Recipe


def read(requirements: Path) -> str:
    """Return a hash-locked requirements file. Raises ImageError."""
    try:
        return requirements.read_text(encoding="utf-8")
    except OSError as error:
        raise ImageError(f"{requirements} cannot be read: {error.strerror}",
                         hint="run from a checkout, or name the file with --requirements") from None
    except UnicodeDecodeError as error:
        raise ImageError(f"{requirements}: byte {error.start} is not UTF-8; needed: hash-locked requirements of pip",
                         hint="uv pip compile --generate-hashes, as in the checkout's Makefile") from None


def resolve(recipe: Recipe, requirements: str, downloads: Downloads) -> list[Wheel]:
    """Return the wheels of hash-locked requirements, without what the recipe leaves out; they are
    kept in the cache."""
    listed = re.split(r"\n(?=\S)", requirements)
    wanted = "\n".join(entry for entry in listed if _distribution(entry) not in recipe.wheels_leave_out)
    if split := re.search(r"^([^\s;]++) ?;[^\n]*python(?:_full)?_version", wanted, re.MULTILINE):
        raise ImageError(f"{split[1]} is for some versions of Python: pip goes by the one it runs in, not the image's",
                         hint="lock one version for all, by a bound in pyproject.toml")
    rows = []
    for file, data in _download(recipe, wanted):
        digest = hashlib.sha256(data).hexdigest()
        downloads.put(digest, data)
        name, version = file.split("-")[:2]
        rows.append(Wheel(name.replace("_", "-").lower(), version, len(data), digest, file))
    return rows


def fetch(recipe: Recipe, wheels: Iterable[Wheel], downloads: Downloads) -> None:
    """Bring wheels that the cache lacks into it. Raises ImageError if one cannot be had."""
    missing = [wheel for wheel in wheels if not downloads.has(wheel.sha256)]
    if not missing:
        return
    text = "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in missing)
    for _, data in _download(recipe, text):
        downloads.put(hashlib.sha256(data).hexdigest(), data)


def entries(wheel: bytes, name: str) -> Iterator[tuple[str, bytes]]:
    """Files of a wheel by their path below the site folder; scripts and headers are left out."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                path = posixpath.normpath(info.filename)
                placed = re.fullmatch(r"[^/]+\.data/(?:purelib|platlib)/(.+)", path)
                if info.is_dir() or (placed is None and re.match(r"[^/]+\.data/", path)):
                    continue
                if path.startswith(("/", "../")):
                    raise ImageError(f"{name}: {path} leaves the wheel")
                yield placed[1] if placed else path, archive.read(info)
    except zipfile.BadZipFile as error:
        raise ImageError(f"{name}: not a wheel: {error}") from None


def _distribution(entry: str) -> str:
    return re.split(r"[ =<>;\[]", entry, maxsplit=1)[0].replace("_", "-").lower()


def _download(recipe: Recipe, requirements: str) -> list[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder, "requirements.txt")
        listed.write_text(requirements, encoding="utf-8")
        into = Path(folder, "wheels")
        tag = "cp" + recipe.wheels_python.replace(".", "")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps",
                   "--only-binary", ":all:", "--require-hashes", "--python-version", recipe.wheels_python,
                   "--implementation", "cp", "--abi", tag, "--abi", "abi3", "--abi", "none", "-d", str(into),
                   "-r", str(listed)]
        for platform in recipe.wheels_platforms:
            command += ["--platform", platform]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode != 0:
            raise ImageError(f"pip cannot fetch the wheels: {done.stderr.strip()[-1500:]}", code="download-failed",
                             hint="pip needs its index; wheels in the cache are not fetched again")
        return [(path.name, path.read_bytes()) for path in sorted(into.iterdir())]
