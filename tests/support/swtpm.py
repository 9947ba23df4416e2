"""A software TPM in a process of its own, and tpm2-tools as an independent judge of what our client makes of it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support import waiting
from tests.support.require import tools

MEMORY = Path("/dev/shm")  # noqa: S108 - not a shared name: a fresh folder in it


@contextlib.contextmanager
def running(state: Path | None = None, *, manufactured: bool = False) -> Iterator[Path]:
    """The path of a TPM's socket: of a fresh one, or of the one in `state`. `manufactured`: with an endorsement key
    certificate, by swtpm_setup."""
    tools("swtpm", *(("swtpm_setup", "swtpm_localca") if manufactured else ()), package="swtpm swtpm-tools")
    # A short path, since sockets have at most 107 bytes; in memory where there is some: a TPM writes its state through
    # to the disk at every step, which takes seconds where others keep the disk busy.
    with tempfile.TemporaryDirectory(prefix="swtpm-", dir=MEMORY if MEMORY.is_dir() else None) as name:
        folder = Path(name)
        if manufactured:
            manufacture(folder)
        process = subprocess.Popen(
            ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state or folder}", "--server",
             f"type=unixio,path={folder / 'tpm'}", "--ctrl", f"type=unixio,path={folder / 'tpm.ctrl'}",
             "--flags", "not-need-init,startup-clear"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            waiting.until(lambda: process.poll() is not None or _listens(folder / "tpm"), "swtpm that listens")
            assert process.poll() is None, "swtpm did not start"
            yield folder / "tpm"
        finally:
            process.terminate()
            process.wait(20)


def _listens(path: Path) -> bool:
    """Whether the socket is there and listened on, which on a busy machine comes a moment later."""
    with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        client.connect(str(path))
        return True
    return False


def manufacture(folder: Path) -> None:
    """Give a TPM an endorsement key with a certificate by an authority made for it."""
    (folder / "ca").mkdir()
    (folder / "localca.conf").write_text(
        f"statedir = {folder / 'ca'}\nsigningkey = {folder / 'ca/key.pem'}\nissuercert = {folder / 'ca/cert.pem'}\n"
        f"certserial = {folder / 'ca/serial'}\n")
    (folder / "options.conf").write_text("")
    (folder / "setup.conf").write_text(
        f"create_certs_tool = {shutil.which('swtpm_localca')}\n"
        f"create_certs_tool_config = {folder / 'localca.conf'}\n"
        f"create_certs_tool_options = {folder / 'options.conf'}\n")
    subprocess.run(["swtpm_setup", "--tpm2", "--tpmstate", str(folder), "--create-ek-cert", "--config",
                    str(folder / "setup.conf"), "--overwrite", "--log", str(folder / "setup.log")],
                   check=True, capture_output=True, timeout=600)


def tpm2_tools(*names: str) -> None:
    """The judges must be there before a test makes anything in a TPM."""
    tools(*names, package="tpm2-tools")


def checkquote(folder: Path, *, public: bytes, message: bytes, signature: bytes, data: bytes) -> bool:
    """Whether tpm2_checkquote accepts a quote: key in PEM, qualifying data. A test asks for the tool (`tpm2_tools`)
    before it makes the quote."""
    for name, content in (("key.pem", public), ("message", message), ("signature", signature)):
        (folder / name).write_bytes(content)
    done = subprocess.run(
        ["tpm2_checkquote", "-u", "key.pem", "-m", "message", "-s", "signature", "-g", "sha256", "-q", data.hex()],
        cwd=folder, capture_output=True, timeout=600, check=False)
    return done.returncode == 0
