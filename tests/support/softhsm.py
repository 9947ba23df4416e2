"""A software token: SoftHSM, with keys that a test gives it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.require import absent, tools

PIN = "648219"
TOKEN = "keys of the team"
MODULES = (Path("/usr/lib/softhsm/libsofthsm2.so"), Path("/usr/lib64/pkcs11/libsofthsm2.so"))


def module() -> Path:
    """The token's library, or the test skips."""
    tools("softhsm2-util", package="softhsm2")
    found = next((each for each in MODULES if each.is_file()), None)
    if found is None:
        absent("libsofthsm2.so: apt-get install softhsm2")
    return found


def configure(folder: Path) -> Path:
    """Its configuration, for SOFTHSM2_CONF: tokens lie in `folder`."""
    (folder / "tokens").mkdir()
    path = folder / "softhsm2.conf"
    path.write_text(f"directories.tokendir = {folder / 'tokens'}\nobjectstore.backend = file\nlog.level = ERROR\n")
    return path


def make(folder: Path, **keys: bytes) -> None:
    """A token that has these AES keys, by label. SOFTHSM2_CONF names the configuration."""
    _util("--init-token", "--free", "--label", TOKEN, "--so-pin", "00000000", "--pin", PIN)
    for number, (label, key) in enumerate(keys.items(), 1):
        (folder / "aes.bin").write_bytes(key)
        _util("--import", str(folder / "aes.bin"), "--aes", "--token", TOKEN, "--label", label, "--id", f"{number:02x}",
              "--pin", PIN)
        (folder / "aes.bin").unlink()


def _util(*words: str) -> None:
    subprocess.run(["softhsm2-util", *words], check=True, capture_output=True)
