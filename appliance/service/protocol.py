"""uvicorn's HTTP/1.1 protocol with the doors that it leaves open closed: slow heads, floods, plain-text errors.

A client has `HEAD_SECONDS` for a request's line and headers, on a fresh connection and on a kept one alike,
`WRITE_SECONDS` to take any of the bytes that wait for it, and the time of an idle connection for the rest of a body
that was answered before it was read; uvicorn alone would wait for ever. No more of a body is taken than what is asked
for. Bytes that are not HTTP are answered in OpenAI's shape and reported by code.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import socket
import sys
import time
import weakref
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from appliance.service.listen import READ_BYTES
from appliance.service.problems import RequestError
from appliance.service.tls import channel_of

HEAD_SECONDS = 10.0
WRITE_SECONDS = 30.0
LINGER_SECONDS = 120.0  # for what the kernel still holds when a connection is over: 64 KiB by a slow link
COLLECT_SECONDS = 1.0  # between collections of what connections left
WRITE_BYTES = 32 * 1024  # that wait for a client before an answer waits, too; in the kernel as much, which doubles it
_TCP = (socket.AF_INET, socket.AF_INET6)
AHEAD_BYTES = 64 * 1024  # of later requests that are held while one is answered


class Protocol(H11Protocol):
    """One client connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _tcp: socket.socket | None = None  # asked for at once: a transport of TLS that was closed twice knows it no more
    _linger = LINGER_SECONDS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection that was accepted."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "channel": channel_of(transport)}  # what evidence on it will bind
        _read_little(transport)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in _TCP:
            self._tcp = own
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITE_BYTES)  # it would hold some MiB of each
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection. What the kernel still holds does not wait for its client for ever. (No
        sooner: the kernel counts from when a window first closed until one is open for all that is next, however much
        the client takes meanwhile.)"""
        self._disarm()
        self._writable()
        if self._tcp is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._linger * 1000))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; a head that has begun must end in time. Who sends what comes after a request ahead, a line
        break of some clients or the next request, is read on for a while: else nobody would see it leave."""
        super().data_received(data)
        if self.conn.their_state is h11.DONE and len(self.conn.trailing_data[0]) < AHEAD_BYTES:
            self.flow.resume_reading()
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is not h11.DONE and self.cycle.body:
            self.flow.pause_reading()  # until the application asks for it, which it may never do
        self._watch_head()

    def on_response_complete(self) -> None:
        """Go on to the connection's next request, of which a part may be here already."""
        super().on_response_complete()
        self._watch_head()

    def shutdown(self) -> None:
        """Begin to end with the service; a connection that ends already is not closed again, which would break what
        asyncio has of one over TLS."""
        if not self.transport.is_closing():
            super().shutdown()

    def pause_writing(self) -> None:
        """The client does not take what is sent, or not as fast: give it some time to take a part."""
        super().pause_writing()
        self._await_progress()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, in OpenAI's shape, and close."""
        hint = getattr(sys.exception(), "error_status_hint", 400)
        error = RequestError("headers_too_large" if hint == 431 else "malformed_request")
        guard: Any = self.app
        guard.refuse_malformed(error.code)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error.body()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
                       (b"connection", b"close")]
            head = h11.Response(status_code=error.status, headers=headers, reason=b"")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:  # an answer under way can no longer be sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """Stop the timer of an idle connection, but for the rest of a body that was answered before it was read."""
        if not (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY):
            super()._unset_keepalive_if_required()

    def _watch_head(self) -> None:
        """Time a head while the parser waits for one and holds a part of it."""
        waiting = self.conn.their_state is h11.IDLE and bool(self.conn.trailing_data[0])
        if waiting and self._head_timer is None:
            self._arm()
        elif not waiting:
            self._disarm()

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _writable(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_progress(self, before: int | None = None) -> None:
        """Cut off a client that has taken nothing since `before` bytes waited for it; look again later at another."""
        waiting = self.transport.get_write_buffer_size()
        if before is not None and waiting >= before:
            self._linger = 1.0
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._await_progress, waiting)

    def _head_is_late(self) -> None:
        if not self.transport.is_closing():
            self.transport.abort()


def _read_little(transport: Any) -> None:
    """Take few bytes at once from a connection, and let few wait to be decrypted, or to be sent: asyncio would hold
    512 KiB for a client over TLS that does not read."""
    transport.set_write_buffer_limits(WRITE_BYTES)
    if transport.get_extra_info("ssl_object") is None:
        transport.max_size = READ_BYTES
    else:
        transport.set_read_buffer_limits(READ_BYTES)


class Arrivals:
    """Makes the protocol of each connection that is accepted, as long as there are not `most` of them.

    Those whose TLS handshake is under way count: they take as much memory as any, and whoever can reach the port can
    begin one. So do those that are over, until their memory is given back: a handshake that fails tells nobody, and
    leaves a cycle of references.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], most: int) -> None:
        self._config, self._state, self._app_state, self._most = config, state, app_state, most
        self._made: weakref.WeakSet[Protocol] = weakref.WeakSet()
        self._collected = -math.inf

    def __call__(self) -> Protocol:
        """A protocol. ConnectionAbortedError when there are too many: the connection is dropped."""
        now = time.monotonic()
        if len(self._made) >= self._most and now >= self._collected + COLLECT_SECONDS:
            gc.collect()
            self._collected = now
        if len(self._made) >= self._most:
            raise ConnectionAbortedError
        made = Protocol(config=self._config, server_state=self._state, app_state=self._app_state)
        self._made.add(made)
        return made
