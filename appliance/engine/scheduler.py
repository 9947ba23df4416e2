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

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from appliance.engine.beat import Beat
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.deliveries import Deliveries
from appliance.engine.engine import Engine
from appliance.engine.engine_thread import EngineThread
from appliance.engine.forward.persistence import Shelf
from appliance.engine.handle import Handle, OnAdvance, OnError, OnStart
from appliance.engine.queue import RequestQueue
from appliance.errors import CapacityError, EngineError


@dataclass(frozen=True, slots=True)
class Load:
    """How busy a scheduler is."""

    queued: int
    running: int


class Scheduler(EngineThread):
    """Takes the engine until it is closed."""

    def __init__(self, engine: Engine, *, concurrent: int | None = None, queue: int = 128,
                 tenants: Collection[str] | None = None, weights: Mapping[str, int] | None = None,
                 prefix_lifetime: float | None = None, shelf: Shelf | None = None, cadence: float | None = None,
                 hidden: bool = False, on_late: Callable[[], None] = lambda: None) -> None:
        """`concurrent`: answers running at the same time (at most, and by default, what the engine
        can); `queue`: requests that may wait; `tenants` that may ask (None: not known). Starts the
        engine's thread.

        `weights`: turns in a row, parts of a pass and shares of kept texts of a tenant; 1 for a
        tenant that is not there.

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
        batcher = engine.acquire()
        self._concurrent = min(concurrent or engine.concurrent, engine.concurrent)
        waiting = RequestQueue(batcher, self._concurrent, queue)
        waiting.serve(tenants, weights or {})
        batcher.planner.share_by(waiting.weights)
        super().__init__(engine, batcher, waiting, Deliveries(held=cadence is not None, singly=hidden),
                         None if cadence is None else Beat(cadence, on_late=on_late))
        try:
            if prefix_lifetime is not None:
                engine.keep_prefixes(tenants or (), prefix_lifetime, shelf, waiting.weights)
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
            if full and self.beat is not None:
                self._dropped += self._queue.drop_cancelled()  # whose ends wait for the multiple
        if full and self.beat is None:
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
