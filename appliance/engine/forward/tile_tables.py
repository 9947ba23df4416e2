"""The tables with which compiled code fetches the tiles of a streamed model by itself
(`kernels.fetch`)."""

from __future__ import annotations

import os

import numpy as np

from appliance.engine.forward.packing import Packing, blocks
from appliance.kernels.layouts.fetch import FAULTS, Matrix, Stream, Worker
from appliance.kernels.layouts.shapes import group_nbytes, padded_rows
from appliance.kernels.runtime import boundary
from appliance.kernels.runtime.memory import Memory, Words
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file.layout import GROUP_ROWS
from appliance.models.file.tiling import TAG_NBYTES
from appliance.models.sources.native import Native, PassReads
from appliance.models.sources.source import TileSource, TileTable


class Streaming:
    """The tables of one model. They hold addresses and sizes, no secrets."""

    def __init__(self, source: TileSource, native: Native, table: KernelTable, pool: Pool) -> None:
        self._source, self._pool, self._native, self._packing = source, pool, native, Packing(table)
        self._plan: list[tuple[int, int]] = []  # offset and bytes of the records that a pass reads
        self.kernel = table.address("fetch_plain" if native.tags else "fetch_sealed")
        """Address of `int64 fetch(int64 matrix, int64 tile, int64 thread)`."""
        workers = Words(Worker.nbytes * len(native.workers))
        self._stream = Words(Stream.nbytes)
        self._words = self._stream.memory.view(np.int64)
        self._workers = workers.memory.view(np.int64).reshape(len(native.workers), -1)
        for words in (workers, self._stream):
            pool.keep(words.memory)
        extra, extra_nbytes = native.extra
        self._put({"WORKERS": workers.address, "TILE_NBYTES": native.tile_nbytes, "PIECE": native.piece_nbytes,
                   "EXTRA": extra, "EXTRA_NBYTES": extra_nbytes, **native.functions})
        for index, values in enumerate(native.workers):
            workers.put(Worker, dict(zip(("CONTEXT", "TILE", "OTHER", "RECORD"), values, strict=True)),
                        Worker.nbytes * index)

    @classmethod
    def of(cls, source: TileSource, table: KernelTable, pool: Pool) -> Streaming | None:
        """Tables for the threads of a pool; None where the source fetches tiles itself."""
        native = source.native(pool.threads, in_place=table.target.amx)
        return None if native is None else cls(source, native, table, pool)

    def _put(self, values: dict[str, int]) -> None:
        self._stream.put(Stream, values)

    def matrix(self, name: str) -> int:
        """The address of a new table Matrix. Matrices are asked for in the order of their use."""
        table, weight, words = self._source.table(name), self._source.weight(name), Words(Matrix.nbytes)
        tiles, places, stride = table.tiles, table.places, table.stride
        planned = not table.kept and (weight.runs == 1 or weight.visited)
        boundary.check_tiles(name, [tile.nbytes for tile in tiles], padded_rows(weight.rows) // GROUP_ROWS,
                             weight.tile_groups, group_nbytes(weight.format.name, weight.columns),
                             self._native.tile_nbytes)
        words.put(Matrix, {
                "STREAM": self._stream.address, "FIRST_TILE": table.segment.first_tile,
                "TILES": weight.runs * len(tiles), "RUN_TILES": len(tiles), "RUN_STRIDE": stride,
                "NBYTES": tiles[0].nbytes, "LAST_NBYTES": tiles[-1].nbytes, "OFFSET": places[0][0],
                "RECORD_NBYTES": places[0][1], "LAST_RECORD_NBYTES": places[-1][1],
                "KEPT": table.kept, "FIRST_PLANNED": len(self._plan) if planned else -1,
                **(self._plain(table) if self._native.tags else {})})
        self._pool.keep(words.memory)
        if planned:
            self._plan += [(offset + run * stride, nbytes) for run in range(weight.runs) for offset, nbytes in places]
        return words.address

    def _plain(self, table: TileTable) -> dict[str, int]:
        """The words that only a plain model's matrix has. EngineError where no kernel packs its
        format."""
        segment, tile = table.segment, table.tiles[0]
        groups = min(max(self._native.piece_nbytes // segment.unit_nbytes, 1), segment.tile_units)
        return {"ROW_NBYTES": segment.unit_nbytes // GROUP_ROWS, "CHUNK": groups * segment.unit_nbytes,
                "PACK": self._packing.table(tile.format), "BLOCKS": blocks(tile.format, tile.columns),
                "TAGS": self._native.tags + TAG_NBYTES * segment.first_tile}

    def plan(self) -> None:
        """After all matrices: how far ahead the system is to read, where what was read is dropped.
        Otherwise the system decides by itself: pages that are asked for ahead are kept singly, and
        take longer to read later."""
        if not self._plan or not self._native.drop:
            return
        # Pages that newer kernels read ahead by themselves lie in large folios, and a folio with
        # a part of another record is not dropped.
        os.posix_fadvise(self._native.file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        memory = Memory(16 * len(self._plan))
        memory.view(np.int64)[:] = np.array(self._plan, np.int64).reshape(-1)
        self._pool.keep(memory)
        window = self._native.ahead_nbytes * len(self._plan) // sum(nbytes for _, nbytes in self._plan)
        self._put({"PLAN": memory.address, "PLAN_COUNT": len(self._plan), "DROP": int(self._native.drop),
                   "WINDOW": min(window, len(self._plan) // 2)})

    def begin(self) -> None:
        """Prepare a pass."""
        cursor = int(self._words[Stream.offsets["CURSOR"] // 8])
        self._put({"DESCRIPTOR": self._native.file.descriptor, "FAULT": 0, "CURSOR": max(cursor - len(self._plan), 0)})
        for name in ("HELD", "OTHER_HELD", "ALIVE", "OPENED_NBYTES", "READ_NBYTES"):
            self._workers[:, Worker.offsets[name] // 8] = 0

    def end(self) -> None:
        """After a pass: raises what failed in it, see `TileReader.settle`."""
        fault = int(self._words[Stream.offsets["FAULT"] // 8])
        alive, opened, read = (self._workers[:, Worker.offsets[name] // 8].tolist()
                               for name in ("ALIVE", "OPENED_NBYTES", "READ_NBYTES"))
        self._native.settle(PassReads(alive, sum(opened), sum(read)),
                            FAULTS[fault >> 48], fault >> 32 & 0xffff, fault & 0xffffffff)
