"""Fetch axe-core, which judges how accessible a page is: `python fetch_axe.py [FILE]`.

It comes from the wheel axe-playwright-python, pinned by SHA-256; only its `axe.min.js` is read. As with the
vocabularies: no network, a warning and exit code 0; exit code 2 if what came is not what is pinned, or nothing came
and APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from fetch_llama_vocab import download

NAME = "axe_playwright_python-0.1.8-py3-none-any.whl"
SHA256 = "fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8"
MEMBER = "axe_playwright_python/axe.min.js"
TARGET = Path(__file__).parents[2] / "build" / "axe" / f"axe-{SHA256[:16]}.min.js"


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching axe-core into {target}", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "axe-playwright-python")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without axe-core a test is skipped", file=sys.stderr)
            return 2 if required else 0
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            print(f"error: {NAME} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 2
        with zipfile.ZipFile(archive) as wheel:
            part = Path(folder, "axe.min.js")
            part.write_bytes(wheel.read(MEMBER))
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
