"""Keys of sealed models: how they are kept while they are needed, and who provides them.

A provider hands out one secret of 32 bytes and is asked once. The providers here read it from the operator (a file,
an environment variable, a systemd credential): the policy allows them on the simulated platform alone. Providers that
release a key after attestation implement the same protocol.

Secrets live in a bytearray that is wiped after use. Python and the kernel may still hold copies that nothing can
reach: of an environment variable, for one.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from appliance.errors import ModelKeyError
from appliance.models.disk_random import wipe

NBYTES = 32
_HEX = b"0123456789abcdef"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_LONGEST_FILE = 128  # bytes; a key in either spelling and a line feed are 65 at most


class Secret:
    """32 secret bytes. Use as a context manager: they are wiped at its end."""

    def __init__(self, data: bytearray) -> None:
        """Take over `data`, which this object wipes. ModelKeyError unless it is 32 bytes, not all zero."""
        if len(data) != NBYTES or not any(data):
            length = len(data)
            wipe(data)
            raise ModelKeyError(f"the key has {length} bytes, or they are all zero; needed: {NBYTES} random bytes")
        self._data = data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.wipe()

    def __repr__(self) -> str:
        return "Secret(...)"

    @property
    def data(self) -> bytearray:
        """The bytes, not copied. ModelKeyError after `wipe`."""
        if not any(self._data):
            raise ModelKeyError("the key was wiped")
        return self._data

    def wipe(self) -> None:
        """Overwrite the bytes."""
        wipe(self._data)


class KeyProvider(Protocol):
    """Where the key of one sealed model comes from."""

    def key(self) -> Secret:
        """The key; the caller wipes it. ModelKeyError when it cannot be had."""
        ...


class FileKey:
    """A key in a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def key(self) -> Secret:
        """Read the file. ModelKeyError for a file that others may read, or that holds anything but one key."""
        text = _read_private(self._path)
        try:
            return Secret(decode(text, str(self._path)))
        finally:
            wipe(text)


class EnvironmentKey:
    """A key in an environment variable."""

    def __init__(self, variable: str, environment: Mapping[bytes, bytes] | None = None) -> None:
        self._variable = variable
        self._environment = os.environb if environment is None else environment

    def key(self) -> Secret:
        """Read the variable. ModelKeyError when it is not set or holds anything but one key."""
        value = self._environment.get(self._variable.encode())
        if value is None:
            raise ModelKeyError(f"the environment variable {self._variable} is not set")
        text = bytearray(value)
        try:
            return Secret(decode(text, f"the environment variable {self._variable}"))
        finally:
            wipe(text)


class CredentialKey:
    """A key that systemd passes as a credential: a file in $CREDENTIALS_DIRECTORY."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None) -> None:
        self._name = name
        self._environment = os.environ if environment is None else environment

    def key(self) -> Secret:
        """Read the credential. ModelKeyError when there is none of this name, and as `FileKey`."""
        folder = self._environment.get("CREDENTIALS_DIRECTORY")
        if not folder:
            raise ModelKeyError("CREDENTIALS_DIRECTORY is not set: systemd passed no credentials",
                                hint=f"start the service with LoadCredential={self._name}:FILE")
        if "/" in self._name or self._name in (".", ".."):
            raise ModelKeyError(f"{self._name!r} is no name of a credential")
        return FileKey(Path(folder) / self._name).key()


def new_key_file(path: Path) -> None:
    """Write 32 random bytes in hex into a new file that only its owner can read. ModelKeyError when it exists."""
    key = bytearray(secrets.token_bytes(NBYTES))
    text = bytearray(_HEX[half] for byte in key for half in (byte >> 4, byte & 15)) + b"\n"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(text)
            os.fsync(file.fileno())
    except OSError as error:
        raise ModelKeyError(f"{path} cannot be made: {error.strerror or error}") from None
    finally:
        wipe(key)
        wipe(text)


def decode(text: bytearray, where: str) -> bytearray:
    """The 32 bytes of a key as text: 64 lower-case hexadecimal digits, or 44 characters of base64 with its padding; a
    line feed may follow. ModelKeyError, which tells nothing of the text, for anything else."""
    end = len(text) - 1 if text.endswith(b"\n") else len(text)
    if end == 64:
        values = [_HEX.find(text[i]) for i in range(64)]
        if min(values) >= 0:
            return bytearray(high << 4 | low for high, low in zip(values[::2], values[1::2], strict=True))
    if end == 44 and text[43] == ord("="):
        values = [_BASE64.find(text[i]) for i in range(43)]
        if min(values) >= 0 and values[42] & 3 == 0:
            return _from_sixes(values)
    raise ModelKeyError(f"{where}: {len(text)} bytes that are no key; allowed: {NBYTES} bytes as 64 digits 0-9 a-f, or "
                        "as 44 characters of base64", hint="make one with: appliance model key FILE")


def _from_sixes(values: list[int]) -> bytearray:
    """43 values of 6 bits, the last of which counts 4 bits, as 32 bytes."""
    out = bytearray()
    bits = count = 0
    for value in values:
        bits, count = (bits << 6 | value) & 0xFFFF, count + 6
        if count >= 8:
            count -= 8
            out.append(bits >> count & 0xFF)
    return out


def _read_private(path: Path) -> bytearray:
    """The bytes of a short file of mode 0600 or stricter, owned by this user or root."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ModelKeyError(f"the key file {path} cannot be opened: {error.strerror or error}") from None
    buffer = bytearray(_LONGEST_FILE)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelKeyError(f"the key file {path} is not a regular file")
        if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise ModelKeyError(f"the key file {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner "
                                f"{status.st_uid}; allowed: 0600, owned by this user or root",
                                hint=f"chmod 600 {path}")
        count = os.readv(descriptor, [buffer])
        return buffer[:count]
    except OSError as error:
        raise ModelKeyError(f"the key file {path} cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
        wipe(buffer)
