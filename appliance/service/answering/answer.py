"""A generation as the event loop sees it: the engine's events, redacted and counted.

The scheduler runs in its own thread and calls back there for each token; the call only puts its
events into an inbox of the event loop. Cancelling is a flag that the scheduler looks at before each
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Callable
from typing import assert_never

from appliance.engine.decode.events import End, Event, Logprobs, Text
from appliance.engine.scheduler import Handle
from appliance.service.admission.privacy import round_up
from appliance.service.admission.redaction import Redactor
from appliance.service.admission.turns import QUEUE_SECONDS, waited_too_long
from appliance.service.answering.admit import Job
from appliance.service.answering.context import Service
from appliance.service.answering.exchange import Exchange
from appliance.service.answering.inbox import Batch, Inbox, pack
from appliance.service.answering.outbox import Outbox
from appliance.service.api.answers import Usage
from appliance.service.api.problems import RequestError


class Generation:
    """One answer under way.

    Its times count from the request's arrival under schema 1. Under schema 2 they count from the
    moment at which the model begins with it: a request that waits for its turn waits up to
    `QUEUE_SECONDS` before that.
    """

    def __init__(self, service: Service, exchange: Exchange, job: Job) -> None:
        self._service = service
        self._exchange = exchange
        self._job = job
        self._redactors = {job.generation.choice: Redactor(service.rules_for("answer"))}  # of choices that go on
        self._inbox = Inbox()
        self._first: Batch | None = None
        self._tokens = 0
        self._over = False  # the last event came, or the time is over
        self._since = exchange.arrived if service.queue is None else None
        self._turn = asyncio.Event()  # the model began with it, or it failed
        self._handle: Handle | None = None
        self._timer: asyncio.TimerHandle | None = None  # for `limits.answer_timeout`

    def submit(self) -> None:
        """Have it run in its turn."""
        if self._service.queue is None:
            self._run()
        else:
            ticket = self._service.queue.answers.ask(self._exchange.known.name, self._run_in_turn)
            self._exchange.closing.append(ticket.leave)

    def _run_in_turn(self) -> None:
        """Run it now that there is a place, for whose sake another request has just ended."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - of this request, not of the one that ended
            self._fail(error)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()

        def call(function: Callable[..., None], *values: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(function, *values)

        tenant = self._exchange.caller.name if self._exchange.caller else ""
        self._handle = self._job.model.scheduler.submit(
            self._job.generation, tenant,
            lambda advance: call(self._arrive, pack(advance.events), advance.finish_reason is not None),
            lambda error: call(self._fail, error), lambda: call(self._start))
        self._exchange.closing.append(self._close)

    def _close(self) -> None:
        """The request is over."""
        self._over = True
        if self._handle is not None:
            self._handle.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def _start(self) -> None:
        """The model begins with it."""
        if self._since is None:
            self._since = time.monotonic()
        self._turn.set()
        milliseconds = self._service.policy.limits.answer_timeout_ms
        if milliseconds is not None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(milliseconds / 1000, self._expire)

    def _arrive(self, packed: bytes, last: bool) -> None:
        if not self._over:
            self._over = last
            self._inbox.put(packed)

    def _fail(self, error: BaseException) -> None:
        if not self._over:
            self._over = True
            self._inbox.fail(error)
        self._turn.set()

    def _expire(self) -> None:
        """The time of the whole answer is over: what came before may still leave."""
        self._fail(RequestError("answer_timeout"))
        if self._handle is not None:
            self._handle.cancel()

    async def begin(self) -> None:
        """Wait for the first events; RequestError when it does not come in the time that the policy
        gives."""
        try:
            if self._since is None:
                async with asyncio.timeout(self._left(self._exchange.arrived, QUEUE_SECONDS)):
                    await self._turn.wait()
        except TimeoutError:
            raise waited_too_long() from None
        since = self._exchange.arrived if self._since is None else self._since
        try:
            async with asyncio.timeout(self._left(since, self._service.policy.limits.first_token_timeout_ms / 1000)):
                self._first = await self._inbox.get()
        except TimeoutError:
            raise RequestError("first_token_timeout") from None
        self._exchange.first_token = time.monotonic() - self._exchange.arrived

    @staticmethod
    def _left(since: float, seconds: float) -> float:
        return max(0.0, since + seconds - time.monotonic())

    @property
    def outbox(self) -> Outbox:
        """A new outbox for the choices that it has."""
        return Outbox(self._job.model.tokenizer, len(self._redactors))

    def usage(self) -> Usage:
        """Tokens so far, rounded as the policy says."""
        return Usage.of(self._exchange.prompt_tokens or 0, self._exchange.completion_tokens or 0)

    async def batches(self) -> AsyncIterator[Batch]:
        """The events that may leave, until each choice has ended."""
        if self._first is None:
            await self.begin()
        batch = self._first or await self._inbox.get()
        while True:
            yield tuple([each for event in batch for each in await self._released(event)])
            if not self._redactors:
                return
            batch = await self._inbox.get()

    async def _released(self, event: Event) -> Batch:
        """The text that may leave now that an event came."""
        match event:
            case Text():
                text = await self._redacted(event.choice, event.text)
                self._tokens += event.tokens
                self._exchange.completion_tokens = round_up(self._tokens, self._service.rounding)
                return (Text(event.choice, text, event.tokens),)
            case Logprobs():
                return (event,)
            case End():
                self._exchange.finish = event.reason
                rest = await self._redacted(event.choice, None)
                del self._redactors[event.choice]
                return (Text(event.choice, rest, 0), event)
            case _:
                assert_never(event)

    async def _redacted(self, choice: int, piece: str | None) -> str:
        """The text that may leave after the next piece, or (None) after the last. Slow work is done
        in a thread."""
        redactor = self._redactors[choice]
        work = redactor.finish if piece is None else functools.partial(redactor.feed, piece)
        return work() if redactor.quick(piece or "") else await asyncio.to_thread(work)
