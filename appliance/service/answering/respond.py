"""One request for text from body to answer, streamed or whole; endpoints differ in their adapters
alone."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

from litestar import Request, Response
from litestar.response import Stream

from appliance.api import findings, marks
from appliance.api.adapter import Adapter, Encoding, Translation
from appliance.api.answers import AnswerFacts
from appliance.api.problems import RequestError
from appliance.api.wishes.ignored import Ignored
from appliance.http.body import read_json, unless_gone
from appliance.oblivious import may_stand
from appliance.service.admission.privacy import Pacer, pad_event, round_up, spaces
from appliance.service.admission.prompts import LONG
from appliance.service.answering import receipting, recording
from appliance.service.answering.admit import Inquiry, admit, encode
from appliance.service.answering.answer import Answer
from appliance.service.answering.covered import CoveredAnswer
from appliance.service.delivery import stream
from appliance.service.delivery.filled import FilledShape
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.wiring import Wiring

JSON = "application/json"
PART_BYTES = 16 * 1024  # of a body that are made at once, with padding
PIECE_BYTES = 4 * 1024  # and that wait at once for a client that reads slowly
_STREAM = re.compile(rb'"stream"[\t\n\r ]*+:[\t\n\r ]*+true')  # a body that cannot be read may still say so


def context_of(request: Request[Any, Any, Any]) -> tuple[Wiring, Exchange]:
    """The service, and the exchange of this request."""
    service: Wiring = request.app.state.service
    return service, Exchange.of(request.scope)


async def answer(request: Request[Any, Any, Any], adapter: Adapter) -> Response[Any]:
    """Read, admit and answer a request. One that is streamed is answered at once: what fails later
    is told in the stream. Another is once its first token is there, so that more refusals keep
    their status."""
    service, exchange = context_of(request)
    ignored = Ignored(strict=service.policy.service.strict)
    ask = await _read(request, adapter, ignored)
    exchange.course.streamed = ask.request.stream
    exchange.departure.alike = service.parcel is not None and ask.request.stream
    wanted = receipting.is_wanted(request, service)
    if ask.counted is not None:
        return await unless_gone(request.receive, _encode(service, exchange, ask, ignored, told=adapter.tells_tokens))
    with ask.names.renaming(ignored):
        job = await unless_gone(request.receive, admit(Inquiry(service, exchange, ask.request, ignored)))
    counted = _counts(service, ask, ignored)
    exchange.headers.update(ignored.headers())
    if wanted:
        receipting.begin(service, exchange, job)
    made = Answer(service, exchange, job)
    made.execution.submit()
    if not ask.request.stream:
        await unless_gone(request.receive, made.execution.begin())
    told = made.facts()
    return await _respond(request, ask, made, replace(told, counts=told.usage) if counted else told)


def _counts(service: Wiring, ask: Translation, ignored: Ignored) -> bool:
    """Whether each event of a stream has the counts so far: where they are exact, and an event's
    size and time hide nothing."""
    if not ask.request.continuous:
        return False
    exact = service.rounding == 1 and service.padding is None and not service.timing.padded
    if not exact:
        ignored.note(("stream_options", "continuous_usage_stats"), "the policy rounds counts, or pads sizes or times")
        findings.require(ignored)
    return exact


async def _encode(service: Wiring, exchange: Exchange, ask: Translation, ignored: Ignored, *,
                  told: bool) -> Response[Any]:
    """The answer to a request whose prompt alone is wanted."""
    if ask.counted is None:
        raise TypeError("an endpoint whose answers are a model's")
    with ask.names.renaming(ignored):
        model, prompt = await encode(Inquiry(service, exchange, ask.request, ignored), told=told)
    exchange.headers.update(ignored.headers())
    tokenizer = model.tokenizer
    encoding = Encoding(prompt.tokens, service.rounding, model.running.context_length, tokenizer.decode,
                        tokenizer.piece, tokenizer.control, (int(tokenizer.add_bos), int(tokenizer.add_eos)))
    counted = await asyncio.to_thread(ask.counted, encoding)  # pieces may be by sweeps
    body = exchange.note(counted.model_dump_json().encode())
    exchange.departure.spaces = spaces(len(body), service.padding)
    return Response(body, media_type=JSON)


async def _read(request: Request[Any, Any, Any], adapter: Adapter, ignored: Ignored) -> Translation:
    """A request that was read. Its body is held no longer: a long prompt may wait for its turn
    now."""
    service, exchange = context_of(request)
    with service.traffic.reading(exchange.known):
        await service.traffic.room_for_text(exchange)
        body = await read_json(request, service.policy.limits.request_size_bytes)
        exchange.read(body)
        exchange.departure.alike = service.parcel is not None and _STREAM.search(body) is not None
    return await _parse(service, exchange, body, adapter, ignored)


async def _parse(service: Wiring, exchange: Exchange, body: bytes, adapter: Adapter, ignored: Ignored) -> Translation:
    """A body as a request. A long one is read in a thread, and so are all whose texts get
    stand-ins: the event loop has other clients' streams to serve."""
    limits, fields = service.policy.limits, service.policy.privacy.redaction.fields

    def read() -> Translation:
        marks.check(body, marks.MOST + limits.prompt_tokens)
        found = None if service.bodies is None or adapter.tells_tokens else service.bodies.read(body)
        exchange.standing = service.bodies is not None and may_stand(body)
        if found is not None:
            written, exchange.contents = found
            exchange.closing.append(exchange.contents.close)
            with contextlib.suppress(RequestError):  # then the body itself is refused
                return adapter.read(written, fields, ignored)
            exchange.contents = None
        return adapter.read(body, fields, ignored)

    return read() if len(body) <= LONG and service.bodies is None else await service.prompts.ready(len(body), read)


async def _respond(request: Request[Any, Any, Any], ask: Translation, made: Answer, told: AnswerFacts) -> Response[Any]:
    """The response of an answer that is being made."""
    service, exchange = context_of(request)
    if ask.shape is None:
        raise TypeError("an endpoint whose answers have no shape")
    shape = ask.shape(told) if exchange.texts is None else FilledShape(ask.shape(told), exchange.texts)
    if ask.request.stream:
        exchange.departure.streaming, exchange.departure.failed = True, shape.failed
        usage = made.usage if ask.usage else None
        events = stream.AnswerStream(shape, made.batches(), made.outbox, exchange.pacer, usage)
        data = _send(service, exchange, events.events()) if service.parcel is None else (
            CoveredAnswer(service, exchange, events).parcels(service.parcel))
        return Stream(data, media_type="text/event-stream")
    outbox, size = made.outbox, 0
    await unless_gone(request.receive, stream.collect(made.batches(), outbox))
    parts, ends = made.best(outbox)
    async for piece in pieces_of(shape.whole(parts, ends, made.usage())):
        size += len(exchange.note(piece))  # made twice, and never there as a whole: it is many times its parts
    padding = service.padding
    exchange.departure.spaces = spaces(size, padding)
    body = pieces_of(shape.whole(parts, ends, made.usage()))
    if exchange.receipt is not None and exchange.digests is not None:
        spared = exchange.digests.spaces
        size -= 1 + spared  # the brace that ends the answer, and spaces behind it, follow the receipt
        exchange.departure.tail = functools.partial(receipting.last_member, service, exchange, size, spared)
        body = beginning(body, size)
    if padding is not None:
        least = stream.EVENT_BYTES if exchange.timing.total else PART_BYTES
        body = portions(body, round_up(least, padding), exchange.pacer)
    return Stream(body, media_type=JSON, headers={"content-length": str(size)})


async def pieces_of(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Parts of a body, all but the last of one size; others have their turn in between."""
    held = bytearray()
    for part in parts:
        held += part
        while len(held) >= PIECE_BYTES:
            yield bytes(held[:PIECE_BYTES])
            del held[:PIECE_BYTES]
            await asyncio.sleep(0)
    yield bytes(held)


async def beginning(parts: AsyncIterator[bytes], nbytes: int) -> AsyncIterator[bytes]:
    """The first so many bytes of a body."""
    async for part in parts:
        yield part[:nbytes]
        nbytes = max(0, nbytes - len(part))


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


async def _send(service: Wiring, exchange: Exchange, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream's events, padded; what goes wrong on the way becomes its last event."""
    padding = service.padding
    if not exchange.timing.padded:
        yield stream.HEAD
    async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]
        try:
            async for data in open_events:
                if exchange.entry.started:  # else its head has not left, and a refusal can have its status
                    service.readiness.require_audit()
                last, end = isinstance(data, stream.Last), b""
                if last and exchange.receipt is not None:
                    data, end = receipting.split(data)
                padded = exchange.note(pad_event(data, padding))
                if last:
                    recording.before_end(service, exchange)
                    await recording.flush(service, exchange)
                if last and exchange.receipt is not None:
                    padded += receipting.last_event(service, exchange, end)
                yield padded
        except Exception as error:  # noqa: BLE001 - the head is sent, so the stream itself has to tell
            await exchange.pacer.hold_end()
            yield pad_event(exchange.departure.failed(recording.last_refusal(service, exchange, error)), padding)
