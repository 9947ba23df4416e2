"""A sealed model as a measured process: `python -m benchmarks.streamed_server SEALED KEY SHARE`. Or
a plain one; the key is then not looked at.

SHARE of its matrices is resident, the rest is streamed from the page cache. `kept`: all of it is
streamed, and the encrypted records stay in memory, as `streaming_decrypt = true` has it where there
is memory for them. `oblivious`: likewise, and each pass decrypts all experts. `disk`: nothing of it
stays, and it is read from the disk, as where there is no memory for a page cache; `disk:` and a
share: the rest of it is. `resident` loads it as `streaming_decrypt = false` does. The model that
`open` names is not looked at.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from appliance.boot.planning import inspection, residency
from appliance.boot.planning.footprint import known_roles
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.packing import Packing
from appliance.keys import providers as keys
from appliance.models.sealed.reader import SealedModel, open_sealed
from appliance.models.sources import native
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.source import TileSource
from appliance.models.sources.streamed import StreamedSource
from appliance.models.sources.tagged import PlainTiles, open_tagged
from benchmarks import memory
from benchmarks.decryption import Decryption
from benchmarks.own_server import Own
from benchmarks.serving import serve

BY_INTERPRETER = "the interpreter"
KEPT, DISK, OBLIVIOUS = "kept", "disk", "oblivious"


class Streamed(Own):
    """One sealed or plain model."""

    def __init__(self, file: Path, key: Path, share: str) -> None:
        super().__init__(None)
        self._file, self._key, self._share = file, key, share
        self._engine: Engine | None = None

    def open(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        """As `Own`; an engine for `repeat` is made anew."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._threads = threads
        return super().open(model, threads, context, slots)

    def _load(self, model: Path) -> TileSource:
        if self._share == "resident":
            with keys.FileKey(self._key).key() as key:
                return open_sealed_resident(self._file, key.data, header_sha256=None, roles=known_roles)
        tiles = self._tiles()
        roles = known_roles(tiles.gguf)
        if self._share in (KEPT, OBLIVIOUS):
            kept = residency.choose_kept(tiles.tiling, self._file.stat().st_size, roles=roles)
            return StreamedSource(tiles, kept=kept, roles=known_roles,
                                  access="oblivious" if self._share == OBLIVIOUS else "hidden")
        where, _, number = self._share.rpartition(":")
        drop, share = DISK in (where, number), 0.0 if number == DISK else float(number)
        whole = sum(map(residency.packed_nbytes, residency.matrices(tiles.tiling, roles)))
        resident = residency.choose(tiles.tiling, int(share * whole), roles) if share else ()
        if drop:  # as a boot finds it where there is no memory for a page cache
            memory.forget(self._file)
        return StreamedSource(tiles, resident=resident, drop=drop, roles=known_roles)

    def _tiles(self) -> SealedModel | PlainTiles:
        if not inspection.is_sealed(self._file):
            return open_tagged(self._file, interleave=Packing(self._kernels),
                               tile_size=native.plain_tile_size(self._threads))
        with keys.FileKey(self._key).key() as key:
            return open_sealed(self._file, key.data, header_sha256=None)

    def repeat(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """An answer of `tokens` after the first to a prompt, guesses included; seconds after the
        first."""
        if self._engine is None:
            assert self._source is not None
            self._engine = Engine.open(
                    self._source, EngineOptions(context_length=1024, slots=1, threads=self._threads),
                    kernels=self._kernels)
        advances = self._engine.generate(GenerationRequest(
            tuple(prompt), tokens + 1, Sampling(temperature=0, seed=1), ignore_end=True))
        answer = [next(advances).token]
        start = time.perf_counter()
        answer += [advance.token for advance in advances]
        return {"seconds": time.perf_counter() - start, "answer": [token for token in answer if token is not None]}

    def opened(self) -> dict[str, Any]:
        """Return the bytes that were decrypted so far, and the bytes of the file that were read.
        Also what decrypts, and the bytes of its largest tile."""
        assert isinstance(self._source, StreamedSource)
        return {"decrypted": self._source.workers.opened_nbytes, "read": self._source.workers.read_nbytes,
                "by": self._source.reader.fetched_by, "tile": self._source.reader.tiles.tiling.max_tile_nbytes}

    def decryption(self, nbytes: int, threads: int, seconds: float) -> dict[str, Any]:
        """Return the bytes a second that threads decrypt, in tiles of a size, by the library that
        this model uses."""
        return {"rate": Decryption(nbytes, threads, compiled=self.opened()["by"] != BY_INTERPRETER).rate(seconds)}

    def fetched(self) -> dict[str, Any]:
        """Bytes that came from a disk for this process so far."""
        lines = Path("/proc/self/io").read_text().splitlines()
        return {"bytes": next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))}


if __name__ == "__main__":
    serve(Streamed(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
