"""A plain model for an engine that is not ours: read once, checked against its pin, and kept in a file in memory.

Engines that take a path would read the disk a second time, after the check. So they are given a file without a name,
in memory, that nobody can change any more (memfd_create(2) with seals).
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError, ModelError
from appliance.models import gguf, pins
from appliance.models.disk import DiskFile, Progress
from appliance.models.opened import Opened
from appliance.models.tiles import Weight

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class ForeignSource(Opened):
    """A whole model file in memory. It hands out no weights: its engine takes `path`."""

    def __init__(self, path: Path, pin: bytes | None, progress: Progress | None = None) -> None:
        """Read the file at `path`. PinError for other bytes than pinned (32 bytes, SHA-256), FormatError and
        UnsupportedError for its header, ModelError for disk and memory."""
        try:
            self._descriptor = os.memfd_create("model", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise ModelError(f"no file in memory for {path}: {error.strerror or error}") from None
        try:
            self.sha256 = self._read(path, progress)
            if pin is not None:
                pins.check(path, pin, self.sha256)
            with mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) as data:
                self.gguf = gguf.parse(data)
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, progress: Progress | None) -> bytes:
        digest = hashlib.sha256()
        with DiskFile(path) as file:
            for part in file.chunks(progress):
                digest.update(part)
                self._write(part, path)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return digest.digest()

    def _write(self, part: memoryview, path: Path) -> None:
        while len(part):
            try:
                part = part[os.write(self._descriptor, part):]
            except OSError as error:
                raise ModelError(f"no memory for {path}: {error.strerror or error}", code="memory") from None

    @property
    def path(self) -> Path:
        """Where this process finds the file."""
        return Path(f"/proc/self/fd/{self._descriptor}")

    def weight(self, name: str) -> Weight:
        """None: FormatError."""
        raise FormatError(f"tensor {name!r} is for another engine")

    def vector(self, name: str) -> NDArray[np.float32]:
        """None: FormatError."""
        raise FormatError(f"tensor {name!r} is for another engine")

    def close(self) -> None:
        """Give the memory back, when the engine has let go of it."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
