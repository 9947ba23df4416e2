"""A request's prompt as tokens: redacted, put into the template, tokenized, and no more of them
than there may be.

Text takes many times its length on the way. So it goes through in threads, but long ones one at a
time: the plan of the memory has room for one (`boot/planning/budget.py`). So do bodies on their way
to a request.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from appliance.engine.text.jinja.values import EXHAUSTED
from appliance.engine.text.template import ChatTemplate
from appliance.engine.text.tokenizer import Tokenizer
from appliance.errors import RefusedMessagesError, TemplateError
from appliance.service.admission.redaction import Rule, redact
from appliance.service.api.dialects import THOUGHTS
from appliance.service.api.problems import RequestError
from appliance.service.api.wire import ChatRequest, CompletionRequest

LONG = 8192  # characters; what shorter ones take, threads have room for
T = TypeVar("T")
_TURN = 8  # characters that take as much as a turn of a chat does beside its text


class AbandonedError(Exception):
    """Nobody waits for the prompt any more."""


class Leaving:
    """Tells the thread that makes a prompt ready when its request has ended."""

    def __init__(self) -> None:
        self._left = threading.Event()

    def __call__(self) -> None:
        """Raise `AbandonedError` if nobody waits any more."""
        if self._left.is_set():
            raise AbandonedError

    def leave(self) -> None:
        """Have the thread end when it next asks."""
        self._left.set()


class Prompts:
    """The makers of prompts, and their order."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ready(self, length: int, work: Callable[[], T]) -> T:
        """The result of `work` in a thread. A long prompt's turn lasts until its thread is done,
        even if nobody waits."""
        if length <= LONG:
            return await asyncio.to_thread(work)
        alone = asyncio.ensure_future(self._alone(work))
        alone.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to see it
        return await asyncio.shield(alone)

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)


def length(request: ChatRequest | CompletionRequest) -> int:
    """Characters of a request's text, and what its turns are worth of them; or the number of its
    token ids. A template may write what it is given by name in each turn."""
    if isinstance(request, ChatRequest):
        given = sum(len(value) for value in request.variables.values() if isinstance(value, str))
        return sum(len(turn.text) + len(turn.reasoning_content or "") + _TURN + given for turn in request.messages)
    return len(request.prompt if request.text is None else request.text)


def at_least(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> int:
    """Tokens that the prompt has at least, told by its length at once. Of a chat only what users
    wrote counts, but for white space around it: templates leave other things out."""
    if isinstance(request, ChatRequest):
        return sum(tokenizer.at_least(turn.text.strip()) for turn in request.messages if turn.role == "user")
    return len(request.prompt) if request.text is None else tokenizer.at_least(request.text)


def take_turns(request: ChatRequest | CompletionRequest) -> bytes:
    """Take the turns of a chat, and what its template is given by name, out of a request, as JSON.
    It waits, and lasts as long as its answer; as objects, many short ones are sixteen times as
    much."""
    if not isinstance(request, ChatRequest):
        return b""
    turns = json.dumps(([(turn.role, turn.text, turn.name, turn.reasoning_content) for turn in request.messages],
                        request.variables), ensure_ascii=False)
    request.messages.clear()
    request.variables.clear()
    return turns.encode()


def drop_text(request: ChatRequest | CompletionRequest) -> None:
    """Take the prompt out of a completion's request, which lasts as long as its answer: its tokens
    are made."""
    if isinstance(request, CompletionRequest):
        vars(request)["prompt"] = ""  # requests are frozen: nobody else may


def encode(request: ChatRequest | CompletionRequest, turns: bytes, template: ChatTemplate | None, tokenizer: Tokenizer,
           rules: Sequence[Rule], most: int, between: Callable[[], None] = lambda: None) -> list[int]:
    """The prompt's tokens, of a chat's `turns` or a completion's prompt. CapacityError, early, for
    more than `most`; RequestError for ids that are none. `between` is called every few milliseconds
    of redaction, and may end it."""
    between()
    if isinstance(request, ChatRequest):
        if template is None:
            raise RequestError("no_chat_template", param="model")
        messages, given = json.loads(turns)
        variables = {name: _variable(rules, value, between) for name, value in given.items()}
        thoughts = next(filter(template.mentions, THOUGHTS), None)
        said = [_message(rules, between, thoughts, *turn) for turn in messages]
        try:
            return template.encode(said, tokenizer, variables=variables, most=most)
        except TemplateError as error:
            if not variables or isinstance(error, RefusedMessagesError) or error.code == EXHAUSTED:
                raise
            raise _unusable(variables) from None
    text = request.text
    if text is not None:
        return tokenizer.encode(redact(rules, text, between), add_special=True, most=most)
    if rules:
        raise RequestError("unsupported_parameter", "prompt: token ids are not accepted where prompts are redacted",
                           param="prompt")
    ids = [token for token in request.prompt if isinstance(token, int)]
    if any(token >= tokenizer.vocab_size for token in ids):
        raise RequestError("invalid_value", f"prompt: token ids lie below {tokenizer.vocab_size}", param="prompt")
    return ids


def _unusable(variables: Mapping[str, object]) -> RequestError:
    """A template that fails on a chat with variables: they may be of a type that it does not
    expect."""
    names = ", ".join(sorted(variables))
    return RequestError("template_refused", "the model's chat template fails on these messages with these values of "
                        f"chat_template_kwargs: {names}; it may need values of another type",
                        param="chat_template_kwargs")


def _variable(rules: Sequence[Rule], value: str | float | None, between: Callable[[], None]) -> str | float | None:
    """The redacted values that a template gets by name: of a number the text that it would be in
    the prompt."""
    text = str(value)
    redacted = text if value is None or isinstance(value, bool) else redact(rules, text, between)
    return value if redacted == text else redacted


def _message(rules: Sequence[Rule], between: Callable[[], None], thoughts: str | None, role: str, text: str,
             name: str | None, reasoning: str | None) -> dict[str, str]:
    """A turn as templates take it, redacted. `thoughts`: the template's name for a model's earlier
    thoughts; None: it reads none."""
    message = {"role": "system" if role == "developer" else role, "content": redact(rules, text, between)}
    if name is not None:
        message["name"] = redact(rules, name, between)
    if reasoning is not None and thoughts is not None:
        message[thoughts] = redact(rules, reasoning, between)
    return message
