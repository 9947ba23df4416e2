"""A sealed model decrypted once, whole, into memory: each tile is authenticated on its way, and the key is dropped."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.models import quants, stacks
from appliance.models.disk import Progress
from appliance.models.gguf import TensorInfo
from appliance.models.metadata import Metadata
from appliance.models.resident import ALIGNMENT, address, anonymous, discard
from appliance.models.sealed import SealedModel, open_sealed
from appliance.models.tiles import Weight

_THREADS = 2  # the disk and the memory are what it waits for


class SealedResidentSource:
    """A whole sealed model in memory. Made by `open_sealed_resident`; close it when the engine is gone."""

    def __init__(self, model: SealedModel, progress: Progress | None) -> None:
        """Decrypt every tensor of `model`, which may be closed afterwards. Errors as `read_tile`; UnsupportedError
        for tensors of more than two dimensions."""
        self.gguf, self._sha256, self.header_sha256 = model.gguf, model.sha256, model.header_sha256
        self._offsets: dict[str, int] = {}
        nbytes = 0
        for segment in model.tiling.segments:
            if segment.info is None:
                continue
            if len(segment.info.shape) > 2:
                raise UnsupportedError(f"tensor {segment.info.name!r} has {len(segment.info.shape)} dimensions; "
                                       "supported: 1 and 2")
            self._offsets[segment.info.name] = nbytes
            nbytes += segment.units * segment.unit_nbytes
            nbytes += -nbytes % ALIGNMENT
        self._arena: mmap.mmap | None = anonymous(nbytes, "the model's weights", secret=True)
        try:
            self._decrypt(model, self._arena, progress)
            self._base = address(self._arena)
            self._vectors = {name: self._vector(self._arena, info) for name, info in self.tensors.items()
                             if len(info.shape) == 1}
        except BaseException:
            discard(self._arena, secret=True)
            raise

    @property
    def metadata(self) -> Metadata:
        """The model's key-value pairs."""
        return self.gguf.metadata

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What the model has, by name."""
        return self.gguf.tensors

    @property
    def sha256(self) -> bytes:
        """SHA-256 (32 bytes) of the GGUF file that was sealed."""
        return self._sha256

    def weight(self, name: str) -> Weight:
        """A tensor of two dimensions; FormatError when there is none of this name and kind."""
        info = self._tensor(name, 2, "a matrix")
        nbytes = -(-info.rows // 16) * 16 * info.format.row_nbytes(info.columns)
        return Weight(info.format, info.rows, info.columns, self._base + self._offsets[name], nbytes)

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one dimension, decoded, read-only; FormatError when there is none of this name and kind."""
        self._tensor(name, 1, "a vector")
        return self._vectors[name]

    def _tensor(self, name: str, dimensions: int, kind: str) -> TensorInfo:
        if self._arena is None:
            raise ModelError("the model was closed")
        info = self.tensors.get(name)
        if info is None or len(info.shape) != dimensions:
            found = "missing" if info is None else f"of shape {info.shape}"
            raise FormatError(f"tensor {name!r} is {found}; needed: {kind}")
        return info

    def _decrypt(self, model: SealedModel, arena: mmap.mmap, progress: Progress | None) -> None:
        """Every tile straight to its place, by a few threads."""
        done, lock = 0, threading.Lock()

        def read(number: int) -> None:
            nonlocal done
            tile = model.tiling.tile(number)
            if tile.segment.info is None:
                return
            start = self._offsets[tile.segment.info.name] + tile.first_unit * tile.segment.unit_nbytes
            with memoryview(arena) as view, view[start:start + tile.nbytes] as place:
                model.read_tile(number, place)
            stacks.wipe()
            with lock:
                done += tile.record_nbytes
                if progress is not None:
                    progress(done, model.tiling.end - model.tiling.base)

        with ThreadPoolExecutor(_THREADS, "model-tiles") as pool:
            try:
                for _ in pool.map(read, range(len(model.tiling))):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _vector(self, arena: mmap.mmap, info: TensorInfo) -> NDArray[np.float32]:
        start = self._offsets[info.name]
        with memoryview(arena) as view, view[start:start + info.nbytes] as data:
            values: NDArray[np.float32] = quants.dequantise(info.format, data, 1, info.columns)[0]
        values.flags.writeable = False
        return values

    def close(self) -> None:
        """Wipe the weights and give the memory back. Addresses handed out before are void from here on."""
        if self._arena is not None:
            discard(self._arena, secret=True)
            self._arena = None
            for values in self._vectors.values():
                values.flags.writeable = True
                values.fill(0)


def open_sealed_resident(path: Path, master_key: bytes | bytearray | memoryview, *, header_sha256: bytes | None,
                         sha256: bytes | None = None, progress: Progress | None = None) -> SealedResidentSource:
    """Decrypt the sealed model at `path` into memory. `progress` is called with bytes read. Arguments and errors as
    `open_sealed`; ModelError also for too little memory."""
    with open_sealed(path, master_key, header_sha256=header_sha256, sha256=sha256) as model:
        parts = model.metadata.optional_int("split.count", 1)
        if parts > 1:
            raise UnsupportedError(f"{path} is one of {parts} parts of a model; supported: a model in one file",
                                   hint="join the parts before sealing: llama-gguf-split --merge")
        return SealedResidentSource(model, progress)
