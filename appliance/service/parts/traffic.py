"""The requests in progress: how many there may be, and how many wait."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from appliance.api.problems import RequestError
from appliance.engine.decode.sampler import Sampling
from appliance.engine.scheduler import Load
from appliance.policy.schema import Limits
from appliance.service.admission.limits import Occupancy
from appliance.service.admission.privacy import Timing
from appliance.service.admission.tenants import Caller, Roster
from appliance.service.admission.turns import Priorities, Queue
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.models import ServedModel

GUIDED_PLACES = 2  # of a request with a negative prompt: its answer is two sequences


class Traffic:
    """The places of one service. It belongs to the event loop."""

    def __init__(self, limits: Limits, roster: Roster, timing: Timing) -> None:
        self._limits, self._roster, self._timing = limits, roster, timing
        self._admitted = Counter[str]()  # requests for text that are not over, by model
        # None: schema 1, where `_let_in` counts waiting requests as well
        self.queue = None if limits.queued_requests is None else Queue(
            limits.concurrent_requests, roster.askers, priorities=Priorities(roster.weights, roster.places))
        self._let_in = Occupancy(limits.concurrent_requests, roster.askers) if self.queue is None else Occupancy(
            limits.concurrent_requests + (limits.queued_requests or 0), roster.askers, self.queue.retry_after)

    def serve(self) -> None:
        """Divide the places among the tenants as they are now."""
        self._let_in.serve(self._roster.askers)
        if self.queue is not None:
            self.queue.serve(self._roster.askers, Priorities(self._roster.weights, self._roster.places))

    @contextlib.contextmanager
    def reading(self, caller: Caller) -> Iterator[None]:
        """Bound the memory of bodies that arrive: each is of a request in progress, and the plan
        has room for those."""
        self._let_in.take(caller.name)
        try:
            yield
        finally:
            self._let_in.leave(caller.name)

    async def room_for_text(self, exchange: Exchange) -> None:
        """Wait until a request's body may be read: those of waiting requests are not held all at
        the same time."""
        if self.queue is not None:
            ticket = await self.queue.texts.place(exchange.known.name)
            exchange.forget_text = ticket.leave
            exchange.closing.append(ticket.leave)

    def enter(self, exchange: Exchange, caller: Caller, model: str) -> None:
        """Count a request for text in, or refuse it when there are too many; it leaves with its
        exchange."""
        self._let_in.take(caller.name)
        self._admitted[model] += 1

        def leave() -> None:
            self._let_in.leave(caller.name)
            self._admitted[model] -= 1

        exchange.closing.append(leave)

    def weigh(self, exchange: Exchange, caller: Caller, weight: int) -> None:
        """Count a request that was let in as several, or refuse it when there are too many."""
        own = self._roster.places.get(caller.name, weight)
        if weight > own:
            raise RequestError("invalid_value", f"the request counts as {weight}: at most {own} of the tenant's "
                               "requests may be in progress", param="n")
        if weight > 1:
            self._let_in.take(caller.name, weight - 1)
            exchange.closing.append(lambda: self._let_in.leave(caller.name, weight - 1))

    def require_weight(self, caller: Caller, weight: int) -> None:
        """RequestError for a request that waits for more places than it may have now."""
        most = min(self.heaviest, self._roster.places.get(caller.name, weight))
        if weight > most:
            raise RequestError("overloaded", f"the request counts as {weight}, and the tenants have changed: it may "
                               f"count as {most}", retry_after=1)

    @property
    def heaviest(self) -> int:
        """The requests that one may count as. Under schema 2 it leaves the places that are kept for
        other tenants."""
        return self._limits.concurrent_requests if self.queue is None else self.queue.answers.left

    def widest(self, model: ServedModel) -> int:
        """The texts that a beam search may go on with: it leaves what is kept for other tenants."""
        return min(model.scheduler.left, self.heaviest)

    def places_of(self, model: ServedModel, sampling: Sampling) -> int:
        """The places that an answer takes: with a negative prompt two. RequestError where there are
        never so many."""
        if sampling.guided and min(model.slots, self._limits.concurrent_requests) < GUIDED_PLACES:
            raise RequestError("unsupported_parameter", "guidance_scale: it takes the places of two answers; the model "
                               "has one", param="guidance_scale")
        return GUIDED_PLACES if sampling.guided else 1

    def of(self, model: str) -> int:
        """Requests for a model that are not over."""
        return self._admitted[model]

    @property
    def in_progress(self) -> int:
        """Requests for text that were let in and are not over."""
        return self._admitted.total()

    def load_of(self, model: ServedModel) -> Load:
        """Requests that wait for a model, and that it works on. Where times are padded, an answer
        counts until it has left: the moment at which the engine was done with it is nobody's
        business. Under schema 2 requests wait here, before the scheduler knows of them."""
        if self.queue is None and not (self._timing.first_token or self._timing.total):
            return model.scheduler.load
        running = min(self.of(model.name), model.slots)
        return Load(self.of(model.name) - running, running)
