"""Keys of sealed models: how they are kept while they are needed, and who provides them.

A provider hands out one secret of 32 bytes and is asked once. The providers here read it from the
operator (a file, an environment variable, a systemd credential): the policy allows them on the
simulated platform alone. Providers that release a key after attestation implement the same
protocol.

Secrets live in a bytearray that is wiped after use, at the latest when nothing refers to it. Python
and the kernel may still hold copies that nothing can reach: of an environment variable, for one.
"""

from __future__ import annotations

import os
import stat
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from appliance import isolated
from appliance.codec.regularfile import WrongKindError, open_file
from appliance.errors import ModelKeyError
from appliance.keys import document
from appliance.keys.document import NBYTES
from appliance.secure.locked import SecretBytes, fill_randomly
from appliance.secure.wipe import wipe


class Secret:
    """32 secret bytes. Use as a context manager: they are wiped at its end."""

    def __init__(self, data: bytearray) -> None:
        """Take over `data`, which this object wipes. ModelKeyError unless it is 32 bytes, not all
        zero."""
        if len(data) != NBYTES or not any(data):
            length = len(data)
            wipe(data)
            raise ModelKeyError(f"the key has {length} bytes, or they are all zero; needed: {NBYTES} random bytes")
        self._data = data
        weakref.finalize(self, wipe, data)  # at the end of the process at the latest

    @classmethod
    def random(cls) -> Self:
        """A new one."""
        data = SecretBytes(NBYTES)
        fill_randomly(data)
        return cls(data)

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

    def copy(self) -> Self:
        """Another one with the same bytes. ModelKeyError after `wipe`."""
        return type(self)(SecretBytes(self.data))

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

    def __init__(self, path: Path, version: int | None = None, *, bare: bool = False) -> None:
        """`version`: the one that is accepted, here and in the other providers; None for any.
        `bare`: a key that tells no version is, too."""
        self._path, self._version, self._bare = path, version, bare

    def key(self) -> Secret:
        """Read the file. ModelKeyError for a file that others may read, or that holds anything but
        one key."""
        text = _read_private(self._path)
        try:
            return Secret(document.accept(text, str(self._path), self._version, bare=self._bare))
        finally:
            wipe(text)


class EnvironmentKey:
    """A key in an environment variable."""

    def __init__(self, variable: str, environment: Mapping[bytes, bytes] | None = None,
                 version: int | None = None) -> None:
        self._variable, self._version = variable, version
        self._environment = environment

    def key(self) -> Secret:
        """Read the variable. ModelKeyError when it is not set or holds anything but one key."""
        given = self._environment
        value = isolated.lookup(self._variable) if given is None else given.get(self._variable.encode())
        if value is None:
            raise ModelKeyError(f"the environment variable {self._variable} is not set")
        text = SecretBytes(value)
        try:
            return Secret(document.accept(text, f"the environment variable {self._variable}", self._version))
        finally:
            wipe(text)
            if isinstance(value, bytearray):
                wipe(value)


class CredentialKey:
    """A key that systemd passes as a credential: a file in $CREDENTIALS_DIRECTORY."""

    def __init__(self, name: str, environment: Mapping[str, str] | None = None, version: int | None = None) -> None:
        self._name, self._version = name, version
        self._environment = environment

    def key(self) -> Secret:
        """Read the credential. ModelKeyError when there is none of this name, and as `FileKey`."""
        if self._environment is None:
            folder = os.fsdecode(bytes(isolated.lookup("CREDENTIALS_DIRECTORY") or b""))
        else:
            folder = self._environment.get("CREDENTIALS_DIRECTORY", "")
        if not folder:
            raise ModelKeyError("CREDENTIALS_DIRECTORY is not set: systemd passed no credentials",
                                hint=f"start the service with LoadCredential={self._name}:FILE")
        if "/" in self._name or self._name in (".", ".."):
            raise ModelKeyError(f"{self._name!r} is no name of a credential")
        return FileKey(Path(folder) / self._name, self._version).key()


def _read_private(path: Path) -> bytearray:
    """The bytes of a short file of mode 0600 or stricter, owned by this user or root."""
    try:
        descriptor, status = open_file(path)
    except WrongKindError:
        raise ModelKeyError(f"the key file {path} is not a regular file",
                            hint="name a file of mode 0600 that holds the key, and that you may read") from None
    except OSError as error:
        raise ModelKeyError(f"the key file {path} cannot be opened: {error.strerror or error}",
                            hint="name a file of mode 0600 that holds the key, and that you may read") from None
    buffer = SecretBytes(document.LONGEST + 1)
    try:
        if status.st_mode & 0o077 or status.st_uid not in (0, os.geteuid()):
            raise ModelKeyError(f"the key file {path} has mode {stat.S_IMODE(status.st_mode):04o} and owner "
                                f"{status.st_uid}; allowed: 0600, owned by this user or root",
                                hint=f"chmod 600 {path}")
        count = os.readv(descriptor, [buffer])
        return SecretBytes(memoryview(buffer)[:count])
    except OSError as error:
        raise ModelKeyError(f"the key file {path} cannot be read: {error.strerror or error}") from None
    finally:
        os.close(descriptor)
        wipe(buffer)
