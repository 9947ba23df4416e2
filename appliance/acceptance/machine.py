"""A machine that boots an image by a command, and its console.

The command is `appliance image boot`, or an owner's own for a machine that boots in another way. It
gets the same words: the image's folder, `--port PORT`, and options. It prints the guest's console,
and ends when it gets SIGTERM.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ApplianceError

BOOT = (sys.executable, "-m", "appliance", "image", "boot")
MAX_CONSOLE = 1 << 18  # the last bytes of it are kept
_READY = b"ready on"
_END_SECONDS = 30
_PRIVATE = ("--tpm-state", "--state")  # what two machines cannot have at the same time


class AcceptanceError(ApplianceError):
    """A machine that cannot be accepted, or a bundle that is not whole."""

    code = "acceptance"


@dataclass(frozen=True)
class Launch:
    """A launch: the folder of the image that boots, and options for the command."""

    image: Path
    words: tuple[str, ...] = ()

    def beside(self, folder: Path) -> Launch:
        """Return a launch beside this, with copies of its TPM and its state disk."""
        words = list(self.words)
        for at, word in enumerate(words[:-1]):
            if word in _PRIVATE:
                source, copy = Path(words[at + 1]), folder / word.strip("-")
                if source.is_dir():
                    shutil.copytree(source, copy, ignore=_transient)
                else:
                    shutil.copyfile(source, copy)
                words[at + 1] = str(copy)
        return Launch(self.image, tuple(words))


class Machine:
    """A machine that boots. `console` is what it printed last."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url, self._process = url, process
        self._console = bytearray()
        self._ready, self._over = threading.Event(), threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def console(self) -> bytes:
        """Return what it printed, the last part."""
        return bytes(self._console)

    def ready(self, seconds: float) -> bool:
        """Wait until the guest serves; whether it does. It does not if it ends before, or takes
        longer."""
        self._over.wait(seconds)
        return self._ready.is_set()

    def end(self) -> None:
        """Switch it off."""
        self._process.terminate()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._console += line
            del self._console[:-MAX_CONSOLE]
            if _READY in line:
                self._ready.set()
                self._over.set()
        self._over.set()


@contextlib.contextmanager
def boot(launch: Launch, command: Sequence[str], scheme: str) -> Iterator[Machine]:
    """Start a machine; it is switched off in the end. Raises AcceptanceError if the command cannot
    be run."""
    port = _free_port()
    words = [*command, str(launch.image), "--port", str(port), *launch.words]
    try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,  # noqa: S603 - the owner's
                                   stderr=subprocess.STDOUT)
    except OSError as error:
        raise AcceptanceError(f"{words[0]} cannot be run: {error.strerror}", code="acceptance-command",
                              hint="name a command that boots an image: --boot-command WORDS") from None
    machine = Machine(process, f"{scheme}://127.0.0.1:{port}")
    try:
        yield machine
    finally:
        machine.end()


def _transient(folder: str, names: list[str]) -> list[str]:
    """Return the names in a TPM's folder that belong to its process: sockets and its lock."""
    there = Path(folder)
    return [name for name in names if name == ".lock" or not ((there / name).is_file() or (there / name).is_dir())]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
