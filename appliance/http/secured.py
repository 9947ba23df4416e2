"""TLS between a connection's socket and the protocol of the service, over memory.

The application sees a transport as of plain TCP. A client that ends its side by close_notify may
still be answered, as over TCP (RFC 8446, section 6.1). A socket that ends without it was cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from appliance.http.departures import Departures, SocketGate
from appliance.http.tls import Credential
from appliance.tls import READ_BYTES, Session, TlsError

THROWN_BYTES = 64 * 1024  # that a client may still send after the service's end, before it is cut off


class SecureTransport(asyncio.Protocol):
    """The protocol of the socket, and the transport of the application, which is given to it once
    the handshake is complete."""

    def __init__(self, application: asyncio.Protocol, shown: Credential, *, handshake: float, shutdown: float,
                 admit: Callable[[Session], None] | None = None) -> None:
        """`handshake`, `shutdown`: seconds for those. `admit` judges the session before a byte of
        the application is read, and raises TlsError."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.session, self._shown = Session(shown.context, server=True), shown
        self._application: Any = application
        self._seconds, self._shutdown, self._admit = handshake, shutdown, admit
        self._socket: Any = None  # the socket's transport
        self._gate: SocketGate | None = None  # before it, where answers wait for windows
        self._open = self._half_closed = self._closing = self._paused = False
        self._thrown = 0  # bytes that came after our end
        self._timer: asyncio.TimerHandle | None = None
        self._age: asyncio.TimerHandle | None = None

    # the socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, which has its time."""
        self._socket = transport
        self._socket.max_size = READ_BYTES  # taken at once: asyncio takes, and keeps room for, 256 KiB
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._fail, TimeoutError("handshake"))

    def data_received(self, data: bytes) -> None:
        """Decrypt what came."""
        self.session.feed(data)
        try:
            if not self._open and not self._closing:
                self._shake()
            if self._open:
                self._read()
        except TlsError as error:
            self._flush()
            self._fail(error)

    def eof_received(self) -> bool:
        """The client's socket ended: after close_notify it may still read; without, it was cut."""
        if self._gate is None or not self._gate.waits:
            return self._half_closed and not self._closing
        if self._closing or not self._half_closed:
            self._gate.close()  # after the answer, which was complete before
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application, and let go of it."""
        self._forget_timer()
        if self._age is not None:
            self._age.cancel()
        application, opened = self._application, self._open
        self._application, self._open, self._closing = None, False, True
        if opened:
            application.connection_lost(exc)
        elif not self.ready.done():
            self.ready.set_exception(exc or ConnectionResetError())

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        if self._open:
            self._application.pause_writing()

    def resume_writing(self) -> None:
        """The socket takes more."""
        if self._open:
            self._application.resume_writing()

    def _shake(self) -> None:
        complete = self.session.shake()
        self._flush()
        if complete:
            if self._admit is not None:
                self._admit(self.session)
            self._forget_timer()
            self._open = True
            self._shown.connections.add(self._application)
            self._later(self._shown.rotation, self._leave)
            self._application.connection_made(self)
            self.ready.set_result(None)

    def _later(self, wait: timedelta, do: Callable[[], None]) -> None:
        self._age = asyncio.get_running_loop().call_later(wait.total_seconds(), do)

    def _leave(self) -> None:
        """Let the next answer be the last: the connection is as old as a key may be."""
        self._later(self._shown.grace, self._application.shutdown)
        self._application.leave()

    def _read(self) -> None:
        """Hand over what is decrypted, unless nobody reads."""
        while self._open and not (self._paused and not self._closing) and not self._half_closed:
            data = self.session.read()
            if data is None:
                break
            if not data:
                self._ended()
            elif not self._closing:
                self._application.data_received(data)
            else:
                self._thrown += len(data)
                if self._thrown > THROWN_BYTES:
                    self._socket.abort()
                    return
        self._flush()

    def _ended(self) -> None:
        """The client said close_notify."""
        if self._closing:
            self._socket.close()
        self._half_closed = True
        if not self._closing and not self._application.eof_received():
            self.close()

    def _fail(self, error: Exception) -> None:
        self._forget_timer()
        if not self.ready.done():
            self.ready.set_exception(error)
        self._socket.abort()

    def _flush(self) -> None:
        if data := self.session.outgoing():
            self._socket.write(data)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # the application's transport

    def gated(self, departures: Departures) -> SocketGate:
        """Return a gate that is before the socket from now on: what is held is encrypted."""
        self._gate = self._socket = departures.gate(self._socket)
        return self._gate

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        if not self._closing and data:
            self.session.write(data)
            self._flush()

    def close(self) -> None:
        """Say close_notify, and wait a while for the client's."""
        if self._closing:
            return
        self._closing = True
        both = self.session.close()
        self._flush()
        if both or self._half_closed:
            self._socket.close()
            return
        if self._gate is None:
            self._await_end()
        else:
            self._gate.then(self._await_end)
        self._socket.resume_reading()
        asyncio.get_running_loop().call_soon(self.data_received, b"")

    def _await_end(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._shutdown, self._socket.abort)

    def abort(self) -> None:
        """End at once."""
        self._closing = True
        self._socket.abort()

    def is_closing(self) -> bool:
        """Return whether no more can be sent."""
        return self._closing or bool(self._socket.is_closing())

    def pause_reading(self) -> None:
        """Take no more from the socket."""
        self._paused = True
        self._socket.pause_reading()

    def resume_reading(self) -> None:
        """Go on, with what was decrypted already first."""
        if self._paused:
            self._paused = False
            self._socket.resume_reading()
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def can_write_eof(self) -> bool:
        """TLS has no half-close of ours that clients would expect."""
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`session` and `shown`: this connection's; `sslcontext`: it is one of TLS, as uvicorn
        asks."""
        if name in ("session", "sslcontext"):
            return self.session
        if name == "shown":
            return self._shown
        return self._socket.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        """The limits and size of the socket's buffer, whose bytes are encrypted already."""
        if name in ("set_write_buffer_limits", "get_write_buffer_size", "get_write_buffer_limits", "is_reading"):
            return getattr(self._socket, name)
        raise AttributeError(name)
