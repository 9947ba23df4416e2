"""Connections to one appliance that may be used: each was verified by itself.

A verdict is about one connection, and is kept for no other: a key that was verified once may be in
other hands by now. Connections are kept open instead, and a connection is used for a while after
its verdict. Nothing but a nonce goes out on one before that.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Protocol

from appliance.client.connection import Connection, connect
from appliance.client.target import Endpoint
from appliance.client.verdict import Status, Verdict
from appliance.errors import UncheckedEvidenceError

LIFE_SECONDS = 300.0
MAX_IDLE = 32
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # None: Windows


def _now() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine sleeps: Linux'
    monotonic one does not."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class ConnectionJudge(Protocol):
    """A judge of connections, such as a `Verifier`."""

    def verify_connection(self, connection: Connection) -> Verdict:
        """The verdict on whoever answers on this connection."""


class Channel:
    """Hands out verified connections to an endpoint; safe to call from several threads.

    `life`: for how many seconds a connection is used after its verdict. `accept`: verdicts other
    than "verified" that will do, for tests and development: "simulated", "measured boot, host
    trusted". `tell` is called with each new verdict.
    """

    def __init__(self, verifier: ConnectionJudge, endpoint: Endpoint, *, life: float = LIFE_SECONDS,
                 accept: tuple[Status, ...] = (), tell: Callable[[Verdict], None] | None = None) -> None:
        self.endpoint = endpoint
        self._verifier, self._life, self._accept, self._tell = verifier, life, accept, tell
        self._lock = threading.Lock()
        self._epoch = 0  # how often earlier verdicts were given up
        self._idle: list[Connection] = []
        self._until: weakref.WeakKeyDictionary[Connection, float] = weakref.WeakKeyDictionary()  # by _now

    def take(self) -> Connection:
        """A connection that may carry a prompt; give it back with `give`, or close it.

        Raises the verdict's error (`Verdict.require`) if the appliance is not verified,
        UncheckedEvidenceError if it cannot be reached.
        """
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                break
            if connection.usable and self._holds(connection):
                return connection
            connection.close()
        return self._open()

    def give(self, connection: Connection) -> None:
        """Take back a connection on which an answer was read to its end."""
        if connection.usable:
            with self._lock:
                if len(self._idle) < MAX_IDLE:
                    self._idle.append(connection)
                    return
        connection.close()

    def verify(self) -> Verdict:
        """Verify now, on a new connection, which is kept for the next request. Raises as `take`
        does."""
        connection = connect(self.endpoint)
        try:
            verdict = self._check(connection)
        except BaseException:
            connection.close()
            raise
        self.give(connection)
        return verdict

    def close(self) -> None:
        """Close idle connections, and use no other again that was verified so far."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._until.clear()
            self._epoch += 1
        for connection in idle:
            connection.close()

    def _holds(self, connection: Connection) -> bool:
        with self._lock:
            return _now() < self._until.get(connection, 0.0)

    def _open(self) -> Connection:
        """A new connection, verified. An answer may end its connection: the next one is tried once.
        """
        for _ in range(2):
            connection = connect(self.endpoint)
            try:
                self._check(connection)
            except BaseException:
                connection.close()
                raise
            if connection.usable:
                return connection
            connection.close()
        raise UncheckedEvidenceError(f"{self.endpoint}: it ends each connection after its evidence",
                                     code="connection-ended", hint="is a proxy between here and the appliance?")

    def _check(self, connection: Connection) -> Verdict:
        """Verify, and again where `close` gave up earlier verdicts meanwhile."""
        while True:
            begun, epoch = _now(), self._epoch
            verdict = self._verifier.verify_connection(connection)
            if self._tell is not None:
                self._tell(verdict)
            verdict.require(*self._accept)
            with self._lock:
                if epoch == self._epoch:
                    self._until[connection] = begun + self._life
                    return verdict
