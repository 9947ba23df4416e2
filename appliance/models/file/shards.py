"""A model in several GGUF files, its shards, read as one file.

    NAME-00001-of-00003.gguf    all metadata, and the first tensors
    NAME-00002-of-00003.gguf    split.no, split.count, split.tensors.count; more tensors
    NAME-00003-of-00003.gguf    the same, and the rest

Each is a GGUF file of its own. Source: `llama-gguf-split` of llama.cpp, and `llama_model_loader`
where it reads `split.*`. Here they are one file with holes. A shard begins at a multiple of 4096
bytes, some way behind the one before. Offsets of tensors count from the start of the first.

Name and metadata of the first say which files they are. Nobody vouches for either: the pins decide,
over every byte of every shard (see `pins`).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.models.file import gguf
from appliance.models.file.cursor import Buffer
from appliance.models.file.disk import BLOCK, RandomFile
from appliance.models.file.gguf import GGUFFile, Parse, TensorInfo
from appliance.models.file.metadata import Metadata, optional_int

MAX_SHARDS = 512
"""Each is an open file."""
DISTANCE = 128 << 10
"""Bytes between two shards at least: more than what read-ahead reads with the records around it."""
NUMBER, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"

_NAME = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(\.gguf)", re.DOTALL)
_SAME = frozenset({"general.architecture", "general.name", TENSORS})  # in each shard that has them
_FETCH = "fetch all shards of the model again, into one folder"


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of the model at `path`: itself, or all shards where it is the first of
    several by its name and its metadata. Raises UnsupportedError for another shard than the first,
    and for too many.
    """
    named = _NAME.fullmatch(path.name)
    if named is None or int(named[3]) < 2 or _declared(path) < 2:
        return (path,)
    count = int(named[3])
    if count > MAX_SHARDS:
        raise UnsupportedError(f"{path} is one of {count} shards; supported: {MAX_SHARDS}",
                               hint="join them with: llama-gguf-split --merge FIRST_SHARD OUT.gguf")
    shards = [path.with_name(f"{named[1]}-{number:05}-of-{count:05}{named[4]}") for number in range(1, count + 1)]
    if path.name != shards[0].name:
        raise UnsupportedError(f"{path} is part {int(named[2])} of the {count} parts of a model; needed: the first, "
                               "which stands for all", hint=f"name {shards[0].name}")
    return tuple(shards)


def _declared(path: Path) -> int:
    """Return the shards that a file says it is one of; 1 for what cannot be read, which loading
    tells."""
    try:
        with RandomFile(path) as file:
            found: list[int] = []
            gguf.read(file.read_into, file.size, lambda buffer, size: gguf.parse(
                buffer, size, any_format=True, judge=lambda metadata: found.append(optional_int(metadata, COUNT, 1))))
    except ModelError:
        pass
    return found[-1] if found else 1


def open_model(path: Path) -> RandomFile:
    """Open the file at `path`, with the other shards where it is the first of several. Raises
    ModelError, which names the shard that cannot be opened."""
    found = files(path)
    return RandomFile(path) if len(found) == 1 else ShardedFile(found)


class ShardedFile(RandomFile):
    """The shards of a model, read as one file. Between them are zeros that no file has."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the shards, in their order. Raises ModelError, which names a shard that cannot be
        opened."""
        self._files: list[RandomFile] = []
        self.path, self.direct = paths[0], False
        self.size = 0
        starts: list[int] = []
        try:
            for number, path in enumerate(paths, 1):
                self._files.append(_opened(path, f"shard {number} of {len(paths)}"))
                starts.append(-(-self.size // BLOCK) * BLOCK + (DISTANCE if starts else 0))
                self.size = starts[-1] + self._files[-1].size
        except BaseException:
            self.close()
            raise
        self.parts = tuple((start, file.size) for start, file in zip(starts, self._files, strict=True))

    @property
    def descriptor(self) -> int:
        """None that stands for all: -1."""
        return -1

    def _holding(self, offset: int) -> tuple[RandomFile, int]:
        """Return the shard with the byte at `offset`, or the last one before it; and the byte's
        place in it."""
        index = max(index for index, (start, _) in enumerate(self.parts) if start <= offset)
        return self._files[index], offset - self.parts[index][0]

    def place(self, offset: int) -> tuple[int, int, int]:
        """As of a file alone, within the shard that has the byte."""
        file, at = self._holding(offset)
        return file.place(at)

    def named(self, offset: int) -> tuple[Path, int]:
        """Return the shard that holds a byte, and the byte's place in it."""
        file, at = self._holding(offset)
        return file.path, at

    def bypass_cache(self) -> None:
        """Read all shards past the page cache from here on."""
        for file in self._files:
            file.bypass_cache()
        self.direct = True

    def again(self) -> RandomFile:
        """Open all shards again, for another reader."""
        found = ShardedFile([Path(f"/proc/self/fd/{file.descriptor}") for file in self._files])
        found.path = self.path
        for file, original in zip(found._files, self._files, strict=True):
            file.path = original.path
        return found

    def cached(self) -> bool:
        """Tell whether the page cache holds all shards."""
        return all(file.cached() for file in self._files)

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` from a byte on, with zeros between shards. Errors name the shard."""
        end = offset + len(view)
        at = offset
        for file, (start, size) in zip(self._files, self.parts, strict=True):
            low, high = max(at, start), min(end, start + size)
            if low < high:
                view[at - offset:low - offset] = bytes(low - at)
                file.read_into(view[low - offset:high - offset], low - start)
                at = high
        if end > self.size:
            raise self._files[-1].ended(self._files[-1].size)
        view[at - offset:] = bytes(end - at)

    def expect_end(self) -> None:
        """Check that no shard is longer than at its opening."""
        for file in self._files:
            file.expect_end()

    def close(self) -> None:
        """Close all."""
        for file in self._files:
            file.close()


def _opened(path: Path, what: str) -> RandomFile:
    try:
        return RandomFile(path)
    except ModelError as error:
        raise ModelError(f"{what}: {error.summary}", hint=_FETCH if not os.path.lexists(path) else error.hint,
                         code=error.code) from None


# --- headers --------------------------------------------------------------------------------------
def read(file: RandomFile, parse: Parse = gguf.parse) -> tuple[list[tuple[int, bytearray]], GGUFFile]:
    """Read the start of each shard, and the headers in them as one. Beside it: where each start
    begins, and its bytes, which are not to be read again. Errors as `parse` and `combine`."""
    starts: list[tuple[int, bytearray]] = []
    headers: list[GGUFFile] = []
    for start, size in file.parts:
        def read_into(view: memoryview, offset: int, start: int = start) -> None:
            file.read_into(view, start + offset)

        with _naming(file, start):
            buffer, header = gguf.read(read_into, size, parse)
        starts.append((start, buffer))
        headers.append(header)
    return starts, combine(file, headers)


def parse_whole(file: RandomFile, buffer: Buffer, parse: Parse = gguf.parse) -> GGUFFile:
    """Return the headers of all shards as one, from all bytes of `file`, which `buffer` has. Errors
    as `combine`."""
    if len(file.parts) == 1:
        return parse(buffer, len(buffer))
    with memoryview(buffer) as view:
        headers = []
        for start, size in file.parts:
            with _naming(file, start), view[start:start + size] as part:
                headers.append(parse(part, size))
    return combine(file, headers)


@contextlib.contextmanager
def _naming(file: RandomFile, offset: int) -> Iterator[None]:
    """Say of which shard an error is: parsers do not know."""
    try:
        yield
    except ModelError as error:
        name = str(file.named(offset)[0])
        if len(file.parts) > 1 and name not in error.summary:
            error.summary = f"{name}: {error.summary}"
        raise


def combine(file: RandomFile, headers: Sequence[GGUFFile]) -> GGUFFile:
    """One header from those of the shards of `file`. FormatError, which names the shard, where they
    are not the shards of one model, each once and in their order."""
    if len(headers) == 1:
        return headers[0]
    paths = file.paths
    for number, header in enumerate(headers):
        _check(header.metadata, headers[0].metadata, number, len(headers), paths[number])
    tensors: dict[str, TensorInfo] = {}
    for path, header, (start, _) in zip(paths, headers, file.parts, strict=True):
        for name, info in header.tensors.items():
            if name in tensors:
                other = file.named(tensors[name].offset)[0]
                raise FormatError(f"{path}: tensor {name!r} stands in {other.name} too; allowed: each once",
                                  hint=_FETCH)
            tensors[name] = replace(info, offset=start + info.offset)
    declared = optional_int(headers[0].metadata, TENSORS, -1)
    if declared != len(tensors):
        raise FormatError(f"{paths[0]}: {TENSORS} is {'missing' if declared < 0 else declared}; the shards have "
                          f"{len(tensors)} tensors", hint=_FETCH)
    whole = {key: value for key, value in headers[0].metadata.items() if key not in (NUMBER, COUNT, TENSORS)}
    return replace(headers[0], metadata=MappingProxyType(whole), tensors=MappingProxyType(tensors),
                   data_offset=min(headers[0].data_offset, file.parts[0][1]))  # without tensors it may end before


def _check(metadata: Metadata, first: Metadata, number: int, count: int, path: Path) -> None:
    """Raises FormatError unless a shard says of itself what its name does, and is of the first
    one's model."""
    declared, of = optional_int(metadata, NUMBER, -1), optional_int(metadata, COUNT, -1)
    if (declared, of) != (number, count):
        said = "no shard" if declared < 0 or of < 0 else f"shard {declared + 1} of {of}"
        raise FormatError(f"{path} is {said} by its metadata; needed: shard {number + 1} of {count}, as its name says",
                          hint=_FETCH)
    for key in _SAME & metadata.keys():
        if first.get(key) != metadata[key]:
            raise FormatError(f"{path} is of another model: {key} is {metadata[key]!r:.80}; the first shard has "
                              f"{first.get(key)!r:.80}", hint=_FETCH)
