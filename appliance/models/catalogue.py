"""The headers of model files: each is read and parsed once, and handed on.

Checks, planning, self-test and loading of one boot ask the same catalogue. It is not authenticated:
the disk may give other bytes at every read. So loading reads the file itself and checks that read
against the pin. It then asks `parse` or `layout` for the header of the very bytes that it holds in
memory. (Of a plain file that is streamed, it asks before the last byte was hashed; nothing is
handed out unless these bytes, too, carry the pin.)

`parse` and `layout` answer from memory only when these bytes have the SHA-256 of bytes that were
parsed before, and the file has the same size. A header is a function of only these two, so parsing
would give the same answer. Any other bytes are parsed. A disk that lies between two reads gains
nothing but the time that this takes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import ModelError
from appliance.models.file import gguf, quants, shards, tiling
from appliance.models.file.cursor import Buffer
from appliance.models.file.disk import RandomFile
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.metadata import Metadata
from appliance.models.file.tiling import Tiling
from appliance.models.sealed.header import FAMILY, Header, is_sealed
from appliance.models.sealed.reader import structure
from appliance.policy.schema import Model
from appliance.secure.wipe import wipe


@dataclass(frozen=True, slots=True)
class KnownHeader:
    """A header that was parsed, and where it was."""

    gguf: GGUFFile
    size: int  # of the GGUF file, bytes
    nbytes: int  # of the GGUF header, up to the tensor data
    digest: bytes  # SHA-256 of the GGUF header, or of the header of the sealed file
    tiles: Tiling | None  # of a sealed file
    stored: int = 0  # bytes of the file, or of all shards


class ModelFile:
    """One model file. Its header is read when somebody first asks, and kept; a failure is not."""

    def __init__(self, path: Path, header_sha256: bytes | None = None) -> None:
        """`header_sha256` (32 bytes): the pin of a sealed file's header, which is not parsed unless
        it has it; None takes any sealed file, and a plain one."""
        self.path = path
        self._pin = header_sha256
        self._known: KnownHeader | None = None
        self.metadata: Metadata | None = None
        """Key-value pairs, once it was asked for its header: also of a plain file whose tensors cannot be read."""

    @functools.cached_property
    def sealed(self) -> bool:
        """Whether the file calls itself a sealed model. Raises ModelError for what the disk
        does."""
        with RandomFile(self.path) as file:
            start = bytearray(min(file.size, len(FAMILY)))
            file.read_into(memoryview(start), 0)
            return is_sealed(bytes(start))

    @property
    def gguf(self) -> GGUFFile:
        """The GGUF header, also with tensors in formats that do not run here if the file is plain.
        Raises FormatError and UnsupportedError for its content, PinError for another sealed file
        than pinned, ModelError for the disk."""
        return self._read().gguf

    @property
    def size(self) -> int:
        """Size of the GGUF file in bytes, also if it is sealed, with the holes between its shards.
        Errors as `gguf`."""
        return self._read().size

    @property
    def stored(self) -> int:
        """Bytes of the plain GGUF file, or of all its shards. Errors as `gguf`."""
        return self._read().stored

    @property
    def supported(self) -> GGUFFile:
        """As `gguf`; UnsupportedError also for tensors in formats that do not run here."""
        found = self.gguf
        for info in found.tensors.values():
            quants.require(info.format, f"tensor {info.name!r}")
        return found

    @functools.cached_property
    def tiling(self) -> Tiling:
        """Its tiles: as it was sealed, or as a plain file is cut by default. Errors as `supported`.
        """
        whole, known = self.supported, self._read()
        return known.tiles or Tiling(whole, known.size, tiling.DEFAULT_TILE_SIZE, gaps=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the file, or of all shards; 0 where it is not there."""
        try:
            return sum(path.stat().st_size for path in self.files)
        except (ModelError, OSError):
            pass
        with contextlib.suppress(OSError):
            return self.path.stat().st_size if self.path.is_file() else 0
        return 0

    @property
    def files(self) -> tuple[Path, ...]:
        """The file, with the other shards where it is the first of several. Raises UnsupportedError
        for another shard."""
        return shards.files(self.path)

    def _read(self) -> KnownHeader:
        if self._known is None:
            self._known = self._sealed() if self._pin is not None or self.sealed else self._plain()
            self._note(self._known.gguf.metadata)
        return self._known

    def _note(self, metadata: Metadata) -> None:
        self.metadata = metadata

    def _plain(self) -> KnownHeader:
        with shards.open_model(self.path) as file:
            judge = self._note if len(file.parts) == 1 else None  # a shard's metadata say that it is one
            starts, found = shards.read(file, functools.partial(gguf.parse, any_format=True, judge=judge))
            nbytes = min(found.data_offset, file.size)
            digest = hashlib.sha256(memoryview(starts[0][1])[:nbytes]).digest()
            for _, read in starts:
                wipe(read)  # its end may be weights
            return KnownHeader(found, file.size, nbytes, digest, None, sum(size for _, size in file.parts))

    def _sealed(self) -> KnownHeader:
        header, tiles = structure(self.path, self._pin)
        return KnownHeader(tiles.gguf, header.size, len(header.gguf), header.digest, tiles)

    # --- for loading ------------------------------------------------------------------------------
    def parse(self, buffer: Buffer, size: int | None = None) -> GGUFFile:
        """`gguf.parse` of bytes that loading read: without parsing, if they begin with the header
        of a plain file that was parsed before. Errors as `gguf.parse`."""
        known = self._known
        if known is not None and known.tiles is None:
            with memoryview(buffer) as view:
                whole = len(view) if size is None else size
                same = whole == known.size and len(view) >= known.nbytes and hmac.compare_digest(
                    hashlib.sha256(view[:known.nbytes]).digest(), known.digest)
            if same and all(info.format.name in quants.FORMATS for info in known.gguf.tensors.values()):
                return known.gguf
        return gguf.parse(buffer, size)

    def layout(self, header: Header) -> tuple[GGUFFile, Tiling]:
        """Return `Header.layout` of an authenticated header, without parsing if it was parsed
        before. Errors as `Header.layout`."""
        known = self._known
        if known is not None and known.tiles is not None and hmac.compare_digest(header.digest, known.digest):
            return known.gguf, known.tiles
        return header.layout()


class Catalogue:
    """The model files of a policy, by the names of its models. One serves one boot."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self.paths = paths
        self._files: dict[tuple[Path, str | None], ModelFile] = {}

    def files(self) -> Iterator[Path]:
        """Yield every file of every model, with all shards of a sharded one."""
        for path in self.paths.values():
            try:
                yield from shards.files(path)
            except ModelError:
                yield path

    def of(self, model: Model) -> ModelFile:
        """Return the file of a model; models that name the same file with the same pin share it."""
        path, pin = self.paths[model.name], model.sealed_header_sha256
        if (path, pin) not in self._files:
            self._files[path, pin] = ModelFile(path, None if pin is None else bytes.fromhex(pin))
        return self._files[path, pin]
