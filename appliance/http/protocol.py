"""uvicorn's HTTP/1.1 protocol with the doors that it leaves open closed: slow heads, floods,
lenient framing, errors in plain text.

A client has `HEAD_SECONDS` for a request's line and headers, on a fresh connection and on a kept
one alike. It has `WRITE_SECONDS` to take any of the bytes that wait for it. For the rest of a body
that was answered before it was read, it has the time of an idle connection. uvicorn alone would
wait for ever. No more of a body is taken than what is asked for. Bytes that are not HTTP are
answered in OpenAI's shape and reported by code, and their connection ends: what comes after them is
never answered. A client may end its side after its request, and gets its answer.
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

from appliance.api.problems import RequestError
from appliance.http.departures import Departures, SocketGate
from appliance.http.framing import HEAD_LIMIT, Framing
from appliance.http.leaving import LOOK_SECONDS, READ_BYTES, TCP, Way, gone
from appliance.http.secured import SecureTransport
from appliance.http.tls import channel_of

HEAD_SECONDS = 10.0
WRITE_SECONDS = 30.0
LINGER_SECONDS = 120.0  # for what the kernel still holds when a connection is over: 64 KiB by a slow link
COLLECT_SECONDS = 1.0  # between collections of what connections left
WRITE_BYTES = 8 * 1024  # that wait for a client before an answer waits, too
SOCKET_BYTES = 32 * 1024  # that the kernel holds of them, which doubles it
AHEAD_BYTES = 64 * 1024  # of later requests that are held while one is answered


class Protocol(H11Protocol):
    """One client connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _tcp: socket.socket | None = None  # asked for at once: a transport of TLS that was closed twice knows it no more
    _linger = LINGER_SECONDS
    _looks = 0  # at a client that ended its side
    _look_timer: asyncio.TimerHandle | None = None
    _leaving = False  # its key was replaced: the next answer is the last one
    _gate: SocketGate | None = None  # where answers wait for windows

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection that was accepted."""
        self.framing = Framing(self.config.h11_max_incomplete_event_size or HEAD_LIMIT)
        gated, self._gate = _gated(transport, self.app_state.get("departures"))
        self.way = Way(gated, self._unread)
        way: Any = self.way
        super().connection_made(way)
        self.app_state = {**self.app_state, "channel": channel_of(transport), "framing": self.framing,
                          "gate": self._gate}
        _read_little(transport)
        own = transport.get_extra_info("socket")
        if own is not None and own.family in TCP:
            self._tcp = own
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)  # it would hold some MiB of each
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timer with the connection. Bytes that the kernel still holds do not wait for
        their client for ever. (No sooner: the kernel counts from when a window first closed until
        one is open for all that is next, however much the client takes meanwhile.)"""
        self._disarm()
        self._writable()
        self.way.forget()
        if self._gate is not None:
            self._gate.lose()
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._tcp is not None:
            with contextlib.suppress(OSError):  # it is closed already
                self._tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(self._linger * 1000))
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser what is framed soundly; a head that has begun must end in time."""
        if self.way.draining:
            self.way.drain(len(data))
            return
        self._unset_keepalive_if_required()
        if self.framing.error is None:
            self.framing.feed(data)
            self._pump()
        self._hold_back()
        self._watch_head()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. It still gets the answers to what came whole; True keeps its
        connection."""
        while self.framing.more and not self.way.draining:
            self._pump()
        if self.way.draining or not self._answer_due():
            return _ends_later(self.way, self._gate)
        if not self._looks:
            self._look()
        return True

    def on_response_complete(self) -> None:
        """Go on to the connection's next request, of which a part may be here already; end where
        the next byte is not the begin of one, or none will come."""
        super().on_response_complete()
        self._pump()
        half_closed = self._looks > 0
        if self.cycle.response_complete and (half_closed or self.framing.ends_connection):
            self.way.close()
        self._watch_head()

    def shutdown(self) -> None:
        """Begin to end with the service; a connection that ends already is not closed again, which
        would break what asyncio has of one over TLS."""
        if self.way.draining:
            self.way.finish()
        elif not self.transport.is_closing():
            super().shutdown()

    def leave(self) -> None:
        """Let the answer under way, or the next one, be the last: it says `connection: close`, so
        that no client sends another request meanwhile."""
        self._leaving = True
        self._last()

    def _last(self) -> None:
        cycle = self.cycle
        if self._leaving and cycle is not None and not cycle.response_complete and cycle.keep_alive:
            cycle.keep_alive = False
            cycle.scope["headers"] = [*cycle.scope["headers"], (b"connection", b"close")]  # uvicorn answers with it

    def pause_writing(self) -> None:
        """The client does not take what is sent, or not as fast: give it some time to take a part.
        """
        super().pause_writing()
        self._await_progress()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what h11 does not take."""
        hint = getattr(sys.exception(), "error_status_hint", 400)
        self._refuse(RequestError("headers_too_large" if hint == 431 else "malformed_request"))

    def _refuse(self, error: RequestError) -> None:
        """Answer bytes that are not HTTP, in OpenAI's shape, and close."""
        self.framing.error = error
        guard: Any = self.app
        guard.refuse_malformed(error.code)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = error.body()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
                       (b"connection", b"close")]
            head = h11.Response(status_code=error.status, headers=headers, reason=b"")
            self.transport.write(b"".join(
                self.conn.send(event) or b"" for event in (head, h11.Data(data=body), h11.EndOfMessage())))
        if self.cycle is not None:  # an answer under way can no longer be sent
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _pump(self) -> None:
        """Hand over what is here to h11: of a later request nothing before its turn."""
        while self.framing.error is None and (not self.framing.between or self.conn.their_state is h11.IDLE):
            begins = self.framing.between
            try:
                sound = self.framing.take()
            except RequestError as error:
                self._fail(error, begins)
                return
            if not sound:
                if self.framing.more:
                    self._go_on_soon()
                return
            self.conn.receive_data(sound)
            self.handle_events()
            self._last()

    def _go_on_soon(self) -> None:
        """Leave the rest of a body in small chunks until others had their turn, and read no more of
        it before."""
        self.flow.pause_reading()
        self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if not (self.transport.is_closing() or self.way.draining):
            self.flow.resume_reading()
            self._pump()
            self._hold_back()
            self._watch_head()

    def _fail(self, error: RequestError, begins: bool) -> None:
        """End a connection whose framing is not sound. Where that is seen in a body, its request is
        refused by who reads it, or was answered already."""
        if begins:
            self._refuse(error)
        elif self.cycle.response_complete:
            self.way.close()
        else:
            self.cycle.message_event.set()

    def _hold_back(self) -> None:
        """Read no more than what is of use now."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        if self.framing.more:
            return  # reading is paused until all of it is taken
        if self.framing.error is not None or len(self.framing.held) >= AHEAD_BYTES:
            self.flow.pause_reading()
        elif theirs is not h11.SEND_BODY:
            self.flow.resume_reading()  # else nobody would see it leave
        elif ours is not h11.DONE and self.cycle.body:
            self.flow.pause_reading()  # until the application asks for it, which it may never do

    def _answer_due(self) -> bool:
        """Return whether there is a request that came whole, or is refused as it is, and whose
        answer is not complete."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (
            not cycle.more_body or cycle.response_started or self.framing.error is not None)

    def _unread(self) -> bool:
        """Return whether the client may still send a part of what it began."""
        return self.framing.error is not None or not self.framing.between or bool(self.framing.held)

    def _look(self) -> None:
        """Test whether a client that ended its side is still there. It gets a byte of its answer
        each time twice as long has passed."""
        own = self.transport.get_extra_info("socket")
        if own is None or gone(own):
            self.transport.abort()
            return
        doubled = self._looks > 0 and self._looks & (self._looks - 1) == 0
        if doubled and own.family != socket.AF_UNIX and not self.cycle.response_started:
            self.way.greet()
        self._looks += 1
        self._look_timer = self.loop.call_later(LOOK_SECONDS, self._look)

    def _unset_keepalive_if_required(self) -> None:
        """Stop the timer of an idle connection, but for the rest of a body that was answered before
        it was read."""
        if not (self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY):
            super()._unset_keepalive_if_required()

    def _watch_head(self) -> None:
        """Time a head while the parser waits for one and holds a part of it."""
        waiting = self.conn.their_state is h11.IDLE and bool(self.framing.held)
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
        """Cut off a client that has taken nothing since `before` bytes waited for it; look again
        later at another."""
        waiting = self.transport.get_write_buffer_size()
        if before is not None and waiting >= before:
            self._linger = 1.0
            self.transport.abort()
        else:
            self._write_timer = self.loop.call_later(WRITE_SECONDS, self._await_progress, waiting)

    def _head_is_late(self) -> None:
        if not self.transport.is_closing():
            guard: Any = self.app
            guard.count_connection("late")
            self.transport.abort()


def _gated(transport: Any, departures: Departures | None) -> tuple[Any, SocketGate | None]:
    """Return a transport in which answers may wait for windows, where the service has such."""
    if departures is None:
        return transport, None
    if isinstance(transport, SecureTransport):
        return transport, transport.gated(departures)
    gate = departures.gate(transport)
    return gate, gate


def _ends_later(way: Way, gate: SocketGate | None) -> bool:
    """Return whether an answer still waits for its window; then the connection ends after it."""
    waits = gate is not None and gate.waits
    if waits:
        way.finish()
    return waits


def _read_little(transport: Any) -> None:
    """Take few bytes at once from a connection, and let few wait to be sent."""
    transport.set_write_buffer_limits(WRITE_BYTES)
    if transport.get_extra_info("session") is None:  # TLS takes as few
        transport.max_size = READ_BYTES


class Arrivals:
    """A factory for the protocols of accepted connections, of which there are at most `most`.

    A connection counts while its TLS handshake is under way: it takes as much memory as any, and
    anybody who can reach the port can begin one. It still counts when it is over, until its memory
    is given back: a handshake that fails tells nobody, and leaves a cycle of references.
    """

    def __init__(self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any], most: int) -> None:
        self._config, self._state, self._app_state, self._most = config, state, app_state, most
        self._made: weakref.WeakSet[Protocol] = weakref.WeakSet()
        self._collected = -math.inf

    def __call__(self, serves: str = "all") -> Protocol:
        """A protocol for a connection to a listener that `serves` some endpoints.
        ConnectionAbortedError when there are too many: the connection is dropped."""
        now = time.monotonic()
        if len(self._made) >= self._most and now >= self._collected + COLLECT_SECONDS:
            gc.collect()
            self._collected = now
        if len(self._made) >= self._most:
            raise ConnectionAbortedError
        made = Protocol(config=self._config, server_state=self._state, app_state={**self._app_state, "serves": serves})
        self._made.add(made)
        return made
