"""The streamed source: matrices come tile by tile, decrypted into a worker's own buffer and overwritten by the next.

A kernel asks for a tile with `fetch`, a C function pointer into this module: read the tile, authenticate it, decrypt it
into the locked buffer of the thread that asks. Reading and decrypting release the interpreter's lock. After each pass
the buffers are wiped, so no plaintext of a streamed matrix outlives the pass that used it. (Of a plain file that is
read ahead, the buffers of that hold what the file holds.)

A tile that cannot be had (altered, cut off, gone, a disk error) fails the model for good: the kernel gets zeros, the
pass is ended by the error, its results are dropped, and every later pass is refused with the same error.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ApplianceError, ModelError
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.opened import Opened, check_runnable
from appliance.models.file.tiling import Segment, Tile
from appliance.models.sealed.reader import SealedModel
from appliance.models.sources import native
from appliance.models.sources.hidden_rows import HiddenRows
from appliance.models.sources.native import Native
from appliance.models.sources.read_ahead import ReadAhead, in_turn
from appliance.models.sources.resident import ALIGNMENT, vector
from appliance.models.sources.source import Weight
from appliance.models.sources.tagged import PlainTiles
from appliance.models.sources.worker import PIECE_NBYTES, SLOTS, Worker
from appliance.secure import interrupts, libcrypto, stacks
from appliance.secure.locked import address, anonymous, discard
from appliance.secure.wipe import wipe

_FETCH = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_FIRST = _FETCH(lambda number, tile, thread: 0)
"""Functions for compiled code are made in the page of the first one: a process in its sandbox gets no other."""
EMBEDDING = "token_embd.weight"
AHEAD_NBYTES = 32 << 20
"""Read ahead by the system: enough for what a fast disk brings while a few tiles are multiplied."""


class StreamedSource(Opened):
    """A sealed or plain model of which matrices are read when they are used. Close it when the engine is gone.

    Names in `resident` are decrypted once and kept; all vectors are. With `hidden`, looking up embeddings shows the
    disk nothing: their ciphertext is kept in memory.
    """

    def __init__(self, tiles: SealedModel | PlainTiles, *, resident: Collection[str] = (), hidden: bool = True,
                 kept: Collection[str] = (), ahead_nbytes: int = AHEAD_NBYTES, drop: bool = False,
                 compiled: bool | None = None) -> None:
        """Takes `tiles` over, and closes them when it fails: ModelError for tiles that cannot be read and for memory;
        UnsupportedError for tensors of more than two dimensions.

        `kept`: matrices of a sealed model whose records stay in memory, encrypted, so that no pass asks the disk for
        them. `drop`: there is no memory for a page cache. The file is then read ahead into buffers, see `expect`, or,
        by compiled code, the page cache forgets what was read, and the system reads `ahead_nbytes` ahead of it.
        `compiled`: whether compiled code may fetch tiles by itself; None is where that is faster."""
        self._tiles = tiles
        self.gguf, self.sha256, self.header_sha256 = tiles.gguf, tiles.sha256, tiles.header_sha256
        self._plain = isinstance(tiles, PlainTiles)
        self._segments = tuple(segment for segment in tiles.tiling.segments if segment.info is not None)
        self._number = {segment.info.name: index for index, segment in enumerate(self._segments) if segment.info}
        self._compiled = compiled
        self.ahead_nbytes, self.drop = ahead_nbytes, drop
        self._ahead: ReadAhead | None = None
        self._failure: BaseException | None = None
        self._known: dict[int, Tile] = {}
        self._turn = threading.Lock()
        self._workers: list[Worker] = []
        self._places = SLOTS  # for tiles, of each thread
        self._arena: mmap.mmap | None = None
        self._records: mmap.mmap | None = None
        self._kept: dict[int, int] = {}  # number of a matrix' first tile -> offset in the records
        self._embedding: HiddenRows | None = None
        self._function = _FETCH(self._fetch)  # kept alive: kernels hold its address
        self._fetch_address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.fetched_by = "the interpreter"
        """What reads and decrypts tiles, for the report of the boot."""
        self.most_alive = 0
        """The most bytes of streamed plaintext that existed at one moment so far."""
        self.users = 1
        """Models that it drafts for at most, see `plaintext_nbytes`."""
        try:
            self._load(frozenset(resident), hidden)
            self._keep_records(frozenset(kept) - frozenset(resident))
            stacks.wipe()  # a thread begins with the registers of whoever starts it
        except BaseException:
            self.close()
            raise

    # --- once ---------------------------------------------------------------------------------------------------------
    def _load(self, resident: frozenset[str], hidden: bool) -> None:
        check_runnable(self.gguf)
        self.prepare(1)
        self._workers[0].places = 1  # `plaintext_budget` may have no room for more
        self._vectors: dict[str, NDArray[np.float32]] = {}
        for name, info in self.tensors.items():
            if len(info.shape) == 1:
                self._vectors[name] = self._read_vector(info)  # one by one: `close` wipes those before one that fails
        self._keep(resident)
        embedding = self.tensors.get(EMBEDDING)
        if hidden and embedding is not None and EMBEDDING not in resident:
            segment = self._segments[self._number[EMBEDDING]]
            self._embedding = HiddenRows(segment, self._tiles_of(segment))
        self._wipe()
        self._workers[0].places = self._places

    def prepare(self, threads: int) -> None:
        """Make the buffers of `threads` threads. ModelError where they cannot be locked in memory."""
        tiles = self._tiles.tiling
        rows = max((segment.nbytes_of(0) for segment in self._segments if segment.kind == "matrix"), default=0)
        while len(self._workers) < threads:
            self._workers.append(Worker(tiles.max_tile_nbytes, rows if self._plain else tiles.max_record_nbytes,
                                        plain=self._plain))
            self._workers[-1].places = self._places

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """The matrices that passes use, in this order; of those in one group tiles are used in turn. Where there is no
        memory for a page cache, those that are not in memory are read ahead from here on. ModelError where there is no
        memory for that either."""
        streamed = [[self.segment(name) for name in names if name not in self._offsets and not self.kept(name)]
                    for names in groups]
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if self._past_cache and any(streamed):
            places = [in_turn([[self.place(self.tile(segment.first_tile + index)) for index in range(segment.tiles)]
                               for segment in segments]) for segments in streamed]
            self._ahead = ReadAhead(self._tiles.file.again(), [place for group in places for place in group])

    @functools.cached_property
    def _past_cache(self) -> bool:
        """Whether the file is read ahead, past the page cache: that cannot hold it, and does not all the same, as where
        somebody else reads the same file. The interpreter fetches tiles then: a disk leaves it time."""
        return self.drop and not self._compiled and not (self._compiled is None and self._tiles.file.cached())

    def narrow(self) -> None:
        """Use one place for a tile in each thread, not two: less plaintext, and slower on most CPUs. Before the first
        pass."""
        self._places = 1
        for worker in self._workers:
            worker.places = 1
            worker.turn()

    def _tiles_of(self, segment: Segment) -> Iterator[memoryview]:
        worker = self._workers[0]
        for index in range(segment.tiles):
            nbytes = self._fill(worker, segment.first_tile + index)
            yield worker.tile[:nbytes]

    def _read_vector(self, info: TensorInfo) -> NDArray[np.float32]:
        data, end = bytearray(info.nbytes), 0
        try:
            for part in self._tiles_of(self._segments[self._number[info.name]]):
                memoryview(data)[end:end + len(part)] = part  # a bytearray makes a copy of what it is given first
                end += len(part)
            return vector(info, memoryview(data))
        finally:
            wipe(data)

    def _keep(self, resident: frozenset[str]) -> None:
        """Decrypt the matrices that stay."""
        self._offsets: dict[str, int] = {}
        nbytes = 0
        for name in sorted(resident & self.tensors.keys() - self._vectors.keys()):
            segment = self._segments[self._number[name]]
            self._offsets[name] = nbytes
            nbytes += -(-segment.units * segment.unit_nbytes // ALIGNMENT) * ALIGNMENT
        if not nbytes:
            return
        self._arena = anonymous(nbytes, "the model's resident weights", secret=True)
        for name, start in self._offsets.items():
            for part in self._tiles_of(self._segments[self._number[name]]):
                self._arena[start:start + len(part)] = part
                start += len(part)

    def _keep_records(self, names: frozenset[str]) -> None:
        """Read the records that stay."""
        tiles = self._tiles
        if isinstance(tiles, PlainTiles):
            return
        segments = [segment for segment in self._segments if segment.kind == "matrix" and segment.info is not None
                    and segment.info.name in names]
        nbytes = sum(segment.records_nbytes for segment in segments)
        if not nbytes:
            return
        self._records, start = anonymous(nbytes, "the model's encrypted weights"), 0
        with memoryview(self._records) as view:
            for segment in segments:
                with view[start:start + segment.records_nbytes] as place:
                    tiles.keep(segment, place)
                self._kept[segment.first_tile] = start
                start += segment.records_nbytes

    # --- what the engine asks -----------------------------------------------------------------------------------------
    @property
    def alive_limit(self) -> int:
        """Bytes of streamed plaintext that can exist at one moment, with the threads prepared so far."""
        return sum(worker.nbytes for worker in self._workers)

    @property
    def plaintext_nbytes(self) -> int:
        """Bytes of plaintext weights that can exist at one moment: tiles, what is resident, and each vector (as it
        is handed out, as the model keeps it, and as each user of it as a draft does)."""
        vectors = sum(values.nbytes for values in self._vectors.values())
        return self.alive_limit + self.resident_nbytes + (2 + self.users) * vectors

    @property
    def residency(self) -> str:
        """How its weights are kept, for people."""
        kept = f", {self.kept_nbytes / 2**20:.1f} MiB kept encrypted" if self.kept_nbytes else ""
        return (f"streamed by {self.fetched_by}, at most {self.plaintext_nbytes / 2**20:.1f} MiB of plaintext weights, "
                f"{self.resident_nbytes / 2**20:.1f} MiB of them resident{kept}")

    @property
    def failure(self) -> str | None:
        """The code of the error with which every pass is refused from now on; None while there is none."""
        error = self._failure
        return error.code if isinstance(error, ApplianceError) else None if error is None else "model-unreadable"

    @property
    def resident_nbytes(self) -> int:
        """Bytes of matrices that are kept decrypted."""
        return 0 if self._arena is None else len(self._arena)

    @property
    def kept_nbytes(self) -> int:
        """Bytes of records that stay in memory, encrypted; those of the embedding for lookup not counted."""
        return 0 if self._records is None else len(self._records)

    def kept(self, name: str) -> int:
        """Address of the records of a matrix that are in memory; 0 where they are not."""
        start = self._kept.get(self.segment(name).first_tile)
        return 0 if start is None or self._records is None else address(self._records) + start

    def weight(self, name: str) -> Weight:
        """A tensor of two dimensions, at an address or with `fetch`; FormatError when there is none of this kind."""
        info = self.tensor(name, 2)
        number = self._number[name]
        segment = self._segments[number]
        nbytes = segment.units * segment.unit_nbytes
        if name in self._offsets and self._arena is not None:
            return Weight(info.format, info.rows, info.columns, address(self._arena) + self._offsets[name], nbytes)
        return Weight(info.format, info.rows, info.columns, 0, nbytes, self._fetch_address, number,
                      segment.tile_units, self._past_cache and not self.kept(name))

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one dimension, decoded, read-only; FormatError when there is none of this kind."""
        self.tensor(name, 1)
        return self._vectors[name]

    # --- for compiled code --------------------------------------------------------------------------------------------
    def native(self, threads: int, *, in_place: bool = False) -> Native | None:
        """What so many threads need to fetch tiles without the interpreter; None where the source fetches them. With
        `in_place` each thread then has one place for a tile: faster where what it wrote last stays in its cache."""
        tiles, most = self._tiles, self._tiles.tiling.max_tile_nbytes
        library = None if self._compiled is False or self._past_cache else libcrypto.load()
        if library is None or not (self._compiled or native.worthwhile(library, threads, most)):
            return None
        if in_place:
            self.narrow()
        for worker in self._workers[:threads]:
            if worker.cipher is None:
                worker.cipher = tiles.cipher(library)
        self.fetched_by = f"libcrypto {library.version}"
        extra, tags = ((0, 0), tiles.tags_address) if isinstance(tiles, PlainTiles) else (tiles.extra, 0)
        return Native(native.functions(library), extra, PIECE_NBYTES, most, tuple(
            (0 if worker.cipher is None else worker.cipher.address, worker.addresses[0],
             worker.addresses[worker.places - 1], worker.room_address)
            for worker in self._workers[:threads]), tags)

    @property
    def buffers(self) -> list[tuple[int, int]]:
        """Address and size of every place for a tile."""
        return [(address, len(tile)) for worker in self._workers
                for address, tile in zip(worker.addresses, worker.tiles, strict=True)]

    def tile(self, number: int) -> Tile:
        """A tile by its number."""
        return self._tiles.tiling.tile(number)

    def segment(self, name: str) -> Segment:
        """Where the tiles of a tensor are. FormatError when there is none of this name."""
        return self._tiles.tiling.of(name)

    def place(self, tile: Tile) -> tuple[int, int]:
        """Where a tile is in the file: offset and bytes of its record, or of its rows in a plain file."""
        return (tile.source_offset, tile.source_nbytes) if self._plain else (tile.offset, tile.record_nbytes)

    @property
    def descriptor(self) -> int:
        """The open file; -1 after `close`."""
        return self._tiles.file.descriptor

    def settle(self, alive: Sequence[int], fault: str, errno: int, number: int) -> None:
        """After a pass of compiled code, within `passing`: bytes of the largest tile that each thread had, and what
        failed, by the names of the kernels' table. Raises the error of that."""
        for worker, nbytes in zip(self._workers, alive, strict=False):
            worker.alive = max(worker.alive, (worker.places + int(self._plain)) * nbytes)
        self.most_alive = max(self.most_alive, sum(worker.alive for worker in self._workers))
        if fault == "none":
            return
        tiles, tile = self._tiles, self._tiles.tiling.tile(number)
        if fault == "read":
            raise tiles.file.unreadable(self.place(tile)[0], os.strerror(errno))
        raise tiles.file.ended(self.place(tile)[0]) if fault == "end" else tiles.altered(tile)

    # --- each pass ----------------------------------------------------------------------------------------------------
    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a pass: buffers are wiped at its end; ModelError when a tile failed in it or in a pass before. One
        pass at a time has the buffers; another waits."""
        self._refuse_failed()
        with self._turn, interrupts.later():
            try:
                yield
            except ModelError as error:
                self._failure = self._failure or error
                raise
            finally:
                self._wipe()
        self._refuse_failed()

    def rows(self, name: str, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """For each of the rows `numbers` of a matrix, in an order of its own: (which of them, address of packed groups,
        row within those); valid until the next. Within `passing` only."""
        worker = self._workers[0]
        segment = self._segments[self._number[name]]
        hidden = self._embedding if name == EMBEDDING else None
        loaded = -1
        for index in sorted(range(len(numbers)), key=numbers.__getitem__):
            piece, row = (divmod(numbers[index], segment.tile_rows) if hidden is None else
                          hidden.place(numbers[index]))
            if piece != loaded:
                loaded = piece
                if hidden is None:
                    self._fill(worker, segment.first_tile + piece)
                else:
                    worker.hold(-1)
                    self._count(worker, hidden.read(piece, worker.tile))
            yield index, worker.address, row

    def _fetch(self, number: int, tile: int, thread: int) -> int:
        """Called by kernels: the address of tile `tile` of the matrix `number`, for the thread `thread`."""
        worker, wanted = self._workers[thread], self._segments[number].first_tile + tile
        if self._failure is None:
            held = worker.held(wanted)
            if held is not None:
                return held
            try:
                self._fill(worker, wanted)
                worker.hold(wanted)
            except BaseException as error:  # noqa: BLE001  nothing may leave through compiled code
                self._failure = error
        if self._failure is not None:
            worker.wipe()
        return worker.address

    def _fill(self, worker: Worker, number: int) -> int:
        """Read, authenticate and decrypt a tile into a worker's next slot; its bytes. Errors as `read_tile`."""
        tiles = self._tiles
        worker.turn()
        tile = self._known.get(number)
        if tile is None:
            tile = self._known[number] = tiles.tiling.tile(number)
        self._count(worker, worker.places * tile.nbytes + (tile.source_nbytes if self._plain else 0))
        with self._kept_record(tile) or self._read_ahead(tile) as found:
            if found is None:
                return tiles.read(tile, worker.tile, worker.room)
            tiles.open(tile, found, worker.tile[:tile.nbytes])
        return tile.nbytes

    @contextmanager
    def _read_ahead(self, tile: Tile) -> Iterator[memoryview | None]:
        """What the file has of a tile, where that was read ahead, in memory that nobody writes meanwhile."""
        offset, nbytes = self.place(tile)
        found = None if self._ahead is None else self._ahead.take(offset, nbytes)
        try:
            yield found
        finally:
            if found is not None and self._ahead is not None:
                self._ahead.give_back(offset)

    def _kept_record(self, tile: Tile) -> memoryview | None:
        """The record of a tile that is kept; None for another."""
        start = self._kept.get(tile.segment.first_tile)
        if start is None or self._records is None:
            return None
        start += tile.offset - tile.segment.offset
        with memoryview(self._records) as records:
            return records[start:start + tile.record_nbytes]

    def _count(self, worker: Worker, nbytes: int) -> None:
        if nbytes > worker.alive:
            worker.alive = nbytes
            self.most_alive = max(self.most_alive, sum(each.alive for each in self._workers))

    def _refuse_failed(self) -> None:
        """Raise what failed, always anew: a traceback must not grow from pass to pass."""
        error = self._failure
        if isinstance(error, ApplianceError):
            raise type(error)(error.summary, hint=error.hint, code=error.code) from None
        if error is not None:
            raise ModelError(f"a tile could not be read: {type(error).__name__}", code="model-unreadable") from None

    def _wipe(self) -> None:
        for worker in self._workers:
            worker.wipe()

    def close(self) -> None:
        """Wipe everything and close the file. Addresses handed out before are void from here on."""
        self.closed = True
        self.wipe()
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def wipe(self) -> None:
        """As `close`, and waits for no thread that reads ahead."""
        while self._workers:
            self._workers.pop().close()
        if self._embedding is not None:
            self._embedding.close()
            self._embedding = None
        if self._arena is not None:
            discard(self._arena, secret=True)
            self._arena = None
        if self._records is not None:
            discard(self._records)
            self._records = None
        for values in self.__dict__.pop("_vectors", {}).values():
            values.flags.writeable = True
            values.fill(0)
        self._tiles.close()
