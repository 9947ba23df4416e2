"""The registers of a machine's TPM once the image's kernel has taken over. The image is started
under QEMU with a software TPM, and stopped when its init speaks. Then the registers are read from
that TPM. Nothing inside the guest has a say in it.

For golden values of one's own QEMU machines, and to compare predictions with.
"""

from __future__ import annotations

import array
import contextlib
import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from appliance.attestation.tpm.chip import device
from appliance.attestation.tpm.chip.client import Tpm
from appliance.errors import ImageError
from appliance.imaging.qemu import run

_SPOKEN = re.compile(rb"^init[ :]|Kernel panic", re.MULTILINE)
_SET_DATA_CHANNEL = struct.pack(">I", 0x10)  # swtpm_ioctls(3): CMD_SET_DATAFD, the descriptor beside it
_SECONDS = 10.0


class _Connected(Tpm):
    """A TPM behind a socket that is connected already."""

    def __init__(self, connection: socket.socket) -> None:
        self._path = Path("swtpm")
        self._lock = threading.Lock()
        self._file = connection.detach()


def registers(options: run.Options, seconds: float = 120.0) -> dict[int, bytes]:
    """SHA-256 PCRs by number. Raises ImageError if a tool is absent, or the guest does not speak
    within `seconds` of its processor's time, or stands still for as long.

    Tried twice: under emulation a kernel now and then dies at its first steps (QEMU 7.2,
    CMPXCHG16B).
    """
    try:
        return _registers(options, seconds)
    except _SilentError:
        return _registers(options, seconds)


class _SilentError(ImageError):
    """The guest did not speak."""


def _registers(options: run.Options, seconds: float) -> dict[int, bytes]:
    with tempfile.TemporaryDirectory(prefix="appliance-record-") as folder, _software_tpm(Path(folder)) as control:
        # -no-shutdown: a guest that ends at once stands still, and the TPM with it.
        words = ("-no-shutdown", "-chardev", f"socket,id=record,path={control}", "-tpmdev",
                 "emulator,id=record0,chardev=record", "-device", "tpm-crb,tpmdev=record0")
        with run.machine(replace(options, port=None, tpm=False, extra=(*options.extra, *words))) as command:
            _run_until_spoken(command, seconds)
        return _read(control)


@contextlib.contextmanager
def _software_tpm(folder: Path) -> Iterator[Path]:
    """A fresh swtpm that outlives its user; yields its control socket."""
    tool, control = shutil.which("swtpm"), folder / "control"
    if tool is None:
        raise ImageError("swtpm is not installed", hint="apt-get install swtpm", code="tool-missing")
    process = subprocess.Popen(  # noqa: S603
        [tool, "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--ctrl", f"type=unixio,path={control}", "--flags",
         "startup-clear"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _SECONDS
        while not control.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise ImageError("swtpm did not start", code="tool-failed")
            time.sleep(0.02)
        yield control
    finally:
        process.kill()
        process.wait()


def _run_until_spoken(command: list[str], seconds: float) -> None:
    """Start QEMU and kill it once the guest's init (or a panic) is on the console: all is measured
    by then."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)  # noqa: S603
        ended = threading.Event()
        threading.Thread(target=_end_when_overdue, args=(process, seconds, ended), daemon=True).start()
        said = b""
        try:
            while process.stdout is not None and _SPOKEN.search(said) is None:
                piece = process.stdout.read1(4096)  # type: ignore[attr-defined]
                if not piece:
                    break
                said = (said + piece.replace(b"\r", b""))[-65536:]
        finally:
            ended.set()
            process.kill()
            process.wait()
        if _SPOKEN.search(said) is None:
            errors.seek(0)
            told = (errors.read() or said).decode(errors="replace").strip()[-500:]
            raise _SilentError(f"the guest did not get as far as its init: {told or 'it said nothing'}",
                               code="qemu-failed")


def _end_when_overdue(process: subprocess.Popen[bytes], seconds: float, ended: threading.Event) -> None:
    """Kill an emulator that has used up its processor time, or has had none for as long. A busy
    machine gives it more time by the clock."""
    used, since = 0.0, time.monotonic()
    while not ended.wait(0.5):
        found = _processor_seconds(process.pid)
        if found > used:
            used, since = found, time.monotonic()
        if used > seconds or time.monotonic() - since > seconds:
            process.kill()
            return


def _processor_seconds(pid: int) -> float:
    """User and system time, fields 14 and 15 of proc_pid_stat(5)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _read(control: Path) -> dict[int, bytes]:
    mine, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(str(control))
        handle = array.array("i", [theirs.fileno()])
        connection.sendmsg([_SET_DATA_CHANNEL], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handle)])
        if connection.recv(64) != bytes(4):
            raise ImageError("swtpm gives no access to its registers", code="tool-failed")
        tpm = _Connected(mine)
        try:
            return device.read_pcrs(tpm)
        finally:
            tpm.close()
