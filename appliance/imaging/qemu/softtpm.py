"""A software TPM for a machine that QEMU runs: swtpm, made with an endorsement certificate of a
test authority.

The operator runs it, so what it says proves nothing to anybody else: it shows the mechanism.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import ImageError

_SECONDS = 10.0
AUTHORITY = "authority"  # the folder of its certificates
_CONFIGURATION = """create_certs_tool = /usr/bin/swtpm_localca
create_certs_tool_config = {folder}/localca.conf
create_certs_tool_options = {folder}/localca.options
"""
_AUTHORITY = """statedir = {folder}/authority
signingkey = {folder}/authority/signkey.pem
issuercert = {folder}/authority/issuercert.pem
certserial = {folder}/authority/certserial
"""


class SoftTpm:
    """A running swtpm; its state stays in `folder`, the authority's certificates in
    `folder/authority`."""

    def __init__(self, folder: Path, server: Path | None = None) -> None:
        """`server`: a socket for commands, where no machine is to have the TPM but this process."""
        make(folder)
        self.socket = folder / "control"
        self.socket.unlink(missing_ok=True)
        own = [] if server is None else ["--server", f"type=unixio,path={server}"]
        flags = "startup-clear" if server is None else "not-need-init,startup-clear"
        self._process = subprocess.Popen(  # noqa: S603
            ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--ctrl", f"type=unixio,path={self.socket}",  # noqa: S607
             *own, "--flags", flags, "--terminate"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        until = time.monotonic() + _SECONDS
        while not (server or self.socket).exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self.close()
                raise ImageError(f"swtpm did not start with the state in {folder}", code="tool-failed",
                                 hint="a guest may have it: end that guest first")
            time.sleep(0.02)

    def close(self) -> None:
        """Stop it."""
        self._process.terminate()
        self._process.wait()


@contextlib.contextmanager
def reached(folder: Path) -> Iterator[Path]:
    """Yield the socket of a software TPM, which is made if it is not there, and runs as long as the
    context. Raises ImageError."""
    with tempfile.TemporaryDirectory(prefix="appliance-tpm-") as scratch:
        server = Path(scratch) / "tpm"
        running = SoftTpm(folder, server)
        try:
            yield server
        finally:
            running.close()


def make(folder: Path) -> None:
    """Make a TPM and its authority in a folder, unless they are there. Raises ImageError."""
    for tool in ("swtpm", "swtpm_setup"):
        if shutil.which(tool) is None:
            raise ImageError(f"{tool} is not installed", hint="apt-get install swtpm swtpm-tools", code="tool-missing")
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "tpm2-00.permall").is_file():
        _manufacture(folder)


def _manufacture(folder: Path) -> None:
    """Make a TPM with endorsement keys and certificates, as a manufacturer would."""
    folder = folder.resolve()
    (folder / AUTHORITY).mkdir(exist_ok=True)
    (folder / "setup.conf").write_text(_CONFIGURATION.format(folder=folder))
    (folder / "localca.conf").write_text(_AUTHORITY.format(folder=folder))
    (folder / "localca.options").write_text("--platform-manufacturer appliance\n--platform-version 1\n"
                                            "--platform-model test\n")
    done = subprocess.run(  # noqa: S603
        ["swtpm_setup", "--tpm2", "--tpmstate", str(folder), "--create-ek-cert", "--create-platform-cert",  # noqa: S607
         "--config", str(folder / "setup.conf"), "--pcr-banks", "sha256", "--overwrite"],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ImageError(f"swtpm_setup failed: {(done.stdout + done.stderr).strip()[-800:]}", code="tool-failed")
