"""One request to a verified appliance and its answer: what may pass, what is dropped, what is said
when nothing may.

Shared by the local proxy and the httpx transport. Headers that speak of one connection alone are
not passed on (RFC 9110, section 7.6.1).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from appliance.client.channel import Channel
from appliance.client.connection import ANSWER_SECONDS, Connection
from appliance.errors import AttestationError, UncheckedEvidenceError

MAX_BODY_BYTES = 64 << 20
PIECE = 1 << 16
_HOP = frozenset({"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
                  "trailer", "transfer-encoding", "upgrade", "expect"})
_TRANSIENT = frozenset({"unreachable", "no-evidence"})

Headers = list[tuple[str, str]]


@dataclass(eq=False)
class Refusal(Exception):  # noqa: N818 - it becomes an answer, not an error
    """Why nothing, or not all, was exchanged: an HTTP status and an error in OpenAI's shape."""

    status: int
    kind: str
    code: str
    message: str
    retry: bool = False

    def body(self) -> bytes:
        """The error in JSON."""
        error = {"message": self.message, "type": self.kind, "param": None, "code": self.code}
        return json.dumps({"error": error}).encode()

    def headers(self) -> Headers:
        """Its headers. `x-should-retry` is what OpenAI's clients ask before they try again by
        themselves."""
        return [("Content-Type", "application/json"), ("Content-Length", str(len(self.body()))),
                ("X-Should-Retry", "true" if self.retry else "false")]


def _not_verified(error: AttestationError) -> Refusal:
    transient = isinstance(error, UncheckedEvidenceError) and error.code in _TRANSIENT
    said = f"not sent: {error.summary}" + (f" ({error.hint})" if error.hint else "")
    return Refusal(503 if transient else 502, "appliance_not_verified", error.code, said, retry=transient)


def _passed(headers: Iterable[tuple[str, str]]) -> Headers:
    """The headers without those of one connection, and without those that `Connection` names."""
    listed = list(headers)
    named = {word.strip().lower() for name, value in listed if name.lower() == "connection"
             for word in value.split(",")}
    return [(name, value) for name, value in listed if name.lower() not in _HOP | named]


@dataclass
class Answer:
    """An answer whose body is read piece by piece, as it comes. End with `close`.

    At its end the connection is given back, before the reader has the last piece: its next request
    finds it there.
    """

    status: int
    headers: Headers           # without those of the connection
    length: int | None         # bytes of the body (for HEAD: of that of GET); None: until it ends
    _answer: http.client.HTTPResponse
    _connection: Connection
    _channel: Channel
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turn: threading.Lock = field(default_factory=threading.Lock)  # held by the thread that reads
    _closed: bool = False
    ended: Callable[[], None] = lambda: None  # is called once, when nothing more of it will come

    def read(self) -> bytes:
        """The bytes that have come, at least one; none at the end. Raises Refusal if the connection
        breaks."""
        with self._turn:
            piece = self._piece()
        if self._answer.isclosed():
            self._give_back()
        return piece

    def _piece(self) -> bytes:
        try:
            piece = self._answer.read1(PIECE)
            if not piece and self._answer.length:
                raise http.client.IncompleteRead(b"", self._answer.length)
            if not piece or self._answer.length == 0:
                self._answer.close()
            return piece
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            self._connection.close()
            raise Refusal(502, "connection_error", "connection-lost", f"the answer broke off: {_word(error)}") from None

    def abort(self) -> None:
        """End it from another thread: the appliance sees that nobody waits for the answer any more.
        """
        with self._lock:
            if not self._closed:  # the connection may be another request's by now
                self._connection.abort()

    def close(self) -> None:
        """End it. A reader that leaves just before the end, as SDKs do at `[DONE]`, costs no
        connection: what is left is read if it is there already."""
        if self._turn.acquire(blocking=False):
            try:
                self._finish()
            finally:
                self._turn.release()
        else:
            self.abort()  # its reader waits in another thread
        self._give_back()

    def _finish(self) -> None:
        if not self._closed and not self._answer.isclosed():
            self._connection.finish()
            with contextlib.suppress(Refusal):
                while self._piece():
                    pass

    def _give_back(self) -> None:
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self.ended()
        if self._answer.isclosed():
            self._channel.give(self._connection)
        else:
            self._connection.close()


class Courier(Protocol):
    """A sender of requests, which chooses one of several verified appliances."""

    def send(self, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes, *,
             way: Way | None = None) -> Answer:
        """Send a request. Raises Refusal as the function `send` does."""


class Way:
    """A request on its way, for another thread that learns that nobody waits for it any more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held while it is ended: the connection may be another request's just after
        self._left = False
        self._end: Callable[[], None] = lambda: None

    def leave(self) -> None:
        """End it: the appliance sees it, whether or not its answer has begun. Later calls do
        nothing more."""
        with self._lock:
            self._left = True
            self._end()

    def ended_by(self, end: Callable[[], None]) -> None:
        """Name what ends it from now on; at once where it was left already."""
        with self._lock:
            self._end = end
            if self._left:
                end()


def send(channel: Channel, method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes,
         *, seconds: float | None = None, way: Way | None = None) -> Answer:
    """Send a request on a connection that was verified before. Raises Refusal: nothing of it was
    sent if the kind is `appliance_not_verified`. `seconds` bounds the wait for the head of the
    answer, and between two pieces of its body; `way` ends it early."""
    way = way or Way()
    try:
        connection = channel.take()
    except AttestationError as error:
        raise _not_verified(error) from None
    own = [("Host", channel.endpoint.authority)]
    kept = [(name, value) for name, value in _passed(headers) if name.lower() not in ("host", "content-length")]
    if body or method in ("POST", "PUT", "PATCH"):
        own.append(("Content-Length", str(len(body))))
    try:
        pause = ANSWER_SECONDS if seconds is None else seconds
        way.ended_by(connection.abort)
        answer = connection.request(method, path, own + kept, body, seconds=pause)
        connection.go_on(pause)
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise Refusal(502, "connection_error", "connection-lost",
                      f"{channel.endpoint}: no answer: {_word(error)}") from None
    except BaseException:
        connection.close()
        raise
    if answer.status < 200 or 300 <= answer.status < 400:
        connection.close()  # an SDK would follow a redirect by itself, past every check, and take the prompt along
        raise Refusal(502, "connection_error", "redirected", f"{channel.endpoint}: HTTP status {answer.status}: an "
                      "appliance neither redirects nor switches protocols")
    shown = [(name, value) for name, value in _passed(answer.getheaders()) if name.lower() != "content-length"]
    begun = Answer(answer.status, shown, _length(answer, method), answer, connection, channel)
    way.ended_by(begun.abort)
    return begun


def _length(answer: http.client.HTTPResponse, method: str) -> int | None:
    """An answer's `Content-Length`; the library takes that of an answer to HEAD for 0."""
    told = answer.getheader("content-length", "")
    if method != "HEAD":
        return answer.length
    return int(told) if told.isascii() and told.isdigit() and len(told) <= 12 else None


def _word(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
