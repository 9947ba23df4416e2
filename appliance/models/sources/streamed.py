"""The streamed source: matrices come tile by tile, decrypted into a worker's own buffer and
overwritten by the next.

A kernel asks for a tile with `fetch`, a C function pointer into this module: read the tile,
authenticate it, decrypt it into the locked buffer of the thread that asks. Reading and decrypting
release the interpreter's lock. After each pass the buffers are wiped, so no plaintext of a streamed
matrix outlives the pass that used it. (Of a plain file that is read ahead, the buffers of that hold
what the file holds.)

A tile that cannot be had (altered, cut off, gone, a disk error) fails the model for good. The
kernel gets zeros, the pass is ended by the error, and its results are dropped. Every later pass is
refused with the same error.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from appliance.errors import ApplianceError, FormatError, ModelError
from appliance.models.file.opened import OpenModel
from appliance.models.file.roles import Roles, by_rank, check_runnable
from appliance.models.sealed.reader import SealedModel
from appliance.models.sources.decrypted import Decrypted
from appliance.models.sources.hidden_rows import HiddenRows
from appliance.models.sources.native import Native
from appliance.models.sources.source import Access, KernelMatrix, TileTable
from appliance.models.sources.tagged import PlainTiles
from appliance.models.sources.tile_reader import TileReader
from appliance.models.sources.worker import Workers
from appliance.secure import interrupts, stacks

_FETCH = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
_FIRST = _FETCH(lambda number, tile, thread: 0)
"""Functions for compiled code are made in the page of the first one: a process in its sandbox gets no other."""
EMBEDDING = "token_embd.weight"
AHEAD_NBYTES = 32 << 20
"""Read ahead by the system: enough for what a fast disk brings while a few tiles are multiplied."""


class StreamedSource(OpenModel):
    """A sealed or plain model of which matrices are read when they are used. Close it when the
    engine is gone.

    Names in `resident` are decrypted once and kept; all vectors are. Unless `access` is "leaks",
    looking up embeddings shows the disk nothing: their ciphertext is kept in memory. Of runs of
    matrices on the disk, each pass then reads all; with "oblivious", it uses all in one order.
    """

    def __init__(self, tiles: SealedModel | PlainTiles, *, resident: Collection[str] = (), access: Access = "hidden",
                 kept: Collection[str] = (), ahead_nbytes: int = AHEAD_NBYTES, drop: bool = False,
                 compiled: bool | None = None, users: int = 1, roles: Roles = by_rank) -> None:
        """Takes `tiles` over, and closes them when it fails: ModelError for tiles that cannot be
        read and for memory. `roles` says what each tensor is. Errors as `check_runnable`.

        `kept`: matrices of a sealed model whose records stay in memory, encrypted, so that no pass
        asks the disk for them. `drop`: there is no memory for a page cache. The file is then read
        ahead into buffers, see `expect`, or, by compiled code, the page cache forgets what was
        read, and the system reads `ahead_nbytes` ahead of it. `compiled`: whether compiled code may
        fetch tiles by itself; None is where that is faster. `users`: models that it drafts for at
        most, see `plaintext_nbytes`."""
        self._tiles, self._users = tiles, users
        self.gguf, self.sha256, self.header_sha256 = tiles.gguf, tiles.sha256, tiles.header_sha256
        self._segments = tuple(segment for segment in tiles.tiling.segments if segment.info is not None)
        self._number = {segment.info.name: index for index, segment in enumerate(self._segments) if segment.info}
        self._failure: BaseException | None = None
        self._turn = threading.Lock()
        plain = isinstance(tiles, PlainTiles)
        rows = max((segment.nbytes_of(0) for segment in self._segments if segment.kind == "matrix"), default=0)
        self.workers = Workers(tiles.tiling.max_tile_nbytes, rows if plain else tiles.tiling.max_record_nbytes,
                               plain=plain)
        self.reader = TileReader(tiles, self.workers, ahead_nbytes=ahead_nbytes, drop=drop, compiled=compiled,
                                 access=access)
        self._access = access
        self._decrypted = Decrypted()
        self._embedding: HiddenRows | None = None
        self._function = _FETCH(self._fetch)  # kept alive: kernels hold its address
        self._fetch_address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        try:
            self._load(frozenset(resident), roles)
            self.reader.keep(frozenset(kept) - frozenset(resident))
            stacks.wipe()  # a thread begins with the registers of whoever starts it
        except BaseException:
            self.close()
            raise

    # --- once -------------------------------------------------------------------------------------
    def _load(self, resident: frozenset[str], roles: Roles) -> None:
        self.roles = roles(self.gguf)
        check_runnable(self.gguf, self.roles)
        with self.workers.loading():
            self._decrypted.read(self._tiles.tiling, self.roles, resident, self.reader.tiles_of)
            if self._access != "leaks" and EMBEDDING in self.tensors and EMBEDDING not in resident:
                segment = self.reader.segment(EMBEDDING)
                self._embedding = HiddenRows(segment, self.reader.tiles_of(segment))
                self.workers.reserve(sum(self._embedding.beside) if self._access == "oblivious" else 0)

    def prepare(self, threads: int) -> None:
        """Make the buffers of `threads` threads. Raises ModelError if they cannot be locked in
        memory.
        """
        self.workers.prepare(threads)

    def narrow(self) -> None:
        """Use one place for a tile in each thread, see `Workers.narrow`."""
        self.workers.narrow()

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """Prepare for passes that use these matrices in this order, and the tiles of one group in
        turn. If there is no memory for a page cache, matrices on the disk are read ahead from here
        on. Raises ModelError if there is no memory for that either."""
        reader = self.reader
        reader.expect([[reader.segment(name) for name in names if self.streams(name) and self._in_order(name)]
                       for names in groups])

    def _in_order(self, name: str) -> bool:
        """Whether each pass asks for all tiles of a matrix, or a run of them, on the disk."""
        segment = self.reader.segment(name)
        return not self.reader.kept(name) and (segment.runs == 1 or self.reader.visited(segment))

    # --- what the engine asks ---------------------------------------------------------------------
    @property
    def alive_limit(self) -> int:
        """Bytes of streamed plaintext that can exist at one moment, with the threads prepared so
        far."""
        return self.workers.nbytes

    @property
    def most_alive(self) -> int:
        """The most bytes of streamed plaintext that existed at one moment so far."""
        return self.workers.most_alive

    @property
    def plaintext_nbytes(self) -> int:
        """Bytes of plaintext weights that can exist at one moment: tiles, what is resident, and
        each vector. A vector counts as it is handed out, as the model keeps it, and as each user of
        it as a draft does."""
        return self.alive_limit + self.resident_nbytes + (2 + self._users) * self._decrypted.vectors_nbytes

    @property
    def residency(self) -> str:
        """How its weights are kept, for people."""
        kept = f", {self.kept_nbytes / 2**20:.1f} MiB kept encrypted" if self.kept_nbytes else ""
        return (f"streamed by {self.reader.fetched_by}, at most {self.plaintext_nbytes / 2**20:.1f} MiB of plaintext "
                f"weights, {self.resident_nbytes / 2**20:.1f} MiB of them resident{kept}")

    @property
    def failure(self) -> str | None:
        """The code of the error with which every pass is refused from now on; None while there is
        none."""
        error = self._failure
        return error.code if isinstance(error, ApplianceError) else None if error is None else "model-unreadable"

    @property
    def resident_nbytes(self) -> int:
        """Bytes of matrices that are kept decrypted."""
        return self._decrypted.nbytes

    @property
    def kept_nbytes(self) -> int:
        """Bytes of records that stay in memory, encrypted; those of the embedding for lookup not
        counted."""
        return self.reader.records.nbytes

    def streams(self, name: str) -> bool:
        """Tell whether each pass reads this matrix anew. Raises FormatError if there is none of
        this name."""
        self.matrix_run(name)
        return not self._decrypted.has(name)

    def weight(self, name: str) -> KernelMatrix:
        """Return a matrix, or a run of them, at an address or with `fetch`. Raises FormatError if
        there is none of this kind."""
        run, segment = self.matrix_run(name), self.reader.segment(name)
        shape, address = (run.info.format, run.rows, run.columns), self._decrypted.address(name)
        every = self._access == "oblivious" and (run.runs > 1 or (name == EMBEDDING and not address))
        if address:
            return KernelMatrix(*shape, address, run.nbytes, runs=run.runs, every=every)
        past = self.reader.past_cache and self._in_order(name)
        return KernelMatrix(*shape, 0, run.nbytes, self._fetch_address, self._number[name], segment.tile_units, past,
                            run.runs, self.reader.visited(segment), every)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector, decoded, read-only. Raises FormatError if there is none of this kind."""
        self.vector_info(name)
        return self._decrypted.vector(name)

    def native(self, threads: int, *, in_place: bool = False) -> Native | None:
        """Return the means of compiled code to fetch tiles by itself, see `TileReader.native`."""
        return self.reader.native(threads, in_place=in_place)

    def table(self, name: str) -> TileTable:
        """Where the tiles of a matrix are. Raises FormatError if there is none of this name."""
        return self.reader.table(name)

    # --- each pass --------------------------------------------------------------------------------
    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around a pass: buffers are wiped at its end. Raises ModelError if a tile failed in it or
        in a pass before. One pass at a time has the buffers; another waits."""
        self._refuse_failed()
        with self._turn, interrupts.later():
            try:
                yield
            except ModelError as error:
                self._failure = self._failure or error
                raise
            finally:
                self.workers.wipe()
        self._refuse_failed()

    def rows(self, name: str, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """For each of the rows `numbers` of a matrix, in an order of its own: (which of them,
        address of packed groups, row within those); valid until the next. Within `passing` only."""
        worker, segment = self.workers[0], self.reader.segment(name)
        hidden, wanted = self._embedding if name == EMBEDDING else None, dict[int, list[tuple[int, int]]]()
        for index, number in enumerate(numbers):
            piece, row = divmod(number, segment.tile_rows) if hidden is None else hidden.place(number)
            wanted.setdefault(piece, []).append((index, row))
        for piece in sorted(wanted):
            if hidden is None:
                self.reader.fill(worker, segment.first_tile + piece)
            else:
                self._open_piece(hidden, piece)
            for index, row in wanted[piece]:
                yield index, worker.address, row

    def _open_piece(self, hidden: HiddenRows, piece: int, more: int = 0) -> int:
        """Decrypt a piece into the first thread's buffer, beside `more` bytes; its bytes."""
        self.workers[0].hold(-1)
        nbytes = hidden.read(piece, self.workers[0].tile)
        self.workers.count(self.workers[0], nbytes + more)
        return nbytes

    def groups(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield all groups of the embedding, see `TileSource`. Raises FormatError for another."""
        hidden, unit = self._embedding, self.reader.segment(name).unit_nbytes
        if hidden is None or name != EMBEDDING:
            raise FormatError(f"tensor {name!r} is not kept hidden")
        for piece in range(hidden.pieces):
            yield self.workers[0].address, self._open_piece(hidden, piece, unit * self.spare(name)[1]) // unit

    def spare(self, name: str) -> tuple[int, int]:
        """Return the memory for groups of the embedding, see `TileSource`."""
        return self.workers[0].spare(*(self._embedding.beside if self._embedding is not None else (0, 1)))

    def _fetch(self, number: int, tile: int, thread: int) -> int:
        """Called by kernels: the address of tile `tile` of the matrix `number`, for the thread
        `thread`. The complement of a tile's number passes it by."""
        worker, first = self.workers[thread], self._segments[number].first_tile
        wanted = first + tile
        if self._failure is None:
            held = worker.held(wanted) if tile >= 0 else None
            if held is not None:
                return held
            try:
                if tile < 0:
                    self.reader.pass_by(worker, first + ~tile)
                else:
                    self.reader.fill(worker, wanted)
                    worker.hold(wanted)
            except BaseException as error:  # noqa: BLE001  nothing may leave through compiled code
                self._failure = error
        if self._failure is not None:
            worker.wipe()
        return worker.address

    def _refuse_failed(self) -> None:
        """Raise what failed, always anew: a traceback must not grow from pass to pass."""
        error = self._failure
        if isinstance(error, ApplianceError):
            raise type(error)(error.summary, hint=error.hint, code=error.code) from None
        if error is not None:
            raise ModelError(f"a tile could not be read: {type(error).__name__}", code="model-unreadable") from None

    def close(self) -> None:
        """Wipe everything and close the file. Addresses handed out before are void from here on."""
        self.closed = True
        self.wipe()
        self.reader.close()

    def wipe(self) -> None:
        """As `close`, and waits for no thread that reads ahead."""
        self.workers.close()
        if self._embedding is not None:
            self._embedding.close()
            self._embedding = None
        self._decrypted.close()
        self.reader.records.close()
        self._tiles.close()
