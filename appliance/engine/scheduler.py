"""Many requests, one engine: a thread of its own runs passes over all running answers and feeds in
waiting ones.

Waiting requests are served round-robin across tenants and in order within one, so a busy tenant
delays the others by at most one turn, or as many as its weight. Running answers share every pass
(`decode.batcher`). Slots are not all given away:

    for others   one slot of two or more, a quarter of many, stays for tenants who hold none
    for short    long prompts wait while `LONG_PROMPTS` of their tenant are being read, or as many as
                 it may have more slots, and these fill a pass; others pass them

With one slot tenants take turns, an answer each. Safe to use from any thread.

A request may ask for several answers to one prompt, which is read once. The first answer waits for
a slot as any does. Once the prompt is read each other answer is next in its tenant's turn, and
shares the full pages of the prompt. An answer that ends leaves its slot to another one of its
request where no other has one: so several take one slot at least, and the prompt stays. A
request may be allowed to begin a few of its answers at a time (`allow`). Where none of them may
begin and none runs, it rests: it holds no slot, and its prompt is read again for the next.

An answer that needs several slots waits until they are free together. Others pass it as long as
they leave it so many: those that passed hold no more slots than it leaves when all others end.

`on_advance` is called in the engine's thread, for each advance of an answer in order; the events of
its last end with `End`. Where a request was cancelled while it waited, that one call may come in
the thread of another that needs its room. It must return at once (hand the events to an event loop
or a queue). After an error in the engine the handle gets `on_error` instead of a last advance.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from appliance.engine.decode.batcher import Batcher
from appliance.engine.decode.generation import Advance, Generation, GenerationRequest
from appliance.engine.decode.prompt_share import LONG_ROWS
from appliance.engine.decode.running import Running
from appliance.engine.engine import Engine
from appliance.engine.forward.persistence import Shelf
from appliance.engine.handle import Handle, OnAdvance, OnError, OnStart
from appliance.errors import CapacityError, EngineError, ModelError

LONG_PROMPTS = 4  # of a tenant that are read at the same time: more would all be done late
KEPT_SHARE = 4  # one slot in this many, at most, is kept for tenants who hold none


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a scheduler is."""

    queued: int
    running: int


class Scheduler:
    """Takes the engine until it is closed."""

    def __init__(self, engine: Engine, *, concurrent: int | None = None, queue: int = 128,
                 tenants: Collection[str] | None = None, weights: Mapping[str, int] | None = None,
                 prefix_lifetime: float | None = None, shelf: Shelf | None = None) -> None:
        """`concurrent`: answers running at the same time (at most, and by default, what the engine
        can); `queue`: requests that may wait; `tenants`: who may ask (None: not known). Starts the
        engine's thread.

        `weights`: turns in a row and parts of a pass of a tenant; 1 for a tenant that is not there.

        `prefix_lifetime`: seconds for which pages of texts are kept after their last use; None: not
        at all. `shelf`: where they outlive the engine."""
        if queue < 0 or (concurrent is not None and concurrent < 1):
            raise EngineError(f"a scheduler of {concurrent} answers and a queue of {queue}")
        self._engine = engine
        self._batcher: Batcher = engine.acquire()
        self._concurrent = min(concurrent or engine.concurrent, engine.concurrent)
        self._queue_limit, self._tenants = queue, None if tenants is None else frozenset(tenants)
        self._weights = {} if weights is None else dict(weights)
        self._batcher.share_by(self._weights)
        self._divided = True  # whether the batcher knows the tenants as they are now
        self._turns = 0  # in a row that the tenant at the front has had
        self._waiting: OrderedDict[str, deque[Handle]] = OrderedDict()  # tenant at the front is next
        self._running: dict[int, tuple[Running, Handle]] = {}  # by slot; touched by the engine's thread only
        self._queued = 0
        self._starting: Handle | None = None  # from the queue on its way to a slot
        self._resting: list[Handle] = []  # without a slot; none of their answers may begin
        self._wide: Handle | None = None  # waits for several slots; others may pass it
        self._passed: set[int] = set()  # slots of those that did
        self._change = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        try:
            if prefix_lifetime is not None:
                engine.keep_prefixes(tenants or (), prefix_lifetime, shelf)
            self._thread.start()
        except BaseException:
            engine.release()
            raise

    def submit(self, request: GenerationRequest, tenant: str, on_advance: OnAdvance,
               on_error: OnError = lambda error: None, on_start: OnStart = lambda: None, *,
               more: Sequence[GenerationRequest] = (), allowed: int | None = None) -> Handle:
        """Queue a request; `on_start` is called, as `on_advance` is, when it gets its slot. `more`:
        other answers to its prompt. An error of one answer is the error of all. `allowed`: answers
        that may begin, 1 or more, until `allow` lets more; None: all.

        EngineError or CapacityError, at once, when it can never run or there is no room.
        """
        if any((each.prompt_ids, each.negative_ids) != (request.prompt_ids, request.negative_ids) for each in more):
            raise EngineError("the answers of one request have different prompts")
        generations = [self._engine.generation(each) for each in (request, *more)]
        generations[0].require(self._concurrent)
        handle = Handle(generations, tenant, on_advance, on_error, on_start, allowed)
        if self._full():
            self._drop_waiting()  # a pass may take long, and who left would have the room of others
        with self._change:
            if self._closing:
                raise EngineError("the service is shutting down", code="engine-closed")
            if self._full():
                raise CapacityError(f"{self._queued} requests are waiting; allowed: {self._queue_limit}",
                                    hint="try again later", code="queue-full")
            self._waiting.setdefault(tenant, deque()).append(handle)
            self._queued += 1
            self._change.notify()
        return handle

    def allow(self, handle: Handle, answers: int) -> None:
        """Let so many answers of a request begin, those that have begun included."""
        with self._change:
            ready, handle._allowed = handle._ready, max(handle._allowed, answers)
            if ready or not handle._ready or handle is self._starting:
                return
            self._waiting.setdefault(handle.tenant, deque()).appendleft(handle)
            if handle in self._resting:
                self._resting.remove(handle)
                self._queued += 1
            self._change.notify()

    def serve(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let these tenants ask from now on. The kept texts of others are wiped before the next
        pass."""
        with self._change:
            self._tenants, self._weights, self._divided = frozenset(tenants), dict(weights), False
            self._change.notify()

    @property
    def left(self) -> int:
        """Slots that one answer may have, so that those that are kept for other tenants stay."""
        return self._concurrent - self._kept(1 if self._tenants is None else len(self._tenants) - 1)

    @property
    def load(self) -> Load:
        """Requests in the queue and in the engine."""
        with self._change:
            return Load(self._queued, len(self._running) + (self._starting is not None))

    @property
    def passes(self) -> int:
        """Passes of the engine since its start."""
        return self._batcher.passes

    def _full(self) -> bool:
        with self._change:
            return self._queued >= self._queue_limit + self._concurrent - self._taken()

    def _taken(self) -> int:
        starting = self._starting
        return self._held() + (0 if starting is None else starting.places)

    def _held(self) -> int:
        return sum(handle.places for _, handle in self._running.values())

    def close(self, seconds: float | None = None) -> bool:
        """Refuse new requests, cancel those at hand, give the engine back. False when a pass takes
        longer than `seconds`: the engine is still in use then."""
        with self._change:
            self._closing = True
            self._change.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    # --- the engine's thread ----------------------------------------------------------------------
    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._engine.release()

    def _turn(self) -> bool:
        """Admit, drop, run one pass; False when all is done. A defect, or want of memory, must
        leave nobody waiting for ever, nor those who come later."""
        try:
            if not self._admit():
                return False
            self._divide()
            self._drop_cancelled()
            self._batcher.expire()
            self._pass()
        except Exception as error:  # noqa: BLE001
            self._fail(_internal(error))
        return True

    def _divide(self) -> None:
        """Let the batcher know the tenants, if they have changed."""
        with self._change:
            if self._divided:
                return
            tenants, weights, self._divided = self._tenants or (), self._weights, True
        self._batcher.share_by(weights)
        self._batcher.divide(tenants)

    def _admit(self) -> bool:
        """Wait for work and move requests from the queue to free slots; False when all is done."""
        with self._change:
            while self._divided and not (self._running or self._queued or self._closing):
                self._change.wait(self._batcher.expire())
            if self._closing:
                self._cancel_everything()
        while (handle := self._take()) is not None:
            self._start(handle, None if not handle._begun else next(each for each in handle._running if each.forks))
        with self._change:
            return bool(self._running or self._queued or self._resting) or not self._closing

    def _take(self) -> Handle | None:
        """The next request on its way to a slot; None where none waits or there is no room."""
        with self._change:
            self._starting = self._next()
            return self._starting

    def _start(self, handle: Handle, parent: Running | None) -> None:
        """Give a request a slot, or another answer of it, beside `parent`. It takes a while for a
        long prompt, so nobody who submits waits for it."""
        generation = handle._waiting.popleft()
        try:
            running = (self._batcher.add(generation, handle.tenant) if parent is None
                       else self._batcher.fork(parent, generation))
        except MemoryError as error:
            self._starting = None
            self._fail_all(handle, _internal(error))
            return
        handle._running.append(running)
        with self._change:
            self._running[running.slot] = (running, handle)
            self._starting = None
            if self._wide is not None:
                self._passed.add(running.slot)
            if parent is None and handle._ready:
                self._waiting.setdefault(handle.tenant, deque()).appendleft(handle)
            elif parent is not None and not handle._ready:
                self._leave(handle)
        if handle._first is not None:
            return
        handle.timings, handle._first = running.timings, running
        with contextlib.suppress(Exception):  # a broken callback must not stop the others
            handle._on_start()

    def _leave(self, handle: Handle) -> None:
        """Take a request out of the queue."""
        handles = self._waiting[handle.tenant]
        handles.remove(handle)
        if not handles:
            del self._waiting[handle.tenant]

    def _next(self) -> Handle | None:
        """Take the first request that may have a slot, of the tenant whose turn it is. After as
        many turns as its weight, that tenant goes to the back."""
        holders, room = {handle.tenant for _, handle in self._running.values()}, self._concurrent
        self._wide = None if self._wide is None or self._wide._cancelled.is_set() else self._wide
        for tenant, handles in self._waiting.items():
            handle = self._first(tenant, handles, holders)
            if handle is not None and handle.places <= room:
                if handle is self._wide:
                    self._wide = None
                self._turns = self._turns + 1 if tenant == next(iter(self._waiting)) else 1
                on = self._turns < self._weights.get(tenant, 1)
                self._waiting.move_to_end(tenant, last=not on)
                if not handle._begun:
                    self._leave(handle)
                    self._queued -= 1
                if not on or tenant not in self._waiting:
                    self._turns = 0
                return handle
            if tenant not in holders and handles[0].places > self._concurrent - self._held():
                room = min(room, self._beside(handles[0]))
        return None

    def _beside(self, handle: Handle) -> int:
        """Slots that others may still take while a request waits for several: the first such
        request gets them once those that run now have ended."""
        if self._wide is None:
            self._wide, self._passed = handle, set()
        passed = sum(other.places for slot, (_, other) in self._running.items() if slot in self._passed)
        return self._concurrent - self._wide.places - passed

    def _first(self, tenant: str, handles: deque[Handle], holders: Collection[str]) -> Handle | None:
        """The request of a tenant that may have a slot now: one that has one already comes first,
        and its prompt must be read."""
        own = self._concurrent - self._held() - self._reserved(tenant, holders)
        for handle in handles:
            if handle._begun and handle.places <= own and any(each.forks for each in handle._running):
                return handle
        new = [handle for handle in handles if not handle._begun]
        if not new or own < new[0].places:
            return None
        found: Handle | None = new[0]
        if self._batcher.reads(tenant, min(own, LONG_PROMPTS)):
            found = next((each for each in new if each.prompt_tokens <= LONG_ROWS and each.places <= own), None)
        return found if found is not None and self._batcher.fits(found._generations[0]) else None

    def _reserved(self, tenant: str, holders: Collection[str]) -> int:
        """Slots that stay free for others than a tenant."""
        others = 1 if self._tenants is None else len(self._tenants.difference(holders, (tenant,)))
        return self._kept(others) if tenant in holders else 0

    def _kept(self, others: int) -> int:
        """Slots that are kept for so many tenants."""
        return min(max(others, 0), max(1, self._concurrent // KEPT_SHARE)) if self._concurrent > 1 else 0

    def _cancel_everything(self) -> None:
        for handle in [*self._resting, *(handle for handles in self._waiting.values() for handle in handles)]:
            handle.cancel()
        for _, handle in self._running.values():
            handle.cancel()

    def _drop_cancelled(self) -> None:
        """End cancelled answers, running or waiting."""
        for running, handle in list(self._running.values()):
            if handle._cancelled.is_set():
                for generation in self._forsake(handle):
                    self._deliver(handle, generation.cancel())
                self._finish(running, handle, running.generation.cancel())
        self._drop_waiting()

    def _forsake(self, handle: Handle) -> list[Generation]:
        """The answers of a request that has a slot which shall have none."""
        with self._change:
            left = list(handle._waiting)
            handle._waiting.clear()
            if handle in self._waiting.get(handle.tenant, ()):
                self._leave(handle)
            self._resting = [each for each in self._resting if each is not handle]
        return left

    def _drop_waiting(self) -> None:
        """End cancelled requests that wait or rest."""
        with self._change:
            dropped = [each for each in self._resting if each._cancelled.is_set()]
            self._resting = [each for each in self._resting if each not in dropped]
            for tenant, handles in list(self._waiting.items()):
                # Asked once of each: others are cancelled meanwhile.
                for handle in [each for each in handles if each._cancelled.is_set() and not each._begun]:
                    handles.remove(handle)
                    dropped.append(handle)
                    self._queued -= 1
                if not handles:
                    del self._waiting[tenant]
            left = [(handle, list(handle._waiting)) for handle in dropped]
            for handle in dropped:
                handle._waiting.clear()
        for handle, generations in left:
            for generation in generations:
                self._deliver(handle, generation.cancel())
            handle._done.set()

    def _pass(self) -> None:
        """One pass of the engine over all running answers."""
        if not self._running:
            return
        try:
            advances = self._batcher.run()
        except (EngineError, ModelError) as error:  # ModelError: a streamed model whose disk fails or lies
            self._fail(error)
            return
        for running, advance in advances:
            found, handle = self._running.get(running.slot, (None, None))
            if found is not running or handle is None:
                continue  # another answer of its request failed
            if advance.error is not None:
                self._fail_all(handle, advance.error)
            elif advance.finish_reason is not None:
                self._finish(running, handle, advance)
            elif not self._deliver(handle, advance):
                handle.cancel()

    def _finish(self, running: Running, handle: Handle, advance: Advance) -> None:
        """End an answer. The last one that runs of its request leaves its slot, and the prompt in
        it, to the next one that may begin."""
        if handle._ready and len(handle._running) == 1:
            self._go_on(running, handle)
        else:
            self._remove(running, handle)
        self._deliver(handle, advance)
        if not handle._running and not handle._waiting:
            handle._done.set()

    def _go_on(self, ended: Running, handle: Handle) -> None:
        running = self._batcher.again(ended, handle._waiting[0])
        with self._change:
            handle._waiting.popleft()
            handle._running[:] = [running]
            self._running[running.slot] = (running, handle)
            if not handle._ready:
                self._leave(handle)

    def _remove(self, running: Running, handle: Handle) -> None:
        self._batcher.remove(running)
        with self._change:
            del self._running[running.slot]
            handle._running.remove(running)
            if handle._running or not handle._waiting:
                return
            if handle._ready:  # it was let since
                self._queued += 1
            else:
                self._resting.append(handle)

    def _fail(self, error: EngineError | ModelError) -> None:
        """A pass failed: every running answer ends with the error."""
        for handle in {id(handle): handle for _, handle in self._running.values()}.values():
            self._fail_all(handle, error)
        if self._starting is not None:
            handle, self._starting = self._starting, None
            self._forsake(handle)
            self._end(handle, error)

    def _fail_all(self, handle: Handle, error: EngineError | ModelError) -> None:
        """The answers of a request end with an error."""
        self._forsake(handle)
        for running in list(handle._running):
            self._remove(running, handle)
        self._end(handle, error)

    @staticmethod
    def _end(handle: Handle, error: EngineError | ModelError) -> None:
        """Tell of an error in the place of a last advance."""
        with contextlib.suppress(Exception):  # a broken callback must not stop the others
            handle._on_error(error)
        handle._done.set()

    @staticmethod
    def _deliver(handle: Handle, advance: Advance) -> bool:
        """Call `on_advance`; False when it raised."""
        try:
            handle._on_advance(advance)
        except Exception:  # noqa: BLE001  a broken callback must not stop the others
            return False
        return True


def _internal(error: Exception) -> EngineError:
    """The message about an error that nobody foresaw."""
    return EngineError(f"the engine failed: {type(error).__name__}", code="engine-internal")
