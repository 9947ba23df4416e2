"""The thread of an engine: it moves waiting requests to slots, runs passes, and ends answers.

A turn, again and again:

    admit      requests to free slots, as `queue` says; with nothing to do, wait
    drop       what was cancelled, and tenants who may ask no more
    pass       over all running answers; with a cadence at the next multiple, whether or not there is work
    settle     results are handed over, and slots of complete answers go on or go free
"""

from __future__ import annotations

import threading
import time

from appliance.engine.batch.batcher import Advances, Batcher
from appliance.engine.batch.plan import Plan
from appliance.engine.batch.sequence import Sequence
from appliance.engine.beat import Beat
from appliance.engine.decode.generation import Advance, Generation, internal
from appliance.engine.deliveries import NOWHERE, Deliveries
from appliance.engine.engine import Engine
from appliance.engine.handle import Handle
from appliance.engine.queue import RequestQueue
from appliance.errors import EngineError, ModelError
from appliance.secure import residue

LEAD, LEAD_PART = 0.01, 16  # seconds before a multiple at which its pass is planned; at most one part in so many


class EngineThread:
    """One engine's thread, which somebody starts and ends."""

    def __init__(self, engine: Engine, batcher: Batcher, queue: RequestQueue, deliveries: Deliveries,
                 beat: Beat | None) -> None:
        """`batcher` of an engine that was acquired, which the thread releases."""
        self._engine, self._batcher, self._queue, self._deliveries = engine, batcher, queue, deliveries
        self.beat = beat
        """The multiples at which passes begin; None without a cadence."""
        self._divided = True  # whether the batcher knows the tenants as they are now
        self._change = threading.Condition()
        self._closing = False
        self._dropped: list[tuple[Handle, list[Generation]]] = []  # cancelled requests that wait for their ends
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._drop_waiting()
            self._deliveries.release(everything=True)
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
            self._fail(internal(error))
        return True

    def _divide(self) -> None:
        """Let the batcher know the tenants, if they have changed."""
        with self._change:
            if self._divided:
                return
            tenants, weights, self._divided = self._queue.tenants or (), self._queue.weights, True
        self._batcher.planner.share_by(weights)
        self._batcher.texts.divide(tenants, weights)

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
                    self._deliveries.release(everything=True)
                    return
                self._change.wait(left)
            self._start_waiting()
        plan = self._planned()
        time.sleep(max(beat.left, 0.0))
        beat.begin()
        self._deliveries.release()
        self._pass(plan)

    def _planned(self) -> Plan:
        """Plan the pass of the next multiple. Where the answers' pass cannot be planned, as where a
        kept text's disk fails, they end with the error, and that of no answers is run."""
        try:
            return self._batcher.plan()
        except (EngineError, ModelError) as error:
            self._fail(error)
            return self._batcher.plan()

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
        except (MemoryError, EngineError) as error:
            with self._change:
                self._queue.starting = None
            self._fail_all(handle, error if isinstance(error, EngineError) else internal(error))
            return
        with self._change:
            self._queue.start(handle, added)
        handle.start(added)

    def _drop_cancelled(self) -> None:
        """End cancelled answers, running or waiting."""
        for running, handle in list(self._queue.running.values()):
            if handle.cancelled:
                for each in self._forsake(handle):
                    self._deliveries.put(handle, NOWHERE, each.cancel())
                self._finish(running, handle, running.generation.cancel())
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        """End cancelled requests that wait or rest."""
        with self._change:
            dropped = [*self._dropped, *self._queue.drop_cancelled()]
            self._dropped.clear()
        for handle, generations in dropped:
            for each in generations:
                self._deliveries.put(handle, NOWHERE, each.cancel())
            self._deliveries.end(handle)

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
                self._deliveries.put(handle, sequence.slot, advance)

    def _finish(self, sequence: Sequence, handle: Handle, advance: Advance) -> None:
        """End an answer. The last running answer of a request leaves its slot, and the prompt in
        it, to the next one."""
        if handle.ready and len(handle.running) == 1:
            following = self._batcher.again(sequence, handle.waiting[0])
            with self._change:
                self._queue.follow(handle, following)
        else:
            self._remove(sequence, handle)
        self._deliveries.put(handle, sequence.slot, advance)
        if not handle.running and not handle.waiting:
            self._deliveries.end(handle)
            residue.wipe_arrays()

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
        self._deliveries.fail(handle, error)
        residue.wipe_arrays()
