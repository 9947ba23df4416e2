"""One request and what may be said about it: the record that the audit log and the metrics are
filled from.

Nothing here holds content. Handlers write down facts as they learn them; the guard reports them
once at the end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from litestar.types import Scope

from appliance.api.problems import RequestError
from appliance.api.shapes import error_event
from appliance.audit.digests import Digests
from appliance.audit.endpoints import INFERENCE
from appliance.audit.log import new_request_id
from appliance.oblivious import AnswerTexts
from appliance.oblivious.contents import Contents
from appliance.service.admission.privacy import Pacer, Timing
from appliance.service.admission.tenants import Caller
from appliance.service.attesting.receipts import ReceiptCase

_URL = re.compile(rb"(https?)://[^/@]+(/.*)?", re.IGNORECASE)


def path_of(target: bytes, scheme: str) -> str | None:
    """The path that a request's target (without its query) names, as routes are found by it:
    without slashes at its end, and one where there were several. None for what is neither a path
    nor a URL of the connection's own scheme (RFC 9112 §3.2).

    An encoded slash stays encoded: it is a part of a name, to whoever reads the target on the way,
    and ours have none.
    """
    if not target.startswith(b"/"):
        found = _URL.fullmatch(target)
        if found is None or found[1].lower() != scheme.encode():
            return None
        target = found[2] or b"/"
    parts = [part for part in target.decode("ascii").split("/") if part]
    return "/" + "/".join(part if "/" in unquote(part) else unquote(part) for part in parts)


@dataclass
class Course:
    """An answer as far as it has come. Counts are rounded, as the caller sees them; times are
    seconds from the request's arrival."""

    streamed: bool | None = None  # what the caller asked for
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int = 0  # of the prompt, that were not read again
    exact: tuple[int, int] = (0, 0)  # tokens of prompt and answer, for the auditor's eyes
    finish: str | None = None
    began: float | None = None  # when the model began with it
    first_token: float | None = None


@dataclass
class LogEntry:
    """The request as the log has it, or will have it."""

    status: int = 0
    code: str | None = None  # set: the request was refused, and why
    param: str | None = None  # the parameter that a refusal names; names that a client made up are left out
    started: bool = False  # the head of a streamed answer may leave: that is recorded
    unflushed: bool = False  # a record was written that may not be on the disk yet
    event: str = ""  # of its own record, once that is written, or cannot be
    duration_us: int = 0  # as recorded


@dataclass
class Departure:
    """How an answer leaves."""

    streaming: bool = False  # events are on their way, and pace themselves
    alike: bool = False  # a refusal leaves as a stream does
    complete: bool = False  # what leaves next is the last of a stream: its end leaves with it
    cut_short: bool = False  # the service ends: nothing is held back any more
    spaces: int | None = None  # that follow the body, as size_padding has it; None: its size is not padded
    failed: Callable[[RequestError], bytes] = error_event  # the last event of a stream that cannot go on
    tail: Callable[[], bytes] = lambda: b""  # what follows a whole answer's body, asked once that is recorded


@dataclass
class Exchange:
    """A request under way. Times are of the monotonic clock."""

    endpoint: str
    timing: Timing
    path: str = ""  # as the client wrote it: it shapes a refusal, and stands nowhere else
    request_id: str = field(default_factory=new_request_id)
    arrived: float = field(default_factory=time.monotonic)
    pacer: Pacer = field(init=False)
    caller: Caller | None = None
    model: str | None = None
    course: Course = field(default_factory=Course)
    entry: LogEntry = field(default_factory=LogEntry)
    departure: Departure = field(default_factory=Departure)
    headers: dict[str, str] = field(default_factory=dict)  # more headers for whatever answer goes out
    closing: list[Callable[[], None]] = field(default_factory=list)  # what must end with the request
    digests: Digests | None = None  # of what was asked and answered; None: the log keeps none
    receipt: ReceiptCase | None = None  # of an answer that is to end with one
    contents: Contents | None = None  # the request's texts, in locked memory
    standing: bool = False  # characters may stand for texts of the answer: the request has none of them
    texts: AnswerTexts | None = None  # the answer's, in locked memory
    forget_text: Callable[[], None] = lambda: None  # called once the request's text is tokens

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.timing, self.arrived)

    @property
    def paced(self) -> bool:
        """Whether the answer's end is held to the grid as a whole."""
        return self.endpoint in INFERENCE and not (self.departure.streaming or self.departure.cut_short)

    @property
    def refused_alike(self) -> bool:
        """Whether the answer is a refusal that leaves as the stream would have left."""
        way = self.departure
        return way.alike and self.entry.code is not None and not (way.streaming or way.cut_short)

    @property
    def known(self) -> Caller:
        """The caller; RequestError where nobody has shown a key."""
        if self.caller is None:
            raise RequestError("invalid_api_key")
        return self.caller

    @property
    def asker(self) -> dict[str, str]:
        """The tenant that asked and the request, as records of changes name them. RequestError as
        `known`."""
        return {"request": self.request_id, "tenant": self.known.name}

    def read(self, body: bytes) -> None:
        """Take note of the request's body."""
        if self.digests is not None:
            self.digests.read(body)

    def note(self, data: bytes) -> bytes:
        """Take note of the next bytes of the answer, which leave after this."""
        if self.digests is not None:
            self.digests.sent(data)
        return data

    def close(self) -> None:
        """Run what must end with the request, last registered first; a second call does nothing."""
        while self.closing:
            self.closing.pop()()

    @classmethod
    def of(cls, scope: Scope) -> Exchange:
        """The exchange of a request."""
        found: Any = scope["state"]["exchange"]
        if not isinstance(found, cls):
            raise TypeError("a request without an exchange")
        return found
