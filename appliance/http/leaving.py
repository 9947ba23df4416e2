"""The end of a connection: a client that half-closes still gets its answer, a lost one is noticed.

A client may end its side after its request and wait for the answer (RFC 9112 §9.6; TLS:
close_notify, RFC 8446 §6.1). A client that went away looks the same until something is sent to it.
So the first bytes of the answer, `HTTP/1.1 `, leave early and one by one: they tell nothing, and
the system of a client that is gone answers with a reset. Of a Unix socket the kernel tells at once.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any

READ_BYTES = 16 * 1024  # taken from a connection at once: a TLS record. asyncio takes, and keeps room for, 256 KiB
GREETING = b"HTTP/1.1 "
LOOK_SECONDS = 0.25     # from one look at a half-closed connection to the next
QUIET_SECONDS = 1.0     # without a byte of a body that nobody reads, after which its connection ends; and at most
DRAIN_SECONDS, DRAIN_BYTES = 15.0, 1 << 20
TCP = (socket.AF_INET, socket.AF_INET6)


def gone(own: Any) -> bool:
    """Return whether a connection's other side takes nothing any more, as far as the kernel knows.
    """
    poll = select.poll()
    poll.register(own.fileno(), 0)
    return bool(poll.poll(0))


class Way:
    """A connection's transport with two differences. It leaves out the part of an answer that was
    sent early. It closes when what the client still sends was taken, as else the kernel would take
    back the answer (RFC 9112 §9.6)."""

    def __init__(self, transport: Any, unread: Callable[[], bool]) -> None:
        """`unread`: whether the client may still send a part of what it began."""
        self._transport, self._unread = transport, unread
        self._loop = asyncio.get_running_loop()
        self._early = 0            # bytes of the greeting that the next answer has already
        self._taken, self._until = 0, 0.0
        self._quiet: asyncio.TimerHandle | None = None
        self.draining = False      # closed, but for what still comes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def greet(self) -> None:
        """Send one more byte of the answer that is to come."""
        if self._early < len(GREETING) and not self.is_closing():
            self._transport.write(GREETING[self._early:self._early + 1])
            self._early += 1

    def write(self, data: bytes) -> None:
        """Send bytes of an answer."""
        early, self._early = self._early, 0
        self._transport.write(data[early:])

    def is_closing(self) -> bool:
        """Return whether no more can be sent."""
        return self.draining or bool(self._transport.is_closing())

    def close(self) -> None:
        """Send what waits, and end. Throw away what the client still sends for a while."""
        if self.is_closing():
            return
        if not self._unread():
            self._transport.close()
            return
        self.draining = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._transport.resume_reading()
        self._until = self._loop.time() + DRAIN_SECONDS
        self._wait()

    def drain(self, nbytes: int) -> None:
        """Count bytes that were thrown away."""
        self._taken += nbytes
        if self._taken > DRAIN_BYTES:
            self.finish()
        else:
            self._wait()

    def finish(self) -> None:
        """Wait no longer."""
        self.forget()
        if not self._transport.is_closing():
            self._transport.close()

    def forget(self) -> None:
        """Stop the timer."""
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None

    def _wait(self) -> None:
        self.forget()
        self._quiet = self._loop.call_at(min(self._loop.time() + QUIET_SECONDS, self._until), self.finish)
