"""Connections to one appliance that may be used: verified just now, on the TLS key that answers on
them.

A key that was verified is good for new connections for a while. A connection that shows another key
(a rotation, or somebody else) is verified itself before it is handed out. So is the first one after
the while. Nothing but a nonce goes out on a connection before that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from appliance.client.connection import Connection, connect
from appliance.client.target import Endpoint
from appliance.client.verdict import Status, Verdict
from appliance.client.verifier import Verifier

LIFE_SECONDS = 300.0
MAX_IDLE = 32
_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))  # None: Windows


def _now() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine sleeps: Linux'
    monotonic one does not."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class Channel:
    """Hands out verified connections to an endpoint; safe to call from several threads.

    `life`: for how many seconds a verdict on a key holds. `accept`: verdicts other than "verified"
    that will do, for tests and development: "simulated", "measured boot, host trusted". `tell` is
    called with each new verdict.
    """

    def __init__(self, verifier: Verifier, endpoint: Endpoint, *, life: float = LIFE_SECONDS,
                 accept: tuple[Status, ...] = (), tell: Callable[[Verdict], None] | None = None) -> None:
        self.endpoint = endpoint
        self._verifier, self._life, self._accept, self._tell = verifier, life, accept, tell
        self._lock = threading.Lock()
        self._known: dict[bytes | None, float] = {}  # key (None: no TLS) -> until when its verdict holds, by _now
        self._idle: list[Connection] = []

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
            if connection.usable and self._holds(connection.spki_sha256):
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
        """Verify now, on a new connection. Raises as `take` does; the verdict holds for connections
        to come."""
        connection = connect(self.endpoint)
        try:
            verdict = self._check(connection)
        except BaseException:
            connection.close()
            raise
        self.give(connection)
        return verdict

    def close(self) -> None:
        """Close idle connections and forget what was verified."""
        with self._lock:
            idle, self._idle, self._known = self._idle, [], {}
        for connection in idle:
            connection.close()

    def _holds(self, key: bytes | None) -> bool:
        with self._lock:
            return _now() < self._known.get(key, 0.0)

    def _open(self) -> Connection:
        connection = connect(self.endpoint)
        try:
            if not self._holds(connection.spki_sha256):
                self._check(connection)
                if not connection.usable:  # the answer ended the connection: the next one shows the key just verified
                    connection.close()
                    connection = connect(self.endpoint)
                    if not self._holds(connection.spki_sha256):
                        self._check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self, connection: Connection) -> Verdict:
        begun = _now()
        verdict = self._verifier.verify_connection(connection)
        if self._tell is not None:
            self._tell(verdict)
        with self._lock:
            self._known.pop(connection.spki_sha256, None)
        verdict.require(*self._accept)
        with self._lock:
            self._known = {key: until for key, until in self._known.items() if until > begun}
            self._known[connection.spki_sha256] = begun + self._life
        return verdict
