"""Pages of keys and values on a disk: the shelf that an engine keeps earlier texts on.

The engine's thread seals and opens pages. A thread of its own writes what was sealed, in order,
another one reads: so an engine never waits for the disk. A kill loses pages that were not written;
a record that was written in part does not open.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from appliance.engine.forward.persistence import Entry, RecordName
from appliance.engine.forward.states import pieces
from appliance.errors import StateError
from appliance.secure import stacks
from appliance.secure.wipe import wipe
from appliance.state import page_format
from appliance.state.page_format import PAGES, STATES, Label, RecordKind
from appliance.state.page_keys import PageKeys

QUEUE_BYTES = 16 << 20  # of sealed pages that wait to be written; one page may always wait
_IDLE_SECONDS = 3600.0
_STEP_SECONDS = 0.1  # from one look at whether the disk has failed to the next


class Disk(Protocol):
    """The disk that pages are written to. Both methods raise OSError or StateError when it fails.
    """

    def read(self, at: int, size: int) -> bytes:
        """`size` bytes, fewer at the end."""
        ...

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Write all of it, and onto the disk."""
        ...


class PageWriter:
    """The thread that writes, and what waits for it. After a failure nothing is written, and
    nothing is read any more."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.broken = False
        self.tend: Callable[[], float] = lambda: _IDLE_SECONDS
        """Called between writes, and again after as many seconds as it says."""
        self.failed: Callable[[], None] = lambda: None
        """Called once the disk has failed."""
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: dict[int, bytearray] = {}  # records that are not written yet, by their place
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="pages", daemon=True)
        self._reader = ThreadPoolExecutor(1, "pages-read")  # its thread starts with the first read
        self._started = False

    @property
    def waiting(self) -> int:
        """Bytes that wait to be written."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        """Start the thread that writes. Earlier tasks are done first."""
        self._started = True
        self._thread.start()

    def schedule(self, task: Callable[[], None]) -> None:
        """Do a task after all that was given before."""
        self._tasks.put(task)

    def write(self, at: int, record: bytearray) -> None:
        """Write a record, soon."""
        with self._lock:
            self._waiting[at] = record

        def task() -> None:
            self.disk.write(at, record)
            with self._lock:
                if self._waiting.get(at) is record:
                    del self._waiting[at]
        self.schedule(task)

    def read(self, at: int, size: int) -> Future[bytes]:
        """Begin to read a record, which may still be on its way."""
        with self._lock:
            waiting = self._waiting.get(at)
        if waiting is not None:
            found = Future[bytes]()
            found.set_result(bytes(waiting))
            return found
        return self._reader.submit(self.disk.read, at, size)

    def flush(self, seconds: float) -> None:
        """Wait, no longer than that, until all is done that was scheduled."""
        if self._started and not self.broken:
            done, end = threading.Event(), time.monotonic() + seconds
            self.schedule(done.set)
            while not (self.broken or done.wait(min(_STEP_SECONDS, max(0.0, end - time.monotonic())))):
                if time.monotonic() >= end:
                    return

    def close(self, last: Callable[[], None], seconds: float) -> bool:
        """Do what was scheduled, then `last`, and end both threads; False where that takes longer.
        """
        self._reader.shutdown(wait=False, cancel_futures=True)
        self.schedule(last)
        self._tasks.put(None)
        if self._started:
            self._thread.join(seconds)
        else:
            self._loop()
        return not self._thread.is_alive()

    def _loop(self) -> None:
        due = time.monotonic()
        while True:
            try:
                if time.monotonic() >= due and not self.broken:
                    due = time.monotonic() + self.tend()
                task = self._tasks.get(timeout=max(0.0, due - time.monotonic()))
                if task is None:
                    return
                if not self.broken:
                    task()
            except queue.Empty:
                continue
            except Exception:  # noqa: BLE001 - a disk that fails, or a defect: texts are read again then
                self._fail()

    def _fail(self) -> None:
        with self._lock:
            self.broken = True
            self._waiting.clear()
        self.failed()


class PageShelf:
    """The pages of one model. Implements the engine's `Shelf`."""

    def __init__(self, keeper: PageWriter, keys: PageKeys, binding: bytes, *, at: int, places: int,
                 halves: tuple[int, int], states: int = 0, state: int = 0) -> None:
        """`binding`: of this shelf alone, see `page_format.shelf_binding`. Records begin at byte
        `at`: those of `places` pages, then those of `states`. `halves`: bytes of the keys of a
        page, and of its values; `state`: those of a state. StateError where another shelf has the
        binding."""
        keys.bind(binding)
        self._keeper, self._keys, self._binding = keeper, keys, binding
        self._at, self._places, self._states = at, places, states
        self._strides = {PAGES: page_format.content_nbytes(halves), STATES: page_format.content_nbytes(pieces(state))}

    @property
    def places(self) -> int:
        """Pages that it has room for."""
        return self._places

    @property
    def state_places(self) -> int:
        """States that it has room for."""
        return self._states

    @property
    def ready(self) -> bool:
        """Whether it takes a page or a state now."""
        waiting = self._keeper.waiting
        most = max(self._strides.values()) if self._states else self._strides[PAGES]
        return not self.broken and (not waiting or waiting + most <= QUEUE_BYTES)

    @property
    def broken(self) -> bool:
        """Whether the disk failed."""
        return self._keeper.broken

    @property
    def next_expiry(self) -> float | None:
        """Seconds until a key goes."""
        return self._keys.next_expiry

    def alive(self, key: int) -> bool:
        """Whether a key is still there."""
        return self._keys.alive(key)

    def entries(self, tenants: Collection[str]) -> Iterator[Entry]:
        """The records that are there and whose label opens, in the order of their names."""
        names = {page_format.tenant_digest(tenant): tenant for tenant in tenants}
        found = sorted(self._labels(names), key=lambda each: (each[1].key, each[1].number))
        for place, label in found:
            yield Entry(place, RecordName(label.key, label.number), RecordName(label.before_key, label.before_number),
                        names[label.tenant], np.frombuffer(label.tokens, "<i4"))
            wipe(label.tokens)

    def put(self, place: int, tenant: str, before: tuple[int, int], tokens: NDArray[np.int32],
            content: Sequence[memoryview]) -> RecordName | None:
        """Seal a page or a state, to be written soon. None where its key goes meanwhile."""
        key, number = self._keys.name()
        digest, at, kind = page_format.tenant_digest(tenant), self._place(place), self._kind(place)
        owners, labels, pages = self._owners(key), self._labels_of(key, digest), self._pages_of(key, digest, kind)
        if owners is None or labels is None or pages is None:
            return None
        record = bytearray(self._strides[kind])
        page_format.seal(record, at, Label(key, number, *before, digest, memoryview(tokens.data).cast("B")),
                         (owners, labels, pages), content, kind)
        stacks.wipe()
        self._keeper.write(at, record)
        return RecordName(key, number)

    def fetch(self, place: int) -> Future[bytes]:
        """Begin to read a record."""
        return self._keeper.read(self._place(place), self._strides[self._kind(place)])

    def open(self, record: bytes, place: int, tenant: str, name: tuple[int, int],
             content: Sequence[memoryview]) -> bool:
        """Open a record into a page or a state, which is zeros where it does not open."""
        kind = self._kind(place)
        pages = self._pages_of(name[0], page_format.tenant_digest(tenant), kind)
        opened = pages is not None and page_format.open_page(record, self._place(place), name, pages, content, kind)
        stacks.wipe()
        return opened

    def flush(self, seconds: float) -> None:
        """Wait, no longer than that, until what was put is written."""
        self._keeper.flush(seconds)

    def _kind(self, place: int) -> RecordKind:
        return PAGES if place < self._places else STATES

    def _place(self, place: int) -> int:
        pages = min(place, self._places)
        return self._at + pages * self._strides[PAGES] + (place - pages) * self._strides[STATES]

    def _labels(self, tenants: Collection[bytes]) -> Iterator[tuple[int, Label]]:
        """Every label of some tenants that opens, with its place; none of a disk that fails."""
        for place in range(self._places + self._states):
            at = self._place(place)
            try:
                record = self._keeper.disk.read(at, page_format.LABEL_END)
            except (OSError, StateError):
                return
            label = self._label(record, at, tenants, self._kind(place))
            if label is not None:
                yield place, label
        stacks.wipe()

    def _label(self, record: bytes, at: int, tenants: Collection[bytes], kind: RecordKind) -> Label | None:
        name = page_format.name_of(record, kind)
        owners = None if name is None else self._owners(name[0])
        if name is None or owners is None:
            return None
        tenant = page_format.open_owner(record, at, owners, kind)
        labels = None if tenant is None or tenant not in tenants else self._labels_of(name[0], tenant)
        return None if tenant is None or labels is None else page_format.open_label(record, at, labels, tenant, kind)

    def _owners(self, key: int) -> AESGCM | None:
        return self._keys.cipher(key, f"owner {self._binding.hex()}",
                                 lambda secret: page_format.owner_cipher(secret, self._binding))

    def _labels_of(self, key: int, tenant: bytes) -> AESGCM | None:
        return self._keys.cipher(key, f"label {self._binding.hex()} {tenant.hex()}",
                                 lambda secret: page_format.label_cipher(secret, self._binding, tenant))

    def _pages_of(self, key: int, tenant: bytes, kind: RecordKind) -> AESGCM | None:
        return self._keys.cipher(key, f"{kind.use.decode()} {self._binding.hex()} {tenant.hex()}",
                                 lambda secret: page_format.page_cipher(secret, self._binding, tenant, kind))
