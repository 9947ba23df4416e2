"""One endpoint for text: the way from its wire types to the one domain request, and back.

    body      the type of its request; the API's own document is made from it
    read      a pure function from a body to a `Translation`: the domain request, and how its answer is written
    answer    the type of its answer, `events` those of a stream's events

Admission, redaction, pacing and the audit log lie between, and know only the domain request. A
refusal from there names the domain's parameter; `Names` gives the name that the client wrote.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from appliance.api import document, findings
from appliance.api.answers import AnswerFacts
from appliance.api.problems import RequestError
from appliance.api.shapes import AnswerShape
from appliance.api.wire import ChatRequest, CompletionRequest, remove, request_of
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.parameter import Extra

W = TypeVar("W", bound=BaseModel)


@dataclass(frozen=True)
class Encoding:
    """A prompt that was encoded, for endpoints without an answer of the model."""

    tokens: Sequence[int]
    rounding: int  # counts are reported in multiples of it
    context_length: int
    decode: Callable[[Sequence[int]], str]
    piece: Callable[[int], bytes]  # of one token
    control: Callable[[str], int | None]  # the control token whose text this is
    around: tuple[int, int] = (0, 0)  # tokens before and after a prompt's text that the model wants there

    @property
    def own(self) -> Sequence[int]:
        """The tokens of a prompt's text."""
        before, after = self.around
        return self.tokens[before:len(self.tokens) - after]


CountedAnswer = Callable[[Encoding], BaseModel]
"""The answer of an endpoint without an answer of the model."""


class Names:
    """The parameters of the domain request, by the names that a client wrote."""

    def __init__(self, patterns: Iterable[tuple[str, str]] = (), places: Sequence[str] = (),
                 tools: Sequence[str] = (), *, flat: bool = False) -> None:
        """`patterns`: of a path's beginning, and what stands there instead; the first that matches
        counts. `places`, `tools`: the path of each message, and of each tool. `flat`: a tool is its
        function."""
        self._patterns = [(re.compile(rf"{pattern}(?![A-Za-z_])"), name) for pattern, name in patterns]
        self._places, self._tools, self._flat = tuple(places), tuple(tools), flat

    def of(self, path: str) -> str:
        """Return the client's path for one of the domain request."""
        head, _, rest = path.partition(".")
        number, _, rest = rest.partition(".")
        if head == "messages" and number.isdecimal() and int(number) < len(self._places):
            place = self._places[int(number)]
            return f"{place}.{rest}" if rest else place
        if head == "tools" and number.isdecimal() and int(number) < len(self._tools):
            rest = rest.removeprefix("function").lstrip(".") if self._flat else rest
            path = ".".join(filter(None, [self._tools[int(number)], rest]))
        for pattern, name in self._patterns:
            if (match := pattern.match(path)) is not None:
                return match.expand(name) + path[match.end():]
        return path

    @contextlib.contextmanager
    def renaming(self, ignored: Ignored | None = None) -> Iterator[None]:
        """Refusals from within get the client's names; so does what is noted there."""
        before = 0 if ignored is None else len(ignored.paths)
        try:
            yield
        except RequestError as error:
            raise self.rename(error) from None
        if ignored is not None:
            ignored.paths[before:] = [tuple(self.of(".".join(map(str, path))).split("."))
                                      for path in ignored.paths[before:]]

    def rename(self, error: RequestError) -> RequestError:
        """Return a refusal by the client's names."""
        if error.param is None or (param := self.of(error.param)) == error.param:
            return error
        words = error.summary
        if words.startswith(f"{error.param}:"):
            words = param + words.removeprefix(error.param)
        return RequestError(error.code, words, param=param, retry_after=error.retry_after)


@dataclass(frozen=True)
class Translation:
    """A request in the domain's words, and the way back to its client's."""

    request: ChatRequest | CompletionRequest
    shape: Callable[[AnswerFacts], AnswerShape] | None = None  # of its answer
    usage: bool = True  # whether a stream's end has the counts
    names: Names = field(default_factory=Names)
    counted: CountedAnswer | None = None  # its answer where no model gives one


@dataclass(frozen=True)
class Adapter:
    """A row of the table of endpoints for text."""

    path: str
    about: str  # one sentence, for the API's document
    body: type[BaseModel]
    read: Callable[[bytes, Sequence[str], Ignored], Translation]  # given the fields that the policy drops; RequestError
    answer: type[BaseModel]
    events: tuple[type[BaseModel], ...] = ()
    rows: Mapping[str, Extra] = field(default_factory=dict)  # parameters that `body` does not declare
    tells_tokens: bool = False  # which a policy may forbid
    refusal: Callable[[RequestError, str], bytes] = lambda error, _request_id: error.body()
    problem: type[BaseModel] | None = None  # the type of a refusal; None: OpenAI's


def read_as(body: bytes, kind: type[W], rows: Mapping[str, Extra], drop: Sequence[str], ignored: Ignored, *,
            more: bool = False) -> W:
    """Return a body as a wire type, without fields that the policy drops, and without what has no
    effect by `rows`. RequestError; `more` as in `check`."""
    fields = document.read(body)
    remove(fields, drop)
    return findings.check(fields, kind, rows, ignored, more=more)


def as_chat(request: BaseModel, more: Mapping[str, Any], names: Names, drop: Sequence[str],
            ignored: Ignored) -> ChatRequest:
    """Return another API's request as a chat. Parameters with one name in both are the same;
    `more` has the others. RequestError, by the names of that API."""
    findings.require(ignored)
    chat = {name: getattr(request, name) for name in ChatRequest.model_fields if name in type(request).model_fields}
    with names.renaming():
        return request_of({name: value for name, value in {**chat, **more}.items() if value is not None}, ChatRequest,
                          drop=drop, ignored=Ignored())
