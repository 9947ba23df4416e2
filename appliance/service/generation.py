"""A generation as the event loop sees it: the engine's steps, redacted and counted, as pieces of an answer.

The scheduler runs in its own thread and calls back there for each step; the call only puts the step into an inbox of
the event loop. Cancelling is a flag that the scheduler looks at before each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from appliance.engine.generation import Step
from appliance.service.answers import Finish, Usage
from appliance.service.context import Service
from appliance.service.exchange import Exchange
from appliance.service.inbox import Arrived, Inbox, pack
from appliance.service.inference import Job
from appliance.service.privacy import round_up
from appliance.service.problems import RequestError
from appliance.service.redaction import Redactor
from appliance.service.stream import Piece


class Generation:
    """One answer under way."""

    def __init__(self, service: Service, exchange: Exchange, job: Job) -> None:
        self._service = service
        self._exchange = exchange
        self._job = job
        self._redactor = Redactor(service.rules_for("answer"))
        self._inbox = Inbox()
        self._first: Arrived | None = None
        self._tokens = 0

    def submit(self) -> None:
        """Have it run in its turn; CapacityError when the queue is full."""
        loop = asyncio.get_running_loop()

        def arrived(step: Step) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._inbox.put, pack(step))

        def failed(error: BaseException) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._inbox.fail, error)

        caller = self._exchange.caller
        tenant = caller.name if caller else ""
        handle = self._job.model.scheduler.submit(self._job.generation, tenant, arrived, failed)
        self._exchange.closing.append(handle.cancel)

    async def begin(self) -> None:
        """Wait for the first step; RequestError when it does not come in the time that the policy gives."""
        waited = time.monotonic() - self._exchange.arrived
        seconds = self._service.policy.limits.first_token_timeout_ms / 1000 - waited
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                self._first = await self._inbox.get()
        except TimeoutError:
            raise RequestError("first_token_timeout") from None
        self._exchange.first_token = time.monotonic() - self._exchange.arrived

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer's pieces, each with text that may leave; the last has the finish reason and the usage."""
        if self._first is None:
            await self.begin()
        words, step = self._job.model.tokenizer, self._first or await self._inbox.get()
        while True:
            text = self._redactor.feed(step.text)
            self._tokens += step.counted
            self._exchange.completion_tokens = round_up(self._tokens, self._service.rounding)
            if step.finish is not None:
                break
            yield Piece(text, step.logged(words))
            step = await self._inbox.get()
        self._exchange.finish = step.finish
        finish: Finish = "length" if step.finish == "length" else "stop"
        usage = Usage.of(self._exchange.prompt_tokens or 0, self._exchange.completion_tokens)
        yield Piece(text + self._redactor.finish(), step.logged(words), finish, usage)
