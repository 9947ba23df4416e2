"""The queue of schema 2: who waits for what, in which order, and when a refused request may come
again.

    text    a request's body, until it is tokens: `concurrent_requests` at the same time
    answer  from the first byte of work to the last byte that leaves: as many
    house   all that were let in, waiting ones included: `queued_requests` more

A waiting request holds tokens only, so many may wait. Tenants take turns, each as many in a row as
its weight. Some places stay for tenants who hold none, as `limits.Occupancy` has it. A request with
several answers may need several places. It gets them one by one, each in a turn of its tenant, and
gives them back together. So requests could wait for each other's places for ever: `Turns._ends`
lets none take a place that would make it so. All of it belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from appliance.api.problems import FOLLOWED, RequestError
from appliance.service.admission.limits import Clock, Occupancy

QUEUE_SECONDS = 600.0  # that a request waits at most: common clients wait no longer
_MEMORY = 0.9  # weight of the past in how long places are held
_FIRST_GUESS = 10.0  # seconds that a place is held, before any was given back
_MARGIN = 1.5  # who comes too early is refused again; who comes late finds a queue that is full of work


class Ticket:
    """A request that waits for its places or has them."""

    def __init__(self, turns: Turns, tenant: str, begin: Callable[[], None], places: int) -> None:
        self.tenant, self.begin, self.places = tenant, begin, places
        self.held = 0  # places that it has
        self.since: float | None = None  # when it got its first place
        self._turns: Turns | None = turns

    def leave(self) -> None:
        """Give the places back, or stop waiting; a second call does nothing."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns._leave(self)


@dataclass(frozen=True)
class Priorities:
    """How tenants differ, by name. A tenant without an entry has weight 1 and no own limit."""

    weights: Mapping[str, int] = field(default_factory=dict)  # turns in a row
    places: Mapping[str, int] = field(default_factory=dict)  # most that a tenant may hold


class Turns:
    """`most` places, for which requests wait in turn."""

    def __init__(self, most: int, tenants: Collection[str], clock: Clock = time.monotonic,
                 priorities: Priorities | None = None) -> None:
        """`tenants`: who may ask, by name."""
        self.most, priorities = most, priorities or Priorities()
        self._weights, self._had = priorities.weights, 0  # turns in a row that the tenant at the front has had
        self.seconds: float | None = None  # that a place is held, lately
        self._places, self._clock = Occupancy(most, tenants, own=priorities.places), clock
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()  # the tenant at the front is next

    def serve(self, tenants: Collection[str], priorities: Priorities) -> None:
        """Let these tenants ask from now on. A request that waits for more places than its tenant
        may have then never gets them: somebody must end it."""
        self._weights = priorities.weights
        self._places.serve(tenants, priorities.places)

    @property
    def waiting(self) -> int:
        """Requests that have no place yet."""
        return sum(map(self.waiting_of, self._waiting))

    @property
    def in_progress(self) -> int:
        """Places that requests have."""
        return self._places.held()

    @property
    def left(self) -> int:
        """Places that a request may have at most: those that are not kept for other tenants."""
        return self._places.left

    def waiting_of(self, tenant: str) -> int:
        """Requests of a tenant that have no place yet."""
        return sum(not ticket.held for ticket in self._waiting.get(tenant, ()))

    def held(self, tenant: str) -> int:
        """Places that a tenant has."""
        return self._places.held(tenant)

    def ask(self, tenant: str, begin: Callable[[], None], places: int = 1) -> Ticket:
        """Wait for so many places, no more than `left`. `begin` is called for each place as it
        comes, maybe at once; it must not raise."""
        ticket = Ticket(self, tenant, begin, places)
        self._waiting.setdefault(tenant, deque()).append(ticket)
        self._advance()
        return ticket

    async def place(self, tenant: str) -> Ticket:
        """A place, once there is one. RequestError after too long a time."""
        has_one = asyncio.Event()
        ticket = self.ask(tenant, has_one.set)
        try:
            async with asyncio.timeout(QUEUE_SECONDS):
                await has_one.wait()
        except BaseException as error:
            ticket.leave()
            if isinstance(error, TimeoutError):
                raise waited_too_long() from None
            raise
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        if ticket.held < ticket.places:
            tickets = self._waiting[ticket.tenant]
            tickets.remove(ticket)
            if not tickets:
                del self._waiting[ticket.tenant]
        if ticket.since is not None:
            seconds = self._clock() - ticket.since
            self.seconds = seconds if self.seconds is None else _MEMORY * self.seconds + (1 - _MEMORY) * seconds
            self._places.leave(ticket.tenant, ticket.held)
        self._advance()

    def _advance(self) -> None:
        """Give places to those whose turn it is."""
        while (tenant := self._next()) is not None:
            self._had = self._had + 1 if tenant == next(iter(self._waiting)) else 1
            tickets = self._waiting[tenant]
            ticket, on = tickets[0], self._had < self._weights.get(tenant, 1)
            self._places.take(tenant)
            ticket.held += 1
            if ticket.held == ticket.places:
                tickets.popleft()
            self._waiting.move_to_end(tenant, last=not on)
            self._had = self._had if on else 0
            if not tickets:
                del self._waiting[tenant]
                self._had = 0
            ticket.since = self._clock() if ticket.since is None else ticket.since
            ticket.begin()

    def _next(self) -> str | None:
        """Return the tenant whose first request gets a place; None where no place is free for any.
        """
        return next((tenant for tenant, tickets in self._waiting.items()
                     if self._places.free(tenant) > 0 and self._ends(tickets[0])), None)

    def _ends(self, ticket: Ticket) -> bool:
        """Check that all requests get all their places, one request after the other, if `ticket`
        gets a place now. A request that has all of them ends by itself. Of each tenant one at most
        has a part of its places. This is Dijkstra's banker's algorithm for one kind of resource."""
        if ticket.places - ticket.held == 1:
            return True
        growing = [tickets[0] for tickets in self._waiting.values() if tickets[0].held or tickets[0] is ticket]
        having = sorted((each.places - each.held - (each is ticket), each.held + (each is ticket)) for each in growing)
        free = self.left - sum(held for _, held in having)
        for missing, held in having:
            if missing > free:
                return False
            free += held
        return True


class Queue:
    """Both kinds of places, and when refused requests may come again."""

    def __init__(self, concurrent: int, tenants: Collection[str], clock: Clock = time.monotonic,
                 priorities: Priorities | None = None) -> None:
        self.texts = Turns(concurrent, tenants, clock, priorities)
        self.answers = Turns(concurrent, tenants, clock, priorities)
        self._clock = clock
        self._returns: dict[str, float] = {}  # when a tenant's last refused request may come again

    def serve(self, tenants: Collection[str], priorities: Priorities) -> None:
        """Let these tenants ask from now on."""
        for turns in (self.texts, self.answers):
            turns.serve(tenants, priorities)

    def retry_after(self, tenant: str) -> float:
        """Seconds after which a tenant's refused request finds room: refused ones return one by
        one, as fast as the tenant's requests, or all where it has none, give places back."""
        now, places = self._clock(), self.answers.held(tenant) or self.answers.most
        seconds = _FIRST_GUESS if self.answers.seconds is None else self.answers.seconds
        self._returns = {name: due for name, due in self._returns.items() if due > now}
        due = min(self._returns.get(tenant, now) + _MARGIN * seconds / places, now + FOLLOWED)
        self._returns[tenant] = due
        return due - now


def waited_too_long() -> RequestError:
    """The refusal of a request whose turn did not come."""
    return RequestError("overloaded", f"the request has waited {QUEUE_SECONDS:.0f} seconds for its turn", retry_after=1)
