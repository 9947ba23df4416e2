"""Requests on their way to slots: whose turn it is, and who may pass whom.

Waiting requests are served round-robin across tenants and in order within one, so a busy tenant
delays the others by at most one turn, or as many as its weight. Slots are not all given away:

    for others   one slot of two or more, a quarter of many, stays for tenants who hold none
    for short    long prompts wait while `LONG_PROMPTS` of their tenant are being read, or as many as
                 it may have more slots, and these fill a pass; others pass them

With one slot tenants take turns, an answer each. Once the prompt of a request is read, each other
answer of it that may begin is next in its tenant's turn. Where none of them may begin and none
runs, the request rests: it holds no slot.

An answer that needs several slots waits until they are free together. Others pass it as long as
they leave it so many: answers that passed it hold no more slots than it can spare.

Used by one thread at a time, with the scheduler's lock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping

from appliance.engine.batch.batcher import Batcher
from appliance.engine.batch.prompt_share import LONG_ROWS
from appliance.engine.batch.sequence import Sequence
from appliance.engine.decode.generation import Generation
from appliance.engine.handle import Handle

LONG_PROMPTS = 4  # of a tenant that are read at the same time: more would all be done late
KEPT_SHARE = 4  # one slot in this many, at most, is kept for tenants who hold none


class RequestQueue:
    """The requests of a scheduler."""

    def __init__(self, batcher: Batcher, slots: int, most: int) -> None:
        """`most`: requests that may wait while all slots are taken."""
        self._batcher, self._slots, self.most = batcher, slots, most
        self.running: dict[int, tuple[Sequence, Handle]] = {}  # by slot; changed by the engine's thread only
        self.waiting = 0  # requests of which no answer has begun, and that may begin
        self.starting: Handle | None = None  # on its way to a slot
        self.tenants: frozenset[str] | None = None  # who may ask; None: not known
        self.weights: dict[str, int] = {}  # turns in a row, of a tenant; 1 where none is given
        self._handles: OrderedDict[str, deque[Handle]] = OrderedDict()  # tenant at the front is next
        self._resting: list[Handle] = []  # without a slot; none of their answers may begin
        self._turns = 0  # in a row that the tenant at the front has had
        self._wide: Handle | None = None  # waits for several slots; others may pass it
        self._passed: set[int] = set()  # slots of answers that passed it

    def serve(self, tenants: Collection[str] | None, weights: Mapping[str, int]) -> None:
        """Let these tenants ask from now on."""
        self.tenants, self.weights = None if tenants is None else frozenset(tenants), dict(weights)

    @property
    def idle(self) -> bool:
        """Whether no pass is to be run, and no request to be begun."""
        return not self.running and not self.waiting

    @property
    def empty(self) -> bool:
        """Whether there is no request."""
        return self.idle and not self._resting

    @property
    def full(self) -> bool:
        """Whether one more request is too many."""
        starting = 0 if self.starting is None else self.starting.places
        return self.waiting >= self.most + self._slots - self._slots_in_use() - starting

    @property
    def left(self) -> int:
        """Slots that one answer may have, beside the slots that are kept for other tenants."""
        return self._slots - self._spare(1 if self.tenants is None else len(self.tenants) - 1)

    def handles(self) -> list[Handle]:
        """All requests."""
        return [*self._resting, *(each for handles in self._handles.values() for each in handles),
                *(handle for _, handle in self.running.values())]

    def put(self, handle: Handle, *, first: bool = False) -> None:
        """Let a request wait for its tenant's turn, `first` in it or last."""
        handles = self._handles.setdefault(handle.tenant, deque())
        if first:
            handles.appendleft(handle)
        else:
            handles.append(handle)
            self.waiting += 1

    def allow(self, handle: Handle, answers: int) -> bool:
        """Let so many answers of a request begin; whether it waits for a turn because of that."""
        ready, handle.allowed = handle.ready, max(handle.allowed, answers)
        if ready or not handle.ready or handle is self.starting:
            return False
        self.put(handle, first=True)
        if handle in self._resting:
            self._resting.remove(handle)
            self.waiting += 1
        return True

    def take(self) -> Handle | None:
        """The next request on its way to a slot; None where none waits or there is no room. After
        as many turns as its weight, a tenant goes to the back."""
        self.starting = None
        holders, room = {handle.tenant for _, handle in self.running.values()}, self._slots
        self._wide = None if self._wide is None or self._wide.cancelled else self._wide
        for tenant, handles in self._handles.items():
            handle = self._first(tenant, handles, holders)
            if handle is not None and handle.places <= room:
                self._turn(tenant, handle)
                self.starting = handle
                break
            if tenant not in holders and handles[0].places > self._slots - self._slots_in_use():
                room = min(room, self._beside(handles[0]))
        return self.starting

    def start(self, handle: Handle, sequence: Sequence) -> None:
        """Note that an answer of the request that was taken has its slot."""
        others, self.starting = bool(handle.running), None
        handle.running.append(sequence)
        self.running[sequence.slot] = (sequence, handle)
        if self._wide is not None:
            self._passed.add(sequence.slot)
        if not others and handle.ready:
            self.put(handle, first=True)
        elif others and not handle.ready:
            self._leave(handle)

    def follow(self, handle: Handle, sequence: Sequence) -> None:
        """Give the next answer of a request the slot of its only running one."""
        handle.waiting.popleft()
        handle.running[:] = [sequence]
        self.running[sequence.slot] = (sequence, handle)
        if not handle.ready:
            self._leave(handle)

    def remove(self, handle: Handle, sequence: Sequence) -> None:
        """Note that an answer has lost its slot."""
        del self.running[sequence.slot]
        handle.running.remove(sequence)
        if handle.running or not handle.waiting:
            return
        if handle.ready:  # it was let since
            self.waiting += 1
        else:
            self._resting.append(handle)

    def forsake(self, handle: Handle) -> list[Generation]:
        """The answers of a request that has a slot which shall have none."""
        answers = list(handle.waiting)
        handle.waiting.clear()
        if handle in self._handles.get(handle.tenant, ()):
            self._leave(handle)
        self._resting = [each for each in self._resting if each is not handle]
        return answers

    def drop_cancelled(self) -> list[tuple[Handle, list[Generation]]]:
        """Take out cancelled requests that have no slot, with their answers."""
        dropped = [each for each in self._resting if each.cancelled]
        self._resting = [each for each in self._resting if each not in dropped]
        for tenant, handles in list(self._handles.items()):
            # Asked once of each: others are cancelled meanwhile.
            for handle in [each for each in handles if each.cancelled and not each.running]:
                handles.remove(handle)
                dropped.append(handle)
                self.waiting -= 1
            if not handles:
                del self._handles[tenant]
        answers = [(handle, list(handle.waiting)) for handle in dropped]
        for handle in dropped:
            handle.waiting.clear()
        return answers

    def _turn(self, tenant: str, handle: Handle) -> None:
        """Let a request of a tenant have this turn."""
        if handle is self._wide:
            self._wide = None
        self._turns = self._turns + 1 if tenant == next(iter(self._handles)) else 1
        on = self._turns < self.weights.get(tenant, 1)
        self._handles.move_to_end(tenant, last=not on)
        if not handle.running:
            self._leave(handle)
            self.waiting -= 1
        if not on or tenant not in self._handles:
            self._turns = 0

    def _leave(self, handle: Handle) -> None:
        """Take a request out of its tenant's line."""
        handles = self._handles[handle.tenant]
        handles.remove(handle)
        if not handles:
            del self._handles[handle.tenant]

    def _beside(self, handle: Handle) -> int:
        """Slots that others may still take while a request waits for several: the first such
        request gets them once the answers of now have ended."""
        if self._wide is None:
            self._wide, self._passed = handle, set()
        passed = sum(other.places for slot, (_, other) in self.running.items() if slot in self._passed)
        return self._slots - self._wide.places - passed

    def _first(self, tenant: str, handles: deque[Handle], holders: Collection[str]) -> Handle | None:
        """The request of a tenant that may have a slot now. A request with a slot comes first, once
        its prompt is read."""
        own = self._slots - self._slots_in_use() - self._reserve(tenant, holders)
        for handle in handles:
            if handle.running and handle.places <= own and handle.parent is not None:
                return handle
        new = [handle for handle in handles if not handle.running]
        if not new or own < new[0].places:
            return None
        first: Handle | None = new[0]
        if self._batcher.planner.reads(self._batcher.running, tenant, min(own, LONG_PROMPTS)):
            first = next((each for each in new if each.prompt_tokens <= LONG_ROWS and each.places <= own), None)
        return first if first is not None and self._batcher.fits(first.waiting[0]) else None

    def _slots_in_use(self) -> int:
        return sum(handle.places for _, handle in self.running.values())

    def _reserve(self, tenant: str, holders: Collection[str]) -> int:
        """Slots that stay free for others than a tenant."""
        others = 1 if self.tenants is None else len(self.tenants.difference(holders, (tenant,)))
        return self._spare(others) if tenant in holders else 0

    def _spare(self, others: int) -> int:
        """Slots that are kept for so many tenants."""
        return min(max(others, 0), max(1, self._slots // KEPT_SHARE)) if self._slots > 1 else 0
