"""A generation as the event loop sees it: the engine's steps, redacted and counted, as pieces of an answer.

The scheduler runs in its own thread and calls back there for each step; the call only puts the step into a queue of
the event loop. Cancelling is a flag that the scheduler looks at before each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from appliance.service.context import Service
from appliance.service.exchange import Exchange
from appliance.service.inference import Job
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
        self._steps: asyncio.Queue[Any] = asyncio.Queue()
        self._first: Any = None
        self._tokens = 0

    async def start(self) -> None:
        """Submit, and wait for the first step; RequestError when it does not come in the time that the policy gives."""
        loop = asyncio.get_running_loop()

        def arrived(step: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._steps.put_nowait, step)

        caller = self._exchange.caller
        handle = self._job.model.scheduler.submit(
            self._job.generation, tenant=caller.name if caller else "", on_step=arrived)
        self._exchange.closing.append(handle.cancel)
        waited = time.monotonic() - self._exchange.arrived
        seconds = self._service.policy.limits.first_token_timeout_ms / 1000 - waited
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                self._first = await self._steps.get()
        except TimeoutError:
            raise RequestError("first_token_timeout") from None
        self._raise_if_failed(self._first)
        self._exchange.first_token = time.monotonic() - self._exchange.arrived

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer's pieces, each with text that may leave; the last has the finish reason and the usage."""
        step = self._first
        while True:
            self._raise_if_failed(step)
            self._count(step)
            finish = step.finish_reason
            text = self._redactor.feed(step.text)
            if finish is not None:
                yield Piece(text + self._redactor.finish(), _logprobs(step), _finish(finish), self._usage())
                self._exchange.finish = finish
                return
            yield Piece(text, _logprobs(step))
            step = await self._steps.get()

    def _count(self, step: Any) -> None:
        """Keep the counts that callers, metrics and the audit log are told: rounded up."""
        self._tokens += step.token is not None
        self._exchange.completion_tokens = round_up(self._tokens, self._service.rounding)

    def _usage(self) -> Usage:
        return Usage.of(self._exchange.prompt_tokens or 0, self._exchange.completion_tokens or 0)
