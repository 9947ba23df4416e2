"""A host that owns the TPM: it stands between QEMU and swtpm, and extends a register behind the guest's back.

swtpm_ioctls(3): QEMU gives swtpm a descriptor for commands (CMD_SET_DATAFD) over the control channel.
"""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support import waiting

STARTUP = 0x144  # TPM_CC_Startup


def _extend(pcr: int, digest: bytes) -> bytes:
    """TPM2_PCR_Extend with an empty password (TPM 2.0 part 3, section 22.2)."""
    session = struct.pack(">IHBH", 0x40000009, 0, 0, 0)
    body = struct.pack(">II", pcr, len(session)) + session + struct.pack(">IH", 1, 0x000B) + digest
    return struct.pack(">HII", 0x8002, 10 + len(body), 0x182) + body


def _message(source: socket.socket) -> bytes:
    """One command or answer: its size is in bytes 2 to 5."""
    data = b""
    while len(data) < 10 or len(data) < struct.unpack_from(">I", data, 2)[0]:
        piece = source.recv(65536)
        if not piece:
            return b""
        data += piece
    return data


def _commands(guest: socket.socket, tpm: socket.socket, pcr: int, digest: bytes) -> None:
    """Carry commands; after the first start-up, one of our own."""
    meddled = False
    with guest, tpm, contextlib.suppress(OSError):
        while command := _message(guest):
            tpm.sendall(command)
            guest.sendall(_message(tpm))
            if not meddled and struct.unpack_from(">I", command, 6)[0] == STARTUP:
                tpm.sendall(_extend(pcr, digest))
                assert _message(tpm)[6:10] == bytes(4)
                meddled = True


def _control(guest: socket.socket, real: Path, pcr: int, digest: bytes) -> None:
    """Carry control messages; the descriptor for commands is exchanged for one of ours."""
    with guest, socket.socket(socket.AF_UNIX) as tpm, contextlib.suppress(OSError):
        tpm.connect(str(real))
        while True:
            data, extra, _, _ = guest.recvmsg(4096, socket.CMSG_SPACE(4))
            if not data:
                return
            if extra:
                handle = array.array("i")
                handle.frombytes(extra[0][2][:4])
                mine, theirs = socket.socketpair()
                with theirs:
                    tpm.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))])
                threading.Thread(target=_commands, args=(socket.socket(fileno=handle[0]), mine, pcr, digest),
                                 daemon=True).start()
            else:
                tpm.sendall(data)
            guest.sendall(tpm.recv(4096))


@contextlib.contextmanager
def machine(folder: Path, pcr: int, digest: bytes) -> Iterator[tuple[str, ...]]:
    """QEMU's words for a TPM whose register `pcr` was extended before the kernel started."""
    folder.mkdir()
    real, path = folder / "real", folder / "meddled"
    process = subprocess.Popen(
        ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}", "--ctrl", f"type=unixio,path={real}", "--flags",
         "startup-clear"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waiting.until(real.exists, "swtpm that listens")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        threading.Thread(target=lambda: _control(server.accept()[0], real, pcr, digest), daemon=True).start()
        try:
            yield ("-chardev", f"socket,id=meddled,path={path}", "-tpmdev", "emulator,id=tpm1,chardev=meddled",
                   "-device", "tpm-crb,tpmdev=tpm1")
        finally:
            process.kill()
            process.wait()
