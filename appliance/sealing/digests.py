"""The SHA-256 of each tensor of a GGUF file, to be compared with those of another file, sealed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.boot import inspection
from appliance.errors import FormatError, PinError
from appliance.models.disk import CHUNK_NBYTES, Progress
from appliance.models.disk_random import RandomFile

_SHOWN = 3  # names of tensors in an error


@dataclass(frozen=True)
class Digests:
    """Of one file."""

    sha256: bytes  # of the whole
    size: int  # bytes
    tensors: dict[str, bytes]  # by name, in the order of the file


def of(path: Path, progress: Progress | None = None) -> Digests:
    """Read the GGUF file at `path`: tensors are of the bytes that the whole digest is of. FormatError for what is
    none, ModelError for the disk, TamperedError when it becomes shorter meanwhile."""
    if inspection.is_sealed(path):
        raise FormatError(f"{path} is sealed; needed: a GGUF file", hint="unseal it first")
    places = sorted(inspection.header(path).tensors.values(), key=lambda info: info.offset)
    file = RandomFile(path)
    try:
        whole, found, at = hashlib.sha256(), dict[str, bytes](), 0
        buffer = memoryview(bytearray(CHUNK_NBYTES))

        def read(end: int, *more: hashlib._Hash) -> None:
            nonlocal at
            while at < end:
                view = buffer[:end - at]
                file.read_into(view, at)
                for digest in (whole, *more):
                    digest.update(view)
                at += len(view)
                if progress is not None:
                    progress(at, file.size)

        for info in places:
            read(info.offset)
            part = hashlib.sha256()
            read(info.offset + info.nbytes, part)
            found[info.name] = part.digest()
        read(file.size)
        return Digests(whole.digest(), file.size, found)
    finally:
        file.close()


def compare(path: Path, found: Mapping[str, bytes], original: Path, expected: Mapping[str, bytes]) -> None:
    """PinError, which names the first tensors that differ, unless all tensors are the same."""
    wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if wrong:
        named = ", ".join(repr(name) for name in wrong[:_SHOWN]) + (" and others" if len(wrong) > _SHOWN else "")
        raise PinError(f"{path} and {original} differ in {len(wrong)} of {len({**expected, **found})} tensors: {named}",
                       code="model-tensors", hint="one of them is another model, or a damaged one")
