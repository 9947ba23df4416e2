"""The outermost layer of the service: every request passes here once on its way in and once on its
way out.

It gives each request an id of ours, and puts the same few headers on every answer. It holds answers
back to the timing grid, and lets nothing end before it is recorded. It turns whatever escapes into
an answer without content, stops the generation of a request that is over, and counts each request
in the metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES

from appliance.api.problems import RequestError
from appliance.audit import endpoints
from appliance.audit.endpoints import INFERENCE
from appliance.http.departures import SocketGate
from appliance.http.framing import Framing
from appliance.service.admission.privacy import pad_event
from appliance.service.answering import recording
from appliance.service.delivery import parcels
from appliance.service.parts import refusals
from appliance.service.parts.exchange import Exchange, path_of
from appliance.service.parts.wiring import Wiring

PIECE_BYTES = 16 * 1024  # of a body that are handed over at once; a TLS record holds as many
HEAD_BYTES, MAX_HEADERS = 16 * 1024, 100  # of a request's line and headers
PADDING, HEAD_PADDING = b"appliance-padding", 2048  # the header that fills up heads, and their size with a `cadence`
SINGLE = (b"authorization", b"content-encoding", b"content-type", b"x-api-key")  # of which a request has one at most

METRICS = "/metrics"
BESIDE_METRICS = (METRICS, "/health", "/v1/attestation", "/v1/attestation/activation")  # of a listener for metrics

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "server": "appliance",
    "x-content-type-options": "nosniff",
}


class Guard:
    """An ASGI application around the Litestar application."""

    def __init__(self, app: ASGIApp, service: Wiring) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; exceptions never leave, but for cancellation, which is answered first.
        """
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        # The framework routes by it: what is padded is what is answered.
        scope["path"] = path_of(scope["raw_path"], scope["scheme"]) or ""
        exchange = Exchange(endpoints.name_of(scope["path"]), self._service.timing, scope["path"])
        if self._service.salts is not None and exchange.endpoint in INFERENCE:
            exchange.digests = self._service.salts.of(exchange.request_id)
        scope.setdefault("state", {})["exchange"] = exchange
        framing: Framing | None = scope["state"].get("framing")
        reply = Reply(exchange, send, self._service, scope)
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # the server sends no body for it
        self._service.books.metrics.in_flight.inc()
        try:
            self._service.readiness.require_audit(exchange.endpoint)
            check_head(scope)
            require_served(scope["state"].get("serves", "all"), exchange.endpoint)
            if framing is not None and framing.error is not None:
                raise framing.error
            await self._app(inner, receive, reply)
        except Exception as error:  # noqa: BLE001 - the last place where it can become an answer
            await self._rescue(exchange, reply, reply.withheld or error)
        except asyncio.CancelledError:  # the service ends, and has no time left
            if not reply.started or (exchange.departure.streaming and not reply.ended):
                exchange.departure.cut_short = True
                await self._rescue(exchange, reply, RequestError("shutting_down", retry_after=5))
            raise
        finally:
            reply.release()
            self._service.books.metrics.in_flight.dec()
            self._finish(exchange)
            scope["headers"].clear()  # type: ignore[attr-defined]  # a list: the connection keeps it, and the key
            scope["state"].clear()
            self._service.scrubber.begin_soon()

    def refuse_malformed(self, code: str) -> None:
        """Take note of bytes that were no HTTP request; the protocol has answered them."""
        exchange = Exchange("other", self._service.timing)
        exchange.entry.status, exchange.entry.code = RequestError(code).status, code
        self._finish(exchange)

    def count_connection(self, how: str) -> None:
        """Count a connection that ends without a request, by a word of `counted.CONNECTIONS`."""
        self._service.audit.counted.connection(how)

    async def _rescue(self, exchange: Exchange, reply: Reply, error: Exception) -> None:
        """Answer for an exception that no handler took. A stream that has not ended tells it in its
        last event; another answer is just broken off."""
        refusal = refusals.refuse(self._service, exchange, error)
        if reply.started:
            if exchange.departure.streaming and not reply.ended:
                await self._end_stream(exchange, reply, refusal)
            return
        try:
            await reply.problem(refusal, refusals.body_of(self._service, exchange, refusal))
        except RequestError as lost:  # the refusal could not be recorded
            refusal = refusals.refuse(self._service, exchange, lost)
            await reply.problem(refusal, refusals.body_of(self._service, exchange, refusal))

    async def _end_stream(self, exchange: Exchange, reply: Reply, refusal: RequestError) -> None:
        """Send a refusal as a stream's last event; one that cannot be recorded breaks the stream
        off."""
        last = pad_event(exchange.departure.failed(refusal), self._service.padding)
        with contextlib.suppress(RequestError):
            await reply({"type": "http.response.body", "body": last, "more_body": False})

    def _finish(self, exchange: Exchange) -> None:
        """Stop what still runs for the request, record it if its end did not leave, and count it.
        """
        exchange.close()
        recording.at_last(self._service, exchange)
        self._service.books.metrics.record(exchange)
        recording.charge(self._service, exchange)
        self._service.readiness.record_failures(self._service.booted.models)


class Reply:
    """The way out. The head of an answer waits for its first body bytes, so that both leave
    together, and each for the record that it belongs to."""

    def __init__(self, exchange: Exchange, send: Send, service: Wiring, scope: HTTPScope) -> None:
        """`scope` of the request: its connection knows whether it ends with this answer."""
        self._exchange, self._send, self._service, self._scope = exchange, send, service, scope
        self._gate: SocketGate | None = scope["state"].get("gate")
        self._head: Message | None = None
        self._held = b""  # of the body
        self._tail = b""  # what follows it
        self.started = self.ended = False
        self.withheld: RequestError | None = None  # why an answer did not leave; what raised it may be wrapped

    async def __call__(self, message: Message) -> None:
        """Send one ASGI message."""
        if message["type"] == "http.response.start":
            self._head = message
            return
        if self._head is not None and self._exchange.refused_alike:
            await self._refuse_alike(self._head, message.get("body", b""))  # type: ignore[arg-type]
            return
        if self._head is not None:
            if self._exchange.paced:
                await self._exchange.pacer.hold_end()
            await self._leave(self._head)
        if self.ended and self._exchange.departure.complete:
            return
        body: bytes = message.get("body", b"")  # type: ignore[assignment]
        more = bool(message.get("more_body", False)) and not self._exchange.departure.complete
        if not more:
            await self._record(recording.before_end)
        await self._pieces(self._held + body + (b"" if more else self._tail), more)

    async def _leave(self, head: Message) -> None:
        """Send the head, once it is recorded."""
        self._head = None
        self._exchange.entry.status = head["status"]  # type: ignore[typeddict-item]
        await self._record(recording.before_head)
        self._tail = self._exchange.departure.tail() if self._exchange.entry.code is None else b""
        head["headers"] = self._headers(head)  # type: ignore[typeddict-unknown-key]
        self.started = True
        if self._exchange.endpoint not in INFERENCE:
            self._exchange.pacer.first()
        await self._hold()
        await self._send(head)

    async def _hold(self) -> None:
        """Keep what is sent from now on, if it is to leave in a window."""
        if self._exchange.pacer.due is None:
            return
        if self._gate is None:
            await self._exchange.pacer.leave()
        else:
            self._gate.hold(self)

    async def _out(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body, with all that is kept."""
        await self._hold()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        pacer = self._exchange.pacer
        if pacer.due is not None and self._gate is not None:
            due, pacer.due = pacer.due, None
            await self._gate.leave(due, self)

    def release(self) -> None:
        """Keep nothing of an answer that is over."""
        if self._gate is not None:
            self._gate.release(self)

    async def _refuse_alike(self, head: Message, body: bytes) -> None:
        """Send a refusal as the stream leaves that it was asked for."""
        head["headers"] = [each for each in head["headers"]  # type: ignore[typeddict-item,typeddict-unknown-key]
                           if each[0].lower() != b"content-length"]

        async def end() -> None:
            await self._record(recording.before_end)
            self._exchange.departure.complete = True

        async for parcel in parcels.refusal(body, self._exchange.pacer, self._service.parcel or 1, end):
            if not self.started:
                await self._leave(head)
            self.ended = self._exchange.departure.complete
            await self._out(parcel, more=not self.ended)

    async def _record(self, write: Callable[[Wiring, Exchange], None]) -> None:
        try:
            write(self._service, self._exchange)
            await recording.flush(self._service, self._exchange)
        except RequestError as lost:
            self.withheld = lost
            raise

    async def _pieces(self, body: bytes, more: bool) -> None:
        """Send a body, or a part of it, little by little: each piece waits until the client took
        those before. Over TLS a piece is a record, whose length all can see: so spaces fill up the
        one in which the body ends, and the last alone is short."""
        own = self._exchange.departure.spaces
        least, spaces = 1 if own is None else PIECE_BYTES, 0 if more else own or 0
        start, left = 0, not more
        while left or len(body) - start >= least:
            piece = body[start:start + PIECE_BYTES]
            filling = min(spaces, PIECE_BYTES - len(piece))
            start, spaces = start + len(piece), spaces - filling
            left = not more and (start < len(body) or spaces > 0)
            self.ended = not (more or left)
            await self._out(piece + b" " * filling, more=more or left)
        self._held = body[start:]

    async def problem(self, error: RequestError, body: bytes) -> None:
        """Send a refusal as the whole answer."""
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
        self._head = None
        self._exchange.departure.streaming &= not self._exchange.departure.alike  # nothing of the stream has left
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": body, "more_body": False})

    def _headers(self, head: Message) -> list[tuple[bytes, bytes]]:
        further = (self._exchange.departure.spaces or 0) + len(self._tail)
        ours = {**HEADERS, **self._exchange.headers, "x-request-id": self._exchange.request_id}
        headers: list[tuple[bytes, bytes]] = [
            (name, str(int(value) + further).encode() if name.lower() == b"content-length" else value)
            for name, value in head["headers"]]  # type: ignore[typeddict-item]
        framing: Framing | None = self._scope["state"].get("framing")
        ends = framing is not None and framing.ends_connection
        if ends and not any(name.lower() == b"connection" for name, _ in headers):
            headers.append((b"connection", b"close"))
        headers += [(name.encode(), value.encode()) for name, value in ours.items()]
        alike = self._service.parcel is not None and self._exchange.endpoint in INFERENCE
        return padded_head(head["status"], headers, self._scope) if alike else headers  # type: ignore[typeddict-item]


def require_served(serves: str, endpoint: str) -> None:
    """Refuse an endpoint that the request's listener does not serve."""
    if serves == "metrics" and endpoint not in BESIDE_METRICS:
        raise RequestError("not_found", "this listener serves nothing but /metrics, /health and /v1/attestation")
    if serves == "api" and endpoint == METRICS:
        raise RequestError("not_found", "this listener does not serve /metrics")


def padded_head(status: int, headers: list[tuple[bytes, bytes]], scope: HTTPScope) -> list[tuple[bytes, bytes]]:
    """Return headers with one more, so that the head has a multiple of `HEAD_PADDING` bytes. It
    has those already that the server would add."""
    names = {name.lower() for name, _ in headers}
    if b"content-length" not in names and scope["http_version"] == "1.1":
        headers = [*headers, (b"transfer-encoding", b"chunked")]
    closes = any(b"close" in value.lower() for name, value in scope["headers"] if name == b"connection")
    if b"connection" not in names and (closes or scope["http_version"] != "1.1"):
        headers = [*headers, (b"connection", b"close")]
    size = len(b"HTTP/1.1 200 \r\n\r\n") + len(STATUS_PHRASES[status]) + sum(
        len(name) + len(value) + 4 for name, value in [*headers, (PADDING, b"")])
    return [*headers, (PADDING, b"." * (-size % HEAD_PADDING))]


def check_head(scope: HTTPScope) -> None:
    """Refuse a head that is too large, methods of no use, and targets that name no path. (The
    parser bounds only heads that arrive in parts.) Refuse heads that two readers can take for two
    different requests: two API keys, two media types, or two lengths (RFC 9112 §6.1)."""
    headers = list(scope["headers"])
    size = len(scope["raw_path"]) + len(scope["query_string"])
    if size + sum(len(name) + len(value) + 4 for name, value in headers) > HEAD_BYTES or len(headers) > MAX_HEADERS:
        raise RequestError("headers_too_large")
    names = [name for name, _ in headers]
    if any(names.count(name) > 1 for name in SINGLE) or {b"transfer-encoding", b"content-length"} <= set(names):
        raise RequestError("malformed_request")
    methods = ("POST",) if endpoints.name_of(scope["path"]) in INFERENCE else ("GET", "HEAD", "POST")
    if scope["method"] not in methods:
        raise RequestError("not_found" if endpoints.name_of(scope["path"]) == endpoints.OTHER else "method_not_allowed")
    if not scope["path"]:
        raise RequestError("malformed_request")
