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
from appliance.models.file import shards
from appliance.models.file.disk import CHUNK_NBYTES, Progress
from appliance.models.file.pins import Hashes

_PIN = re.compile(r"[0-9a-f]{64}")
_SHOWN = 3  # names of tensors in an error


@dataclass(frozen=True)
class Digests:
    """SHA-256 of one file, and of its tensors."""

    sha256: bytes  # its pin: of the whole file, or of its shards
    size: int  # bytes
    tensors: dict[str, bytes]  # by name, in the order of the file
    shards: tuple[bytes, ...] = ()  # SHA-256 of each; none of a file that is whole


def parse(text: str) -> bytes:
    """Return the 32 bytes of a pin: 64 lower-case hexadecimal digits; PinError otherwise."""
    if not _PIN.fullmatch(text):
        raise PinError(f"the SHA-256 pin has {len(text)} characters; allowed: 64 digits 0-9 a-f",
                       hint="print it with: appliance model pin FILE")
    return bytes.fromhex(text)


def hashes_of(path: Path, progress: Progress | None = None) -> tuple[Hashes, int]:
    """Return the digests of a model file and its size in bytes, with all shards where it is the
    first of several. Read once."""
    with shards.open_model(path) as file:
        found = Hashes(file.parts)
        for part in file.chunks(progress):
            found.update(part)
        return found, sum(size for _, size in file.parts)


def of(path: Path, progress: Progress | None = None) -> Digests:
    """Read the GGUF file at `path`: tensors are of the bytes that the whole digest is of. Raises
    FormatError for what is none, ModelError for the disk, TamperedError when it becomes shorter
    meanwhile."""
    if inspection.is_sealed(path):
        raise FormatError(f"{path} is sealed; needed: a GGUF file", hint="unseal it first")
    places = sorted(inspection.header(path).tensors.values(), key=lambda info: info.offset)
    with shards.open_model(path) as file:
        whole, found, at = Hashes(file.parts), dict[str, bytes](), 0
        buffer = memoryview(bytearray(CHUNK_NBYTES))

        def read(end: int, *more: hashlib._Hash) -> None:
            nonlocal at
            while at < end:
                view = buffer[:end - at]
                file.read_into(view, at)
                whole.update(view)
                for digest in more:
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
        return Digests(whole.pin, sum(size for _, size in file.parts), found, tuple(whole.shards))


def compare(path: Path, found: Mapping[str, bytes], original: Path, expected: Mapping[str, bytes]) -> None:
    """PinError, which names the first tensors that differ, unless all tensors are the same."""
    wrong = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if wrong:
        named = ", ".join(repr(name) for name in wrong[:_SHOWN]) + (" and others" if len(wrong) > _SHOWN else "")
        raise PinError(f"{path} and {original} differ in {len(wrong)} of {len({**expected, **found})} tensors: {named}",
                       code="model-tensors", hint="one of them is another model, or a damaged one")
