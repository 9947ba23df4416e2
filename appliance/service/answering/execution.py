"""A job in the engine: it waits for its turn, runs, and ends by itself, by a time that is over, or
because its tenant may ask no more.

The scheduler runs in its own thread and calls back there for each token; the call only puts its
events into an inbox of the event loop. Cancelling is a flag that the scheduler looks at before each
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from appliance.api.problems import RequestError
from appliance.engine.decode.events import End
from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.handle import Handle
from appliance.service.admission.privacy import round_up
from appliance.service.admission.turns import QUEUE_SECONDS, waited_too_long
from appliance.service.answering.admit import Job
from appliance.service.counting.claims import pages_for
from appliance.service.delivery.inbox import Batch, Inbox, pack
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring


class Execution:
    """The execution of one job.

    Its times count from the request's arrival under schema 1. Under schema 2 they count from the
    moment at which the model begins with it: a request that waits for its turn waits up to
    `QUEUE_SECONDS` before that.
    """

    def __init__(self, service: Wiring, exchange: Exchange, job: Job) -> None:
        self._service, self._exchange, self._job = service, exchange, job
        self._open = job.choices.count  # answers whose end has not come from the engine
        self._inbox = Inbox()
        self.first: Batch = ()  # the first events, once they came
        self._over = False  # the last event came, or the time is over
        self._since = exchange.arrived if service.traffic.queue is None else None
        self._turn = asyncio.Event()  # the model began with it, or it failed
        self._handles: list[Handle] = []  # one for each prompt that has begun
        self._places = 0  # that it has
        self._timer: asyncio.TimerHandle | None = None  # for `limits.answer_timeout`

    @property
    def cached_tokens(self) -> int:
        """Tokens of its prompts that were not read again, rounded."""
        return round_up(sum(handle.cached_tokens for handle in self._handles), self._service.rounding)

    def submit(self) -> None:
        """Have it run in its turn."""
        closing, queue = self._exchange.closing, self._service.traffic.queue
        closing.append(self._close)
        closing.append(self._job.model.answers.enter(self._end))
        self._require_leave()
        closing.append(self._service.roster.enter(self._review))
        if queue is None:
            self._begin(self._job.choices.count)
        else:
            closing.append(queue.answers.ask(self._exchange.known.name, self._go_on, self._job.weight).leave)

    def _go_on(self) -> None:
        """Begin more of its answers now that it has one more place, for whose sake another request
        may just have ended."""
        self._places += 1
        try:
            if not self._over:
                self._begin(self._job.startable(self._places))
        except Exception as error:  # noqa: BLE001 - of this request, not of the one that ended
            self._fail(error)

    def _begin(self, answers: int) -> None:
        """Have the first so many of its answers run, running ones included."""
        scheduler, left = self._job.model.scheduler, answers
        if answers and not self._handles:
            self._claim()
        for number, group in enumerate(self._job.groups):
            if left > 0 and number < len(self._handles):
                scheduler.allow(self._handles[number], left)
            elif left > 0:
                self._handles.append(self._submit(group, left))
            left -= len(group)

    def _submit(self, group: Sequence[GenerationRequest], allowed: int) -> Handle:
        """Give the answers to one prompt to the model, so many of which may begin."""
        loop = asyncio.get_running_loop()

        def call(function: Callable[..., None], *values: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(function, *values)

        def arrive(advance: Advance) -> None:
            ends = sum(isinstance(each, End) for each in advance.events)
            call(self._arrive, pack(advance.events), ends, advance.token)

        first, *more = group
        return self._job.model.scheduler.submit(
            first, self._exchange.known.name, arrive, lambda error: call(self._fail, error), lambda: call(self._start),
            more=more if first.beam is None else (), allowed=allowed)  # one search finds them all

    def _claim(self) -> None:
        """Count the pages that its answers may take, until it is over."""
        claims, model = self._service.books.metrics.claims, self._job.model
        pages = pages_for((each for group in self._job.groups for each in group), self._service.rounding,
                          model.running.context_length)
        claims.add(model.name, pages)
        self._exchange.closing.append(lambda: claims.add(model.name, -pages))

    def _close(self) -> None:
        """The request is over."""
        self._over = True
        self._cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _cancel(self) -> None:
        for handle in self._handles:
            handle.cancel()

    def _start(self) -> None:
        """The model begins with it, at the first of its prompts."""
        if self._turn.is_set():
            return
        if self._since is None:
            self._since = time.monotonic()
        self._turn.set()
        self._exchange.course.began = time.monotonic() - self._exchange.arrived
        milliseconds = self._service.policy.limits.answer_timeout_ms
        if milliseconds is not None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(
                milliseconds / 1000, lambda: self._end(RequestError("answer_timeout")))

    def _arrive(self, packed: bytes, ends: int, token: int | None) -> None:
        """Take events of answers in, which end so many of them."""
        if not self._over:
            self._open -= ends
            self._over = not self._open
            if ends:  # no sooner: pages may be restored after it began
                self._exchange.course.cached_tokens = self.cached_tokens
            if self._exchange.receipt is not None and token is not None:
                self._exchange.receipt.chosen.append(token)
            self._inbox.put(packed)

    def _fail(self, error: BaseException) -> None:
        if not self._over:
            self._over = True
            self._inbox.fail(error)
        self._turn.set()

    def _review(self) -> None:
        """End it where the tenants, as they are now, do not let it go on."""
        try:
            self._require_leave()
        except RequestError as refusal:
            self._end(refusal)

    def _require_leave(self) -> None:
        """RequestError where the caller may ask no more, or waits for more places than it may have
        now."""
        caller = self._service.roster.current(self._exchange.known, self._job.model.name)
        if self._service.traffic.queue is not None and self._places < self._job.weight:
            self._service.traffic.require_weight(caller, self._job.weight)

    def _end(self, error: RequestError) -> None:
        """End all its answers with an error: what came before may still leave."""
        self._fail(error)
        self._cancel()

    async def begin(self) -> None:
        """Wait for the first events; RequestError when they do not come in the time that the policy
        gives."""
        if self.first:
            return
        try:
            if self._since is None:
                async with asyncio.timeout(_seconds_left(self._exchange.arrived, QUEUE_SECONDS)):
                    await self._turn.wait()
        except TimeoutError:
            raise waited_too_long() from None
        since, bound = self._since or self._exchange.arrived, self._service.policy.limits.first_token_timeout_ms
        try:
            async with asyncio.timeout(_seconds_left(since, bound / 1000)):
                self.first = await self._inbox.get()
        except TimeoutError:
            raise RequestError("first_token_timeout") from None
        self._exchange.course.first_token = time.monotonic() - self._exchange.arrived

    async def more(self) -> Batch:
        """Wait for the next events after the first ones."""
        return await self._inbox.get()


def _seconds_left(since: float, seconds: float) -> float:
    return max(0.0, since + seconds - time.monotonic())
