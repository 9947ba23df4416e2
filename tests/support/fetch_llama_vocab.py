"""Fetch llama.cpp's vocabularies, their expected tokens and its chat templates: `python fetch_llama_vocab.py [DIR]`.

They come from the source distribution of llama-cpp-python, which vendors llama.cpp, pinned by SHA-256, from the
package index that pip is set up for (PIP_INDEX_URL, or else its own default). Only data files are unpacked, none of its
code is run. Needs only the standard library. Where the index cannot be reached, tests that need the files are
skipped with a reason: exit code 0 all the same, so that `make test` works without a network. Exit code 2: what came
is not what is pinned, or nothing came and APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
import sys
import tarfile
import tempfile
import urllib.parse
import urllib.request
from pathlib import Path

from pip._internal.models.index import PyPI  # where pip itself looks when nothing is configured

NAME = "llama_cpp_python-0.3.36.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
TARGET = Path(__file__).parents[2] / "build" / "llama.cpp"
WANTED = re.compile(
    r"[^/]+/vendor/llama\.cpp/(models/(?:ggml-vocab-[^/]+\.gguf(?:\.inp|\.out)?|templates/[^/]+\.jinja))")


def _open(url: str) -> object:
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT"))
    return urllib.request.urlopen(url, timeout=60, context=context)  # noqa: S310 - the index that pip uses


def download(target: Path, name: str = NAME, project: str = "llama-cpp-python") -> None:
    """Write the source distribution `name` to `target`; OSError when the index does not have it."""
    index = (os.environ.get("PIP_INDEX_URL") or PyPI.simple_url).rstrip("/") + f"/{project}/"
    with _open(index) as page:  # type: ignore[attr-defined]
        links = re.findall(r'href="([^"]*/' + re.escape(name) + r'[^"]*)"', page.read().decode("utf-8", "replace"))
    if not links:
        raise OSError(f"{index} does not list {name}")
    with _open(urllib.parse.urljoin(index, links[0])) as source, target.open("wb") as sink:  # type: ignore[attr-defined]
        shutil.copyfileobj(source, sink, 1 << 20)


def unpack(archive: Path, target: Path) -> int:
    """Unpack the data files below `target`; return their number."""
    count = 0
    with tarfile.open(archive) as files:
        for member in files:
            wanted = WANTED.fullmatch(member.name)
            source = files.extractfile(member) if wanted and member.isfile() else None
            if wanted and source is not None:
                path = target / wanted[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
                count += 1
    return count


def main() -> int:
    """Fetch unless the files of this very archive are there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    stamp = target / ".sha256"
    if stamp.is_file() and stamp.read_text() == SHA256:
        return 0
    print(f"fetching llama.cpp's vocabularies into {target} (77 MB)", file=sys.stderr)
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive)
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without llama.cpp's vocabularies tests are skipped",
                  file=sys.stderr)
            return 2 if required else 0
        with archive.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != SHA256:
            print(f"error: {NAME} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 2
        unpack(archive, target)
    stamp.write_text(SHA256)
    return 0


if __name__ == "__main__":
    sys.exit(main())
