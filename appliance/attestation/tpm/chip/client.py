"""A small TPM 2.0 client: commands as data, one file descriptor, no library.

Source: Trusted Computing Group, "TPM 2.0 Library", revision 1.59: Part 1, section 18 (command and
response structure), Part 2 (structures), Part 3 (commands; each section is named in the table).
Integers are big endian. Only password authorisation with the empty password is built in; other
sessions are given as bytes by whoever needs them.

The TPM may belong to the host: every length in its answers is checked, and what it says is
evidence, not truth.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import stat
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import platforms
from appliance.attestation.tpm.abi import sized
from appliance.codec.cursor import Cursor
from appliance.errors import AttestationError

DEVICE = Path(platforms.TPM.device or "")  # with the kernel's resource manager, which keeps other users' objects apart
NO_SESSIONS, SESSIONS = 0x8001, 0x8002  # TPM_ST
HEADER_BYTES, MAX_RESPONSE_BYTES = 10, 4096
OWNER, ENDORSEMENT, PASSWORD = 0x40000001, 0x4000000B, 0x40000009  # TPM_RH_OWNER, _ENDORSEMENT, TPM_RS_PW
_RH_NULL, _SE_POLICY, _ALG_NULL, _ALG_SHA256 = 0x40000007, 0x01, 0x0010, 0x000B
SUCCESS = 0
_BUSY = (0x922, 0x908, 0x90A)  # TPM_RC_RETRY, _YIELDED, _TESTING: the same command again, later
_ATTEMPTS, _PAUSE_SECONDS = 50, 0.05
_TIMEOUT_SECONDS = 60.0        # of a simulator's socket; a device has its own


@dataclass(frozen=True)
class Command:
    """A command: its TPM_CC, its section in Part 3, how many handles need authorisation, handles in
    its answer."""

    name: str
    code: int
    section: str
    authorised: int = 0
    returns: int = 0


READ_PUBLIC = Command("TPM2_ReadPublic", 0x173, "12.4")
START_AUTH_SESSION = Command("TPM2_StartAuthSession", 0x176, "11.1", returns=1)
QUOTE = Command("TPM2_Quote", 0x158, "18.4", authorised=1)
PCR_EXTEND = Command("TPM2_PCR_Extend", 0x182, "22.2", authorised=1)
PCR_READ = Command("TPM2_PCR_Read", 0x17E, "22.4")
CREATE_PRIMARY = Command("TPM2_CreatePrimary", 0x131, "24.1", authorised=1, returns=1)
FLUSH_CONTEXT = Command("TPM2_FlushContext", 0x165, "28.4")
NV_READ_PUBLIC = Command("TPM2_NV_ReadPublic", 0x169, "31.6")
NV_READ = Command("TPM2_NV_Read", 0x14E, "31.13", authorised=1)


@dataclass(frozen=True)
class TpmAnswer:
    """A response: TPM_RC, handles, and the parameter area without sessions."""

    code: int
    handles: tuple[int, ...] = ()
    parameters: bytes = b""

    def cursor(self, what: str) -> Cursor:
        """A reader of the parameters."""
        return Cursor(self.parameters, f"TPM, {what}", "big")


def empty_password() -> bytes:
    """TPMS_AUTH_COMMAND with the empty password (Part 2, section 10.13.2)."""
    return struct.pack(">I", PASSWORD) + sized(b"") + b"\0" + sized(b"")


def session_auth(session: int) -> bytes:
    """TPMS_AUTH_COMMAND by a policy session without a key, which ends with the command that it
    authorises."""
    return struct.pack(">I", session) + sized(b"") + b"\0" + sized(b"")


def encode(command: Command, handles: Sequence[int], parameters: bytes, sessions: bytes | None) -> bytes:
    """A command's bytes. `sessions`: TPMS_AUTH_COMMANDs; None: the empty password for each handle
    that needs one."""
    if sessions is None:
        sessions = empty_password() * command.authorised
    body = b"".join(struct.pack(">I", handle) for handle in handles)
    if sessions:
        body += struct.pack(">I", len(sessions)) + sessions
    body += parameters
    tag = SESSIONS if sessions else NO_SESSIONS
    return struct.pack(">HII", tag, HEADER_BYTES + len(body), command.code) + body


def decode(command: Command, response: bytes) -> TpmAnswer:
    """The answer in a response's bytes. Raises MalformedEvidenceError."""
    cursor = Cursor(response, f"TPM, answer to {command.name}", "big")
    tag, size, code = cursor.number(2, "tag"), cursor.number(4, "size"), cursor.number(4, "response code")
    if size != len(response) or tag not in (NO_SESSIONS, SESSIONS):
        raise AttestationError(f"TPM: the answer to {command.name} is not in form", code="tpm-answer")
    if code != SUCCESS:
        return TpmAnswer(code)
    handles = tuple(cursor.number(4, "handle") for _ in range(command.returns))
    parameters = (cursor.sized(4, "parameters") if tag == SESSIONS
                  else cursor.take(cursor.left, "parameters"))
    return TpmAnswer(code, handles, parameters)


class Tpm:
    """A TPM behind a character device or a simulator's Unix socket; safe to call from several
    threads.

    Raises AttestationError when it cannot be opened or stops answering.
    """

    def __init__(self, path: Path = DEVICE) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._file = _open(path)
        except OSError as error:
            raise AttestationError(f"TPM: {path} cannot be opened: {error.strerror}", code="tpm-absent",
                                   hint="the machine needs a TPM 2.0, and the appliance access to it") from None

    def execute(self, command: Command, handles: Sequence[int] = (), parameters: bytes = b"", *,
                sessions: bytes | None = None) -> TpmAnswer:
        """The answer to a command, whatever its code; a busy TPM is asked again for a while."""
        data = encode(command, handles, parameters, sessions)
        for _ in range(_ATTEMPTS):
            with self._lock:
                answer = decode(command, self._exchange(command, data))
            if answer.code not in _BUSY:
                return answer
            time.sleep(_PAUSE_SECONDS)
        raise AttestationError(f"TPM: busy for too long with {command.name}", code="tpm-busy")

    def require(self, command: Command, handles: Sequence[int] = (), parameters: bytes = b"", *,
                sessions: bytes | None = None) -> TpmAnswer:
        """As `execute`, but any code other than success is an AttestationError that names it."""
        answer = self.execute(command, handles, parameters, sessions=sessions)
        if answer.code != SUCCESS:
            raise AttestationError(f"TPM: {command.name} was refused with code {answer.code:#05x}", code="tpm-refused",
                                   hint="TPM 2.0 Library, Part 2, section 6.6 says what the code means")
        return answer

    def _exchange(self, command: Command, data: bytes) -> bytes:
        try:
            _write(self._file, data)
            response = os.read(self._file, MAX_RESPONSE_BYTES)
            while len(response) < HEADER_BYTES or len(response) < int.from_bytes(response[2:6], "big"):
                more = os.read(self._file, MAX_RESPONSE_BYTES)
                if not more or len(response) + len(more) > MAX_RESPONSE_BYTES:
                    raise AttestationError(f"TPM: the answer to {command.name} is cut off", code="tpm-answer")
                response += more
        except OSError as error:
            raise AttestationError(f"TPM: {self._path}, {command.name}: {error.strerror}", code="tpm-absent") from None
        return response

    def flush(self, handle: int) -> None:
        """Forget a transient object or a session."""
        self.execute(FLUSH_CONTEXT, parameters=struct.pack(">I", handle))

    def close(self) -> None:
        """Close the device."""
        with contextlib.suppress(OSError):
            os.close(self._file)


def policy_session(tpm: Tpm) -> int:
    """The handle of a new policy session, with SHA-256 and neither salt nor key; whoever asks for
    it ends it."""
    parameters = sized(secrets.token_bytes(16)) + sized(b"") + struct.pack(">BHH", _SE_POLICY, _ALG_NULL, _ALG_SHA256)
    return tpm.require(START_AUTH_SESSION, (_RH_NULL, _RH_NULL), parameters).handles[0]


def _open(path: Path) -> int:
    """A file descriptor: of the device, or of a connection to a simulator's Unix socket."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if not stat.S_ISSOCK(mode):  # commands would be written into a file
        raise OSError(errno.ENODEV, "it is neither a device nor a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
        wait = struct.pack("ll", int(_TIMEOUT_SECONDS), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
        return connection.detach()


def _write(file: int, data: bytes) -> None:
    """Send a whole command: a device takes it in one write, a socket perhaps in several."""
    while data:
        data = data[os.write(file, data):]
