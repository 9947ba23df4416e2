"""One inference request from body to answer, streamed or whole; the two endpoints differ in their
types alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from litestar import Request, Response
from litestar.response import Stream

from appliance.service.admission.privacy import Pacer, pad_event, round_up, spaces
from appliance.service.admission.prompts import LONG
from appliance.service.answering import recording
from appliance.service.answering.admit import admit
from appliance.service.answering.answer import Generation
from appliance.service.answering.context import Service
from appliance.service.answering.exchange import Exchange
from appliance.service.api import marks
from appliance.service.api.answers import Shape
from appliance.service.api.wire import ChatRequest, CompletionRequest, parse
from appliance.service.delivery import stream
from appliance.service.http.body import read_json, unless_gone

JSON = "application/json"
PART_BYTES = 16 * 1024  # of a body that are made at once
R = TypeVar("R", ChatRequest, CompletionRequest)


def context_of(request: Request[Any, Any, Any]) -> tuple[Service, Exchange]:
    """The service, and the exchange of this request."""
    service: Service = request.app.state.service
    return service, Exchange.of(request.scope)


async def begin(request: Request[Any, Any, Any], kind: type[R]) -> tuple[R, Generation]:
    """Read, admit and start a request. One that is streamed returns at once: what fails later is
    told in the stream. Another returns once its first token is there, so that more refusals keep
    their status."""
    service, exchange = context_of(request)
    with service.reading(exchange.known):
        await service.room_for_text(exchange, exchange.known)
        body = await read_json(request, service.policy.limits.request_size_bytes)
    ask = await _parsed(service, body, kind)
    del body  # a long prompt may wait for its turn now
    exchange.streamed = ask.stream
    job = await admit(service, exchange, ask)
    generation = Generation(service, exchange, job)
    generation.submit()
    if not ask.stream:
        await unless_gone(request.receive, generation.begin())
    return ask, generation


async def _parsed(service: Service, body: bytes, kind: type[R]) -> R:
    """A body as a request. A long one is read in a thread: the event loop has other clients'
    streams to serve."""
    limits, fields = service.policy.limits, service.policy.privacy.redaction.fields

    def read() -> R:
        marks.check(body, marks.MOST + limits.prompt_tokens)
        return parse(body, kind, drop=fields)

    return read() if len(body) <= LONG else await service.prompts.ready(len(body), read)


async def respond(request: Request[Any, Any, Any], ask: ChatRequest | CompletionRequest, generation: Generation,
                  shape: Shape) -> Response[Any]:
    """The answer of a generation that was submitted."""
    service, exchange = context_of(request)
    if ask.stream:
        exchange.streaming = True
        usage = generation.usage if ask.include_usage else None
        answer = stream.AnswerStream(shape, generation.batches(), generation.outbox, exchange.pacer, usage)
        return Stream(_sent(service, exchange, answer.events()), media_type="text/event-stream")
    outbox, size = generation.outbox, 0
    await unless_gone(request.receive, stream.collect(generation.batches(), outbox))
    parts = outbox.take()
    async for piece in gathered(shape.whole(parts, outbox.ends, generation.usage())):
        size += len(piece)  # made twice, and never there as a whole: it is many times what it is made from
    padding = service.policy.privacy.size_padding_bytes
    exchange.spaces = spaces(size, padding)
    body = gathered(shape.whole(parts, outbox.ends, generation.usage()))
    if padding is not None:
        least = stream.EVENT_BYTES if exchange.timing.total else PART_BYTES
        body = portions(body, round_up(least, padding), exchange.pacer)
    return Stream(body, media_type=JSON, headers={"content-length": str(size)})


async def gathered(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Parts of a body, all but the last of one size; others have their turn in between."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= PART_BYTES:
            yield bytes(held[:PART_BYTES])
            del held[:PART_BYTES]
            await asyncio.sleep(0)
    yield bytes(held)


async def portions(body: AsyncIterator[bytes], nbytes: int, pacer: Pacer) -> AsyncIterator[bytes]:
    """A body in portions of so many bytes, each made before it leaves, and after the first on a
    multiple of the grid. Its making takes longer than that of the spaces that follow it, and its
    parts differ in that, too."""
    held, follows = bytearray(), False
    async for part in body:
        held += part
        while len(held) > nbytes:
            if follows:
                await pacer.hold_end()
            yield bytes(held[:nbytes])
            del held[:nbytes]
            follows = True
    if follows:
        await pacer.hold_end()
    yield bytes(held)


async def _sent(service: Service, exchange: Exchange, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream's events, padded; what goes wrong on the way becomes its last event."""
    padding = service.policy.privacy.size_padding_bytes
    if not exchange.timing.padded:
        yield stream.HEAD
    async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]
        try:
            async for data in open_events:
                if exchange.started:  # else its head has not left, and a refusal can have its status
                    service.require_audit()
                if isinstance(data, stream.Last):
                    recording.before_end(service, exchange)
                yield pad_event(data, padding)
        except Exception as error:  # noqa: BLE001 - the head is sent, so the stream itself has to tell
            await exchange.pacer.hold_end()
            yield pad_event(stream.failure(recording.refused(service, exchange, error)), padding)
