"""Fetch the public JSON Schema Test Suite: `python fetch_json_schema_tests.py [FILE]`.

It comes from the source distribution of `jsonschema`, which carries it in `json/tests`, pinned by SHA-256. Only these
JSON files are read, no code is run. As with the vocabularies: no network, a warning and exit code 0; exit code 2 if
what came is not what is pinned, or nothing came and APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

try:
    from fetch_llama_vocab import download
except ImportError:  # imported as a module of the tests
    from tests.support.fetch_llama_vocab import download

NAME = "jsonschema-4.26.0.tar.gz"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
WANTED = re.compile(r"jsonschema-4\.26\.0/json/tests/((?:draft2020-12|draft7)/.*\.json)")
TARGET = Path(__file__).parents[2] / "build" / "jsonschema" / f"suite-{SHA256[:16]}.json"


def extract(archive: Path) -> dict[str, object]:
    """All files of the two drafts, by their path."""
    found: dict[str, object] = {}
    with tarfile.open(archive) as files:
        for member in files:
            wanted = WANTED.fullmatch(member.name)
            source = files.extractfile(member) if wanted and member.isfile() else None
            if wanted and source is not None:
                found[wanted[1]] = json.load(source)
    return found


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching the JSON Schema Test Suite into {target}", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "jsonschema")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without it tests are skipped", file=sys.stderr)
            return 2 if required else 0
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            print(f"error: {NAME} has SHA-256 {found}, expected {SHA256}", file=sys.stderr)
            return 2
        part = Path(folder, "suite.json")
        part.write_text(json.dumps(extract(archive)))
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
