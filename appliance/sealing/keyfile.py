"""New keys of sealed models and of state disks, as files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from appliance.errors import ModelKeyError
from appliance.keys import document
from appliance.keys.providers import Secret
from appliance.secure.wipe import wipe


def make(path: Path, version: int | None = None) -> None:
    """Write 32 random bytes into a new file that only its owner can read: in hex, or with a
    `version` as a key document. Raises ModelKeyError if the file exists."""
    with Secret.random() as key:
        text = document.line(key.data) if version is None else document.make(key.data, version)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                if file.write(text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file.fileno())
        except BaseException:
            path.unlink()  # what is no whole key would be in the way of the next
            raise
    except OSError as error:
        raise ModelKeyError(f"{path} cannot be made: {error.strerror or error}",
                            hint="name a file that is not there yet, in a folder that can be written") from None
    finally:
        wipe(text)
