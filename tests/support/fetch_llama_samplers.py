"""Fetch a build of llama.cpp whose samplers can be called: `python fetch_llama_samplers.py [DIR]`.

It comes from the wheel of xllamacpp for x86-64, pinned by SHA-256, from the package index that pip is set up for. Tests
load the one shared library of it, and nothing else. Needs only the standard library. Where it cannot be had, tests
that need it are skipped with a reason, as `fetch_llama_vocab` has it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.fetch_llama_vocab import TARGET, download

NAME = "xllamacpp-2026.10.11549-cp310-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"
SHA256 = "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"
MEMBER = "xllamacpp/xllamacpp.abi3.so"
LIBRARY = TARGET / "samplers" / "xllamacpp.abi3.so"


def main() -> int:
    """Fetch unless the library of this very wheel is there."""
    library = Path(sys.argv[1], LIBRARY.name) if len(sys.argv) > 1 else LIBRARY
    stamp = library.parent / ".sha256"
    if platform.machine() != "x86_64" or (stamp.is_file() and stamp.read_text() == SHA256):
        return 0
    print(f"fetching llama.cpp's samplers into {library.parent} (34 MB)", file=sys.stderr)
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "xllamacpp")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without llama.cpp's samplers tests are skipped",
                  file=sys.stderr)
            return 2 if required else 0
        with archive.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != SHA256:
            print(f"error: {NAME} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 2
        with zipfile.ZipFile(archive) as files:
            library.write_bytes(files.read(MEMBER))
    stamp.write_text(SHA256)
    return 0


if __name__ == "__main__":
    sys.exit(main())
