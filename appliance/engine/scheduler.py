"""Many requests, one engine: a thread of its own runs passes over all running answers and feeds in
waiting ones, in the turns that `queue` gives them.

Running answers share every pass (`batch.batcher`). A request may ask for several answers to one
prompt, which is read once: another answer shares the full pages of the prompt. An answer that ends
leaves its slot to another one of its request where no other has one: so several take one slot at
least, and the prompt stays. A request may be allowed to begin a few of its answers at a time
(`allow`). A request that rests holds no slot, and its prompt is read again for the next answer.

`on_advance` is called in the engine's thread, for each advance of an answer in order; the events of
its last end with `End`. Where a request was cancelled while it waited, that one call may come in
the thread of another that needs its room. It must return at once (hand the events to an event loop
or a queue). After an error in the engine the handle gets `on_error` instead of a last advance.

With a *cadence* a pass begins at each multiple of an interval, whether or not there is work. All
passes have one size (`batch.fixed_pass`). Their results are delivered at the next multiple.

Safe to use from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from appliance.engine.batch.batcher import Advances, Batcher
from appliance.engine.batch.plan import Plan
from appliance.engine.batch.sequence import Sequence
from appliance.engine.beat import Beat
from appliance.engine.decode.generation import Advance, Generation, GenerationRequest
from appliance.engine.engine import Engine
from appliance.engine.forward.persistence import Shelf
from appliance.engine.handle import Handle, OnAdvance, OnError, OnStart
from appliance.engine.outbox import NOWHERE, Outbox
from appliance.engine.queue import RequestQueue
from appliance.errors import CapacityError, EngineError, ModelError

LEAD, LEAD_PART = 0.01, 16  # seconds before a multiple at which its pass is planned; at most one part in so many


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a scheduler is."""

    queued: int
    running: int


class Scheduler:
    """Takes the engine until it is closed."""

    def __init__(self, engine: Engine, *, concurrent: int | None = None, queue: int = 128,
                 tenants: Collection[str] | None = None, weights: Mapping[str, int] | None = None,
                 prefix_lifetime: float | None = None, shelf: Shelf | None = None, cadence: float | None = None,
                 hidden: bool = False, on_late: Callable[[], None] = lambda: None) -> None:
        """`concurrent`: answers running at the same time (at most, and by default, what the engine
        can); `queue`: requests that may wait; `tenants` that may ask (None: not known). Starts the
        engine's thread.

        `weights`: turns in a row and parts of a pass of a tenant; 1 for a tenant that is not there.

        `prefix_lifetime`: seconds for which pages of texts are kept after their last use; None
        keeps none. `shelf`: where they outlive the engine.

        `cadence`: seconds from one pass to the next, of an engine whose passes have one size;
        None: as fast as it goes. `hidden`: guesses show in no answer's times, which needs a
        cadence. `on_late` is called in the engine's thread for each pass that ends after its
        interval."""
        if queue < 0 or (concurrent is not None and concurrent < 1):
            raise EngineError(f"a scheduler of {concurrent} answers and a queue of {queue}")
        if (hidden and cadence is None) or (cadence is not None and (cadence <= 0 or engine.pass_rows is None)):
            raise EngineError("a cadence is above 0 s, and needs passes of one size; hidden guesses need a cadence")
        self._engine = engine
        self._batcher: Batcher = engine.acquire()
        self._concurrent = min(concurrent or engine.concurrent, engine.concurrent)
        self._queue = RequestQueue(self._batcher, self._concurrent, queue)
        self._queue.serve(tenants, weights or {})
        self._batcher.planner.share_by(self._queue.weights)
        self._divided = True  # whether the batcher knows the tenants as they are now
        self._change = threading.Condition()
        self.beat = None if cadence is None else Beat(cadence, on_late=on_late)
        """The multiples at which passes begin; None without a cadence."""
        self._outbox = Outbox(held=cadence is not None, singly=hidden)
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
               more: Collection[GenerationRequest] = (), allowed: int | None = None) -> Handle:
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
        with self._change:
            full = self._queue.full
        if full:
            self._drop_waiting()  # a pass may take long, and who left would have the room of others
        with self._change:
            if self._closing:
                raise EngineError("the service is shutting down", code="engine-closed")
            if self._queue.full:
                raise CapacityError(f"{self._queue.waiting} requests are waiting; allowed: {self._queue.most}",
                                    hint="try again later", code="queue-full")
            self._queue.put(handle)
            self._change.notify()
        return handle

    def allow(self, handle: Handle, answers: int) -> None:
        """Let so many answers of a request begin, in all."""
        with self._change:
            if self._queue.allow(handle, answers):
                self._change.notify()

    def serve(self, tenants: Collection[str], weights: Mapping[str, int]) -> None:
        """Let these tenants ask from now on. The kept texts of others are wiped before the next
        pass."""
        with self._change:
            self._queue.serve(tenants, weights)
            self._divided = False
            self._change.notify()

    @property
    def left(self) -> int:
        """Slots that one answer may have, beside the slots that are kept for other tenants."""
        return self._queue.left

    @property
    def load(self) -> Load:
        """Requests in the queue and in the engine."""
        with self._change:
            return Load(self._queue.waiting, len(self._queue.running) + (self._queue.starting is not None))

    @property
    def passes(self) -> int:
        """Passes of the engine since its start."""
        return self._batcher.passes

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
            self._outbox.release(everything=True)
            self._engine.release()

    def _turn(self) -> bool:
        """Admit, drop, run one pass; False when all is done. A defect, or want of memory, must
        leave nobody waiting for ever, now or later."""
        try:
            if not self._admit():
                return False
            self._divide()
            self._drop_cancelled()
            self._batcher.texts.expire()
            if self.beat is not None:
                self._keep_time(self.beat)
            elif self._queue.running:
                self._pass()
        except Exception as error:  # noqa: BLE001
            self._fail(_internal(error))
        return True

    def _divide(self) -> None:
        """Let the batcher know the tenants, if they have changed."""
        with self._change:
            if self._divided:
                return
            tenants, weights, self._divided = self._queue.tenants or (), self._queue.weights, True
        self._batcher.planner.share_by(weights)
        self._batcher.texts.divide(tenants)

    def _admit(self) -> bool:
        """Wait for work, but under a cadence, and move requests from the queue to free slots; False
        when all is done."""
        with self._change:
            while self.beat is None and self._divided and self._queue.idle and not self._closing:
                self._change.wait(self._batcher.texts.expire())
            if self._closing:
                for each in self._queue.handles():
                    each.cancel()
        self._start_waiting()
        with self._change:
            return not (self._queue.empty and self._closing)

    def _keep_time(self, beat: Beat) -> None:
        """Run a pass at the next multiple, whether or not there is work, and deliver the results of
        the pass before. It is planned a little earlier, so that it begins in time."""
        beat.settle()
        lead = min(LEAD, beat.interval / LEAD_PART)
        while (left := beat.left - lead) > 0:
            with self._change:
                if self._closing:
                    self._outbox.release(everything=True)
                    return
                self._change.wait(left)
            self._start_waiting()
        plan = self._batcher.plan()
        time.sleep(max(beat.left, 0.0))
        beat.begin()
        self._outbox.release()
        self._pass(plan)

    def _start_waiting(self) -> None:
        """Give requests whose turn it is the slots that are free."""
        while (handle := self._take()) is not None:
            self._start(handle)

    def _take(self) -> Handle | None:
        with self._change:
            return self._queue.take()

    def _start(self, handle: Handle) -> None:
        """Give a request a slot, or another answer of it, beside an answer whose prompt is there.
        It takes a while for a long prompt, so nobody who submits waits for it."""
        generation, parent = handle.waiting.popleft(), handle.parent
        try:
            added = (self._batcher.add(generation, handle.tenant) if parent is None
                     else self._batcher.fork(parent, generation))
        except MemoryError as error:
            with self._change:
                self._queue.starting = None
            self._fail_all(handle, _internal(error))
            return
        with self._change:
            self._queue.start(handle, added)
        handle.start(added)

    def _drop_cancelled(self) -> None:
        """End cancelled answers, running or waiting."""
        for running, handle in list(self._queue.running.values()):
            if handle.cancelled:
                for each in self._forsake(handle):
                    self._outbox.put(handle, NOWHERE, each.cancel())
                self._finish(running, handle, running.generation.cancel())
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        """End cancelled requests that wait or rest."""
        with self._change:
            dropped = self._queue.drop_cancelled()
        for handle, generations in dropped:
            handle.drop(generations)
            handle.end()

    def _forsake(self, handle: Handle) -> list[Generation]:
        with self._change:
            return self._queue.forsake(handle)

    def _pass(self, plan: Plan | None = None) -> None:
        """One pass of the engine over all running answers."""
        try:
            advances = self._batcher.run(plan)
        except (EngineError, ModelError) as error:  # ModelError: a streamed model whose disk fails or lies
            self._fail(error)
            return
        self._settle(advances)

    def _settle(self, advances: Advances) -> None:
        """Hand over what a pass gave, and end the answers that are complete."""
        for sequence, advance in advances:
            running, handle = self._queue.running.get(sequence.slot, (None, None))
            if running is not sequence or handle is None:
                continue  # another answer of its request failed
            if advance.error is not None:
                self._fail_all(handle, advance.error)
            elif advance.finish_reason is not None:
                self._finish(sequence, handle, advance)
            else:
                self._outbox.put(handle, sequence.slot, advance)

    def _finish(self, sequence: Sequence, handle: Handle, advance: Advance) -> None:
        """End an answer. The last running answer of a request leaves its slot, and the prompt in
        it, to the next one."""
        if handle.ready and len(handle.running) == 1:
            following = self._batcher.again(sequence, handle.waiting[0])
            with self._change:
                self._queue.follow(handle, following)
        else:
            self._remove(sequence, handle)
        self._outbox.put(handle, sequence.slot, advance)
        if not handle.running and not handle.waiting:
            self._outbox.end(handle)

    def _remove(self, sequence: Sequence, handle: Handle) -> None:
        self._batcher.remove(sequence)
        with self._change:
            self._queue.remove(handle, sequence)

    def _fail(self, error: EngineError | ModelError) -> None:
        """A pass failed: every running answer ends with the error."""
        handles = {id(handle): handle for _, handle in self._queue.running.values()}
        with self._change:
            starting, self._queue.starting = self._queue.starting, None
        if starting is not None:
            handles[id(starting)] = starting
        for handle in handles.values():
            self._fail_all(handle, error)

    def _fail_all(self, handle: Handle, error: EngineError | ModelError) -> None:
        """The answers of a request end with an error."""
        self._forsake(handle)
        for each in list(handle.running):
            self._remove(each, handle)
        self._outbox.fail(handle, error)


def _internal(error: Exception) -> EngineError:
    """The message about an error that nobody foresaw."""
    return EngineError(f"the engine failed: {type(error).__name__}", code="engine-internal")
