"""A generation as the event loop sees it: the engine's steps, redacted and counted, as pieces of an answer.

The scheduler runs in its own thread and calls back there for each step; the call only puts the step into a queue of
the event loop. Cancelling is a flag that the scheduler looks at before each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from appliance.engine.generation import Step
from appliance.engine.tokenizer import Tokenizer
from appliance.service.answers import Finish, TokenLogprob, TopLogprob, Usage
from appliance.service.context import Service
from appliance.service.exchange import Exchange
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
        self._steps: asyncio.Queue[Step | BaseException] = asyncio.Queue()
        self._first: Step | None = None
        self._tokens = 0

    async def start(self) -> None:
        """Submit, and wait for the first step; RequestError when it does not come in the time that the policy gives."""
        loop = asyncio.get_running_loop()

        def arrived(step: Step | BaseException) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._steps.put_nowait, step)

        caller = self._exchange.caller
        tenant = caller.name if caller else ""
        handle = self._job.model.scheduler.submit(self._job.generation, tenant, arrived, arrived)
        self._exchange.closing.append(handle.cancel)
        waited = time.monotonic() - self._exchange.arrived
        seconds = self._service.policy.limits.first_token_timeout_ms / 1000 - waited
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                self._first = await self._next()
        except TimeoutError:
            raise RequestError("first_token_timeout") from None
        self._exchange.first_token = time.monotonic() - self._exchange.arrived

    async def pieces(self) -> AsyncIterator[Piece]:
        """The answer's pieces, each with text that may leave; the last has the finish reason and the usage."""
        step = self._first or await self._next()
        while True:
            text, logs = self._redactor.feed(step.text), self._logprobs(step)
            self._tokens += step.token is not None and not step.ended
            self._exchange.completion_tokens = round_up(self._tokens, self._service.rounding)
            if step.finish_reason is not None:
                break
            yield Piece(text, logs)
            step = await self._next()
        self._exchange.finish = step.finish_reason
        finish: Finish = "length" if step.finish_reason == "length" else "stop"
        usage = Usage.of(self._exchange.prompt_tokens or 0, self._exchange.completion_tokens)
        yield Piece(text + self._redactor.finish(), logs, finish, usage)

    async def _next(self) -> Step:
        """The next step; what went wrong in the engine is raised here."""
        step = await self._steps.get()
        if isinstance(step, BaseException):
            raise step
        return step

    def _logprobs(self, step: Step) -> list[TokenLogprob] | None:
        """The step's token with its alternatives, None where none were asked for."""
        if step.logprob is None or step.token is None or step.ended:
            return None
        words = self._job.model.tokenizer
        return [TokenLogprob(
            **_token(words, step.token, step.logprob).model_dump(),
            top_logprobs=[_token(words, token, logprob) for token, logprob in step.top])]


def _token(words: Tokenizer, token: int, logprob: float) -> TopLogprob:
    piece = words.piece(token)
    text = b"" if words.is_special(token) else piece
    return TopLogprob(token=piece.decode("utf-8", "replace"), logprob=logprob, bytes=list(text))
