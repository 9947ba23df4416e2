"""The answer to one request: the engine's events as text by its channels, redacted and counted."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from typing import assert_never

from appliance.api.answers import AnswerFacts, AnswerPart, CompletionUsage, Finish
from appliance.engine.decode.events import LENGTH, End, Event, Logprobs, PromptLogprobs, Text
from appliance.service.admission.privacy import round_up
from appliance.service.answering.admit import Job
from appliance.service.answering.choices import Likelihood, best
from appliance.service.answering.execution import Execution
from appliance.service.delivery.channels import Channels, Leaving, Outgoing
from appliance.service.delivery.outbox import Outbox
from appliance.service.delivery.standing import Standing
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring


class Answer:
    """The answer to one request, which has one or more choices."""

    def __init__(self, service: Wiring, exchange: Exchange, job: Job) -> None:
        self._service, self._exchange, self._job = service, exchange, job
        self._choices = {each.choice: group for group in job.groups for each in group}  # with the others to its prompt
        rules, make, texts = service.substitutions_in("answer"), job.reader, exchange.texts
        standing = None if texts is None or service.looks is None or not rules else (
            Standing(rules, service.looks, texts))
        self._channels = {choice: Channels(choice, rules, None if make is None else make(), standing)
                          for choice in self._choices}  # of choices that go on
        self._likelihood = Likelihood()
        self._stopped = dict[int, str]()
        self._tokens = 0
        self.execution = Execution(service, exchange, job)

    def facts(self) -> AnswerFacts:
        """Return facts of the answer, for its shape."""
        job, booted, texts = self._job, self._service.booted, self._exchange.texts
        padding = self._service.padding if self._service.parcel is None else None  # sizes are hidden where it leaves
        return AnswerFacts(self._exchange.request_id, job.model.name, f"fp_{booted.policy_digest.hex()[:16]}",
                    channels=job.reader is not None, older=job.older, padding=padding, usage=self.usage,
                    stopped=self._stopped, leads=job.echoed and job.model.tokenizer.leads,
                    missing=(lambda _text: 0) if texts is None else texts.missing)

    @property
    def outbox(self) -> Outbox:
        """A new outbox for the choices that it has."""
        called: Finish = "function_call" if self._job.older else "tool_calls"
        return Outbox(self._job.model.tokenizer, len(self._choices), called=called)

    def best(self, outbox: Outbox) -> tuple[list[AnswerPart], dict[int, Finish]]:
        """Return the choices that the caller gets, and why each ended, now that all have."""
        return best(self._job.choices, self._likelihood, outbox.take(), outbox.ends)

    def usage(self) -> CompletionUsage:
        """Return the tokens so far, rounded as the policy says."""
        course, keeps = self._exchange.course, self._job.model.policy.prefix_cache is not None
        return CompletionUsage.of(course.prompt_tokens or 0, course.completion_tokens or 0,
                        self.execution.cached_tokens if keeps else None)

    async def batches(self) -> AsyncIterator[Leaving]:
        """Yield the events that may leave, until each choice has ended."""
        await self.execution.begin()
        if self._job.echoed:
            yield tuple([each for choice in self._choices for each in await self._echo(choice)])
        batch = self.execution.first
        while True:
            yield tuple([each for event in batch for each in await self._release(event)])
            if not self._channels:
                return
            batch = await self.execution.more()

    async def _echo(self, choice: int) -> list[Outgoing]:
        """The prompt of an answer as the beginning of its text. Nothing comes before the first
        token, so its log-probability is none."""
        prompt = self._choices[choice][0]
        shown = await asyncio.to_thread(self._job.model.tokenizer.text_of, prompt.prompt_ids)  # it may be by sweeps
        text = await self._channels[choice].push(shown)
        if not prompt.prompt_logprobs:
            return text
        none = [(prompt.prompt_ids[0], math.nan)] * (1 + (prompt.sampling.top_logprobs or 0))
        return [*text, Logprobs.of(choice, none)]

    async def _release(self, event: Event) -> list[Outgoing]:
        """The text that may leave now that an event came."""
        channels, group, course = self._channels[event.choice], self._choices[event.choice], self._exchange.course
        match event:
            case Text():
                self._tokens += event.tokens
                course.completion_tokens = round_up(self._tokens, self._service.rounding)
                course.exact = self._job.exact_prompt, self._tokens
                return await channels.push(event.text)
            case Logprobs():
                self._likelihood.add(event)
                return [event] if self._job.logged else []
            case PromptLogprobs():
                return [Logprobs(each.choice, event.packed) for each in group]
            case End():
                if not event.choice:
                    course.finish = event.reason
                if event.stop is not None:
                    self._stopped[event.choice] = group[0].stop[event.stop]
                rest = await channels.finish(cut=event.reason == LENGTH or event.stop is not None)
                del self._channels[event.choice]
                return [*rest, event]
            case _:
                assert_never(event)
