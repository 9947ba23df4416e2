"""SHA-256: pins as text, of a file, and of each tensor of a GGUF file, to be compared with those of
another one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.boot.planning import inspection
from appliance.errors import FormatError, PinError
from appliance.models.file.disk import CHUNK_NBYTES, Progress, RandomFile

_PIN = re.compile(r"[0-9a-f]{64}")
_SHOWN = 3  # names of tensors in an error


@dataclass(frozen=True)
class Digests:
    """Of one file."""

    sha256: bytes  # of the whole
    size: int  # bytes
    tensors: dict[str, bytes]  # by name, in the order of the file


def parse(text: str) -> bytes:
    """The 32 bytes of a pin: 64 lower-case hexadecimal digits; PinError otherwise."""
    if not _PIN.fullmatch(text):
        raise PinError(f"the SHA-256 pin has {len(text)} characters; allowed: 64 digits 0-9 a-f",
                       hint="print it with: appliance model pin FILE")
    return bytes.fromhex(text)


def sha256_of(path: Path, progress: Progress | None = None) -> tuple[bytes, int]:
    """The SHA-256 (32 bytes) and the size of a file, read once."""
    digest = hashlib.sha256()
    with RandomFile(path) as file:
        for part in file.chunks(progress):
            digest.update(part)
        return digest.digest(), file.size


def of(path: Path, progress: Progress | None = None) -> Digests:
    """Read the GGUF file at `path`: tensors are of the bytes that the whole digest is of.
    FormatError for what is none, ModelError for the disk, TamperedError when it becomes shorter
    meanwhile."""
    if inspection.is_sealed(path):
        raise FormatError(f"{path} is sealed; needed: a GGUF file", hint="unseal it first")
    places = sorted(inspection.header(path).tensors.values(), key=lambda info: info.offset)
    with RandomFile(path) as file:
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


def compare(path: Path, found: Mapping[str, bytes], original: Path, expected: Mapping[str, bytes]) -> None:
    """PinError, which names the first tensors that differ, unless all tensors are the same."""
    wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if wrong:
        named = ", ".join(repr(name) for name in wrong[:_SHOWN]) + (" and others" if len(wrong) > _SHOWN else "")
        raise PinError(f"{path} and {original} differ in {len(wrong)} of {len({**expected, **found})} tensors: {named}",
                       code="model-tensors", hint="one of them is another model, or a damaged one")
