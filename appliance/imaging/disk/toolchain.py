"""Run programs of pinned packages where they were unpacked, by their own loader and libraries.

So an image's bytes depend on the lock files, not on what the build machine has installed; no
chroot, no privilege.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from appliance.errors import ImageError

LOADER = "usr/lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class Toolchain:
    """Programs below a folder of unpacked packages."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line that runs a program, given by its path below the root."""
        return [str(self.root / LOADER), "--library-path", str(self.root / LIBRARIES),
                str(self.root / program), *arguments]

    def run(self, program: str, *arguments: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None
            ) -> str:
        """Run a program with a fixed environment, and return its output. Raises ImageError with its
        last words if it fails."""
        done = subprocess.run(  # noqa: S603  a pinned program
            self.command(program, *arguments), cwd=cwd, capture_output=True, text=True, check=False, errors="replace",
            umask=0o022, env={"LC_ALL": "C", "TZ": "UTC", "PATH": "", **(environment or {})})
        if done.returncode != 0:
            words = (done.stderr or done.stdout).strip()[-1500:]
            raise ImageError(f"{Path(program).name} ended with {done.returncode}: {words}", code="tool-failed")
        return done.stdout
