"""Fetch tools that people wrote for real services: `python fetch_tool_corpus.py [FILE]`.

They are the functions of the Berkeley Function-Calling Leaderboard, version 4, out of the wheel `bfcl-eval`, pinned by
SHA-256 (Apache-2.0). Only its JSON files are read, no code is run. As with the vocabularies: no network, a warning and
exit code 0; exit code 2 if what came is not what is pinned, or nothing came and APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path

try:
    from fetch_llama_vocab import download
except ImportError:  # imported as a module of the tests
    from tests.support.fetch_llama_vocab import download

NAME = "bfcl_eval-2026.3.23-py3-none-any.whl"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"
WANTED = re.compile(r"bfcl_eval/data/BFCL_v4_\w+\.json")
TARGET = Path(__file__).parents[2] / "build" / "tools" / f"corpus-{SHA256[:16]}.json"


def extract(archive: Path) -> list[object]:
    """The functions, each once, in the order of the files."""
    found: dict[str, object] = {}
    with zipfile.ZipFile(archive) as files:
        for name in sorted(filter(WANTED.fullmatch, files.namelist())):
            for line in files.read(name).decode().splitlines():
                entry = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
                for function in entry.get("function", []):
                    found.setdefault(json.dumps(function, sort_keys=True), function)
    return list(found.values())


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching tools of real services into {target} (2 MB)", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "bfcl-eval")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without the tools their test is skipped",
                  file=sys.stderr)
            return 2 if required else 0
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != SHA256:
            print(f"error: {NAME} has SHA-256 {digest}, expected {SHA256}", file=sys.stderr)
            return 2
        part = Path(folder, "corpus.json")
        part.write_text(json.dumps(extract(archive)))
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
