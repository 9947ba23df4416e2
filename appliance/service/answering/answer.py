"""A generation as the event loop sees it: the engine's events, redacted and counted.

The scheduler runs in its own thread and calls back there for each token; the call only puts its
events into an inbox of the event loop. Cancelling is a flag that the scheduler looks at before each
token.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import assert_never

from appliance.api.answers import AnswerFacts, AnswerPart, CompletionUsage, Finish
from appliance.api.problems import RequestError
from appliance.engine.decode.events import LENGTH, End, Event, Logprobs, PromptLogprobs, Text
from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.handle import Handle
from appliance.service.admission.privacy import round_up
from appliance.service.admission.turns import QUEUE_SECONDS, waited_too_long
from appliance.service.answering.admit import Job
from appliance.service.answering.choices import Likelihood, chosen
from appliance.service.answering.context import Service
from appliance.service.answering.exchange import Exchange
from appliance.service.counting.claims import pages_for
from appliance.service.delivery.channels import Channels, Leaving, Outgoing
from appliance.service.delivery.inbox import Batch, Inbox, pack
from appliance.service.delivery.outbox import Outbox


class Generation:
    """The answers of one request under way.

    Its times count from the request's arrival under schema 1. Under schema 2 they count from the
    moment at which the model begins with it: a request that waits for its turn waits up to
    `QUEUE_SECONDS` before that.
    """

    def __init__(self, service: Service, exchange: Exchange, job: Job) -> None:
        self._service = service
        self._exchange = exchange
        self._job = job
        self._choices = {each.choice: group for group in job.groups for each in group}  # with the others to its prompt
        self._channels = {choice: self._channel(choice) for choice in self._choices}  # of those that go on
        self._open = len(self._choices)  # whose end has not come from the engine
        self._likelihood = Likelihood()
        self._stopped = dict[int, str]()
        self._inbox = Inbox()
        self._first: Batch | None = None
        self._tokens = 0
        self._over = False  # the last event came, or the time is over
        self._since = exchange.arrived if service.queue is None else None
        self._turn = asyncio.Event()  # the model began with it, or it failed
        self._handles: list[Handle] = []  # one for each prompt that has begun
        self._places = 0  # that it has
        self._timer: asyncio.TimerHandle | None = None  # for `limits.answer_timeout`

    def _channel(self, choice: int) -> Channels:
        make = self._job.reader
        return Channels(choice, self._service.rules_for("answer"), None if make is None else make())

    def submit(self) -> None:
        """Have it run in its turn."""
        self._exchange.closing.append(self._close)
        self._exchange.closing.append(self._job.model.unfinished.enter(self._end))
        self._require_leave()
        self._exchange.closing.append(self._service.tenants.enter(self._review))
        if self._service.queue is None:
            self._begin(len(self._choices))
        else:
            ticket = self._service.queue.answers.ask(self._exchange.known.name, self._go_on, self._job.weight)
            self._exchange.closing.append(ticket.leave)

    def _go_on(self) -> None:
        """Begin more of its answers now that it has one more place, for whose sake another request
        may just have ended."""
        self._places += 1
        try:
            if not self._over:
                self._begin(self._job.begun(self._places))
        except Exception as error:  # noqa: BLE001 - of this request, not of the one that ended
            self._fail(error)

    def _begin(self, answers: int) -> None:
        """Have the first so many of its answers run, those that have begun included."""
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

        tenant = self._exchange.caller.name if self._exchange.caller else ""
        first, *more = group
        return self._job.model.scheduler.submit(
            first, tenant, arrive, lambda error: call(self._fail, error), lambda: call(self._start),
            more=more if first.beam is None else (), allowed=allowed)  # one search finds them all

    def _claim(self) -> None:
        """Count the pages that its answers may take, until it is over."""
        claims, model = self._service.metrics.claims, self._job.model
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
        self._exchange.began = time.monotonic() - self._exchange.arrived
        milliseconds = self._service.policy.limits.answer_timeout_ms
        if milliseconds is not None and not self._over:
            self._timer = asyncio.get_running_loop().call_later(milliseconds / 1000, self._expire)

    def _arrive(self, packed: bytes, ends: int, token: int | None) -> None:
        """Take events of answers in, which end so many of them."""
        if not self._over:
            self._open -= ends
            self._over = not self._open
            if ends:  # no sooner: pages may be restored after it began
                self._exchange.cached_tokens = self._cached()
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
        service, weight = self._service, self._job.weight
        caller = service.tenants.current(self._exchange.known, self._job.model.name)
        if service.queue is None or self._places == weight:
            return
        most = min(service.heaviest, service.tenants.places.get(caller.name, weight))
        if weight > most:
            raise RequestError("overloaded", f"the request counts as {weight}, and the tenants have changed: it may "
                               f"count as {most}", retry_after=1)

    def _expire(self) -> None:
        """The time of the whole answer is over."""
        self._end(RequestError("answer_timeout"))

    def _end(self, error: RequestError) -> None:
        """End all its answers with an error: what came before may still leave."""
        self._fail(error)
        self._cancel()

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

    def told(self) -> AnswerFacts:
        """Facts of its answer, for the answer's shape."""
        service, job = self._service, self._job
        return AnswerFacts(
            self._exchange.request_id, job.model.name, service.fingerprint, channels=job.reader is not None,
            older=job.older, padding=service.policy.privacy.size_padding_bytes, usage=self.usage,
            stopped=self._stopped, leads=job.echoed and job.model.tokenizer.leads)

    @property
    def outbox(self) -> Outbox:
        """A new outbox for the choices that it has."""
        called: Finish = "function_call" if self._job.older else "tool_calls"
        return Outbox(self._job.model.tokenizer, len(self._choices), called=called)

    def chosen(self, outbox: Outbox) -> tuple[list[AnswerPart], dict[int, Finish]]:
        """The answers that are told, and why each ended, now that all have."""
        return chosen(self._job.choices, self._likelihood, outbox.take(), outbox.ends)

    def usage(self) -> CompletionUsage:
        """Tokens so far, rounded as the policy says."""
        cached = None
        if self._job.model.policy.prefix_cache is not None:
            cached = self._cached()
        return CompletionUsage.of(self._exchange.prompt_tokens or 0, self._exchange.completion_tokens or 0, cached)

    def _cached(self) -> int:
        return round_up(sum(handle.cached_tokens for handle in self._handles), self._service.rounding)

    async def batches(self) -> AsyncIterator[Leaving]:
        """The events that may leave, until each choice has ended."""
        if self._first is None:
            await self.begin()
        if self._job.echoed:
            yield tuple([each for choice in self._choices for each in await self._echo(choice)])
        batch = self._first or await self._inbox.get()
        while True:
            yield tuple([each for event in batch for each in await self._released(event)])
            if not self._channels:
                return
            batch = await self._inbox.get()

    async def _echo(self, choice: int) -> list[Outgoing]:
        """The prompt of an answer as the beginning of its text. Nothing comes before the first
        token, so its log-probability is none."""
        prompt = self._choices[choice][0]
        text = await self._channels[choice].push(self._job.model.tokenizer.text_of(prompt.prompt_ids))
        if not prompt.prompt_logprobs:
            return text
        none = [(prompt.prompt_ids[0], math.nan)] * (1 + (prompt.sampling.top_logprobs or 0))
        return [*text, Logprobs.of(choice, none)]

    async def _released(self, event: Event) -> list[Outgoing]:
        """The text that may leave now that an event came."""
        channels, group = self._channels[event.choice], self._choices[event.choice]
        match event:
            case Text():
                self._tokens += event.tokens
                self._exchange.completion_tokens = round_up(self._tokens, self._service.rounding)
                self._exchange.exact = self._job.exact_prompt, self._tokens
                return await channels.push(event.text)
            case Logprobs():
                self._likelihood.add(event)
                return [event] if self._job.logged else []
            case PromptLogprobs():
                return [Logprobs(each.choice, event.packed) for each in group]
            case End():
                if not event.choice:
                    self._exchange.finish = event.reason
                if event.stop is not None:
                    self._stopped[event.choice] = group[0].stop[event.stop]
                rest = await channels.finish(cut=event.reason == LENGTH or event.stop is not None)
                del self._channels[event.choice]
                return [*rest, event]
            case _:
                assert_never(event)
