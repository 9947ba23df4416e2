"""Where a tile's bytes come from: a record that is kept in memory, a buffer that was read ahead, or
the file.

Wherever they come from, they are authenticated and decrypted when they are used, into the buffer of
one thread.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from appliance.models.file.tiling import Segment, Tile
from appliance.models.sealed.reader import SealedModel
from appliance.models.sources import native
from appliance.models.sources.native import Native, PassReads
from appliance.models.sources.read_ahead import ReadAhead, in_turn
from appliance.models.sources.source import Access, TileTable
from appliance.models.sources.tagged import PlainTiles
from appliance.models.sources.worker import PIECE_NBYTES, WorkerBuffers, Workers
from appliance.secure import libcrypto
from appliance.secure.locked import address, anonymous, discard


class Records:
    """Records of a sealed model's matrices that stay in memory, encrypted. None at first."""

    def __init__(self) -> None:
        self._starts: dict[int, int] = {}  # number of a matrix' first tile -> offset in the pages
        self._locked = False
        self.pages: mmap.mmap | None = None

    def read(self, tiles: SealedModel, segments: Sequence[Segment]) -> None:
        """Read the records of some matrices, and lock them in memory: which experts a pass uses
        must not show on a swap disk. Errors as `SealedModel.keep`. Raises ModelError for memory.
        """
        nbytes = sum(segment.records_nbytes for segment in segments)
        if not nbytes:
            return
        self._locked = any(segment.runs > 1 for segment in segments)
        self.pages, start = anonymous(nbytes, "the model's encrypted weights", secret=self._locked), 0
        with memoryview(self.pages) as view:
            for segment in segments:
                with view[start:start + segment.records_nbytes] as place:
                    tiles.keep(segment, place)
                self._starts[segment.first_tile] = start
                start += segment.records_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return 0 if self.pages is None else len(self.pages)

    def address(self, segment: Segment) -> int:
        """Of a matrix' records; 0 where they are not here."""
        start = self._starts.get(segment.first_tile)
        return 0 if start is None or self.pages is None else address(self.pages) + start

    def of(self, tile: Tile) -> memoryview | None:
        """Return the record of a tile; None where it is not here."""
        start = self._starts.get(tile.segment.first_tile)
        if start is None or self.pages is None:
            return None
        start += tile.offset - tile.segment.offset
        with memoryview(self.pages) as pages:
            return pages[start:start + tile.record_nbytes]

    def close(self) -> None:
        """Give the memory back."""
        if self.pages is not None:
            discard(self.pages, secret=self._locked)
            self.pages = None


class TileReader:
    """Brings the tiles of one model into the buffers of threads, and counts the plaintext there."""

    def __init__(self, tiles: SealedModel | PlainTiles, workers: Workers, *, ahead_nbytes: int, drop: bool,
                 compiled: bool | None, access: Access) -> None:
        """Arguments as of `StreamedSource`."""
        self.tiles, self._workers, self._access = tiles, workers, access
        self._ahead_nbytes, self._drop, self._compiled = ahead_nbytes, drop, compiled
        self.fetched_by = "the interpreter"
        """The reader and decrypter of tiles, for the report of the boot."""
        self.records = Records()
        self.ahead: ReadAhead | None = None
        self._known: dict[int, Tile] = {}

    @functools.cached_property
    def past_cache(self) -> bool:
        """Whether the file is read ahead, past the page cache: that cannot hold it, and does not
        all the same, as where somebody else reads the same file. The interpreter fetches tiles
        then: a disk leaves it time."""
        return self._drop and not self._compiled and not (self._compiled is None and self.tiles.file.cached())

    def keep(self, names: frozenset[str]) -> None:
        """Read the records of a sealed model's matrices that stay. Errors as `Records.read`."""
        if not isinstance(self.tiles, PlainTiles):
            self.records.read(self.tiles, [
                segment for segment in self.tiles.tiling.segments
                if segment.kind == "matrix" and segment.info is not None and segment.info.name in names])

    # --- where tiles are --------------------------------------------------------------------------
    def segment(self, name: str) -> Segment:
        """Where the tiles of a tensor are. Raises FormatError if there is none of this name."""
        return self.tiles.tiling.of(name)

    def kept(self, name: str) -> int:
        """Address of the records of a matrix that are in memory; 0 where they are not."""
        return self.records.address(self.segment(name))

    def visited(self, segment: Segment) -> bool:
        """Whether each pass asks for all tiles of a run of matrices, so that nobody sees which of
        them it needs. A run in memory is asked for so only where memory is seen."""
        return segment.runs > 1 and (self._access == "oblivious" or (
            self._access == "hidden" and not self.records.address(segment)))

    def table(self, name: str) -> TileTable:
        """Where the tiles of a matrix are. Raises FormatError if there is none of this name."""
        segment = self.segment(name)
        tiles = tuple(self.tiles.tiling.tile(segment.first_tile + index) for index in range(segment.run_tiles))
        return TileTable(segment, tiles, tuple(map(self.place, tiles)), self.kept(name),
                         segment.run_nbytes if self._workers.plain else segment.run_stride)

    def place(self, tile: Tile) -> tuple[int, int]:
        """Where a tile is in the file: offset and bytes of its record, or of its rows in a plain
        file."""
        return (tile.source_offset, tile.source_nbytes) if self._workers.plain else (tile.offset, tile.record_nbytes)

    def expect(self, groups: Sequence[Sequence[Segment]]) -> None:
        """Read the tiles of these matrices ahead from here on, if there is no memory for a page
        cache; of those in one group tiles are used in turn. Raises ModelError if there is no memory
        for buffers."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None
        if self.past_cache and any(groups):
            tile = self.tiles.tiling.tile
            places = [in_turn([[self.place(tile(segment.first_tile + index)) for index in range(segment.tiles)]
                               for segment in segments]) for segments in groups]
            self.ahead = ReadAhead(self.tiles.file.again(), [place for group in places for place in group])

    # --- by the interpreter -----------------------------------------------------------------------
    def tiles_of(self, segment: Segment) -> Iterator[memoryview]:
        """Yield the tiles of a tensor, decrypted, in the first thread's buffer; each is valid until
        the next."""
        worker = self._workers[0]
        for index in range(segment.tiles):
            nbytes = self.fill(worker, segment.first_tile + index)
            yield worker.tile[:nbytes]

    def _tile(self, number: int) -> Tile:
        tile = self._known.get(number)
        if tile is None:
            tile = self._known[number] = self.tiles.tiling.tile(number)
        return tile

    def pass_by(self, worker: WorkerBuffers, number: int) -> None:
        """Read a tile that nobody needs, as if somebody did. Errors as `fill`."""
        offset, nbytes = self.place(self._tile(number))
        worker.read_nbytes += nbytes
        with self._read_ahead(self._tile(number)) as found:
            if found is None:
                self._workers.count(worker, nbytes if self._workers.plain else 0)
                self.tiles.file.read_into(worker.room[:nbytes], offset)

    def fill(self, worker: WorkerBuffers, number: int) -> int:
        """Read, authenticate and decrypt a tile into a worker's next slot; its bytes. Errors as
        `read_tile`."""
        tiles, tile = self.tiles, self._tile(number)
        worker.turn()
        worker.opened_nbytes += tile.nbytes
        worker.read_nbytes += 0 if self.records.address(tile.segment) else self.place(tile)[1]
        self._workers.count(worker, worker.places * tile.nbytes + (tile.source_nbytes if self._workers.plain else 0))
        with self.records.of(tile) or self._read_ahead(tile) as found:
            if found is None:
                return tiles.read(tile, worker.tile, worker.room)
            tiles.open(tile, found, worker.tile[:tile.nbytes])
        return tile.nbytes

    @contextmanager
    def _read_ahead(self, tile: Tile) -> Iterator[memoryview | None]:
        """The record of a tile that was read ahead, in memory that nobody writes meanwhile."""
        offset, nbytes = self.place(tile)
        found = None if self.ahead is None else self.ahead.take(offset, nbytes)
        try:
            yield found
        finally:
            if found is not None and self.ahead is not None:
                self.ahead.give_back(offset)

    # --- by compiled code -------------------------------------------------------------------------
    def native(self, threads: int, *, in_place: bool = False) -> Native | None:
        """Return the means of so many threads to fetch tiles without the interpreter; None where
        `fill` does it. With `in_place` each thread then has one place for a tile: faster where what
        it wrote last stays in its cache."""
        tiles, most = self.tiles, self.tiles.tiling.max_tile_nbytes
        apart = len(tiles.file.parts) > 1  # compiled code reads one descriptor
        library = None if self._compiled is False or self.past_cache or apart else libcrypto.load()
        if library is None or not (self._compiled or native.worthwhile(library, threads, most)):
            return None
        if in_place:
            self._workers.narrow()
        workers = [self._workers[thread] for thread in range(threads)]
        for worker in workers:
            if worker.cipher is None:
                worker.cipher = tiles.cipher(library)
        self.fetched_by = f"libcrypto {library.version}"
        extra, tags = ((0, 0), tiles.tags_address) if isinstance(tiles, PlainTiles) else (tiles.extra, 0)
        return Native(native.functions(library), extra, PIECE_NBYTES, most, tuple(
            (0 if worker.cipher is None else worker.cipher.address, worker.addresses[0],
             worker.addresses[worker.places - 1], worker.room_address)
            for worker in workers), tiles.file, self.settle, self._drop, self._ahead_nbytes, tags)

    def settle(self, reads: PassReads, fault: str, errno: int, number: int) -> None:
        """After a pass: what its threads read, and what failed, by the names of the kernels' table.
        Raises the error of that."""
        self._workers[0].opened_nbytes += reads.opened_nbytes
        self._workers[0].read_nbytes += reads.read_nbytes
        for worker, nbytes in zip(self._workers, reads.alive, strict=False):
            self._workers.count(worker, (worker.places + int(self._workers.plain)) * nbytes)
        if fault == "none":
            return
        tiles, tile = self.tiles, self.tiles.tiling.tile(number)
        if fault == "read":
            raise tiles.file.unreadable(self.place(tile)[0], os.strerror(errno))
        raise tiles.file.ended(self.place(tile)[0]) if fault == "end" else tiles.altered(tile)

    def close(self) -> None:
        """Let go of what reads ahead; waits for its threads."""
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None
