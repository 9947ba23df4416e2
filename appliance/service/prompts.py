"""A request's prompt as tokens: redacted, put into the template, tokenized, and no more of them than there may be.

What text takes on the way is many times its length. So it goes through in threads, but long ones one at a time: the
plan of the memory has room for one (`boot/budget.py`). So do bodies on their way to a request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from appliance.engine.template import ChatTemplate
from appliance.engine.tokenizer import Tokenizer
from appliance.service.problems import RequestError
from appliance.service.redaction import Rule, redact
from appliance.service.wire import ChatRequest, CompletionRequest

LONG = 8192  # characters; what shorter ones take, threads have room for
T = TypeVar("T")
_TURN = 8  # characters that take as much as a turn of a chat does beside its text


class Prompts:
    """Who makes prompts ready, in which order."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ready(self, length: int, work: Callable[[], T]) -> T:
        """What `work` gives in a thread. A long prompt's turn lasts until it is done, even if nobody waits for it."""
        if length <= LONG:
            return await asyncio.to_thread(work)
        alone = asyncio.ensure_future(self._alone(work))
        alone.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be left to see it
        return await asyncio.shield(alone)

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)


def length(request: ChatRequest | CompletionRequest) -> int:
    """Characters of a request's text, and what its turns are worth of them; or the number of its token ids. A template
    may write what it is given by name in each turn."""
    if isinstance(request, ChatRequest):
        given = sum(len(value) for value in request.variables.values() if isinstance(value, str))
        return sum(len(turn.text) + _TURN + given for turn in request.messages)
    return len(request.prompt if request.text is None else request.text)


def at_least(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> int:
    """Tokens that the prompt has at least, told by its length at once. Of a chat only what users wrote counts, but for
    white space around it: templates leave other things out."""
    if isinstance(request, ChatRequest):
        return sum(tokenizer.at_least(turn.text.strip()) for turn in request.messages if turn.role == "user")
    return len(request.prompt) if request.text is None else tokenizer.at_least(request.text)


def take_turns(request: ChatRequest | CompletionRequest) -> bytes:
    """Take the turns of a chat, and what its template is given by name, out of a request, as JSON: it waits, and lasts
    as long as its answer, and as objects many short ones are sixteen times as much."""
    if not isinstance(request, ChatRequest):
        return b""
    turns = json.dumps(([(turn.role, turn.text, turn.name) for turn in request.messages], request.variables),
                       ensure_ascii=False)
    request.messages.clear()
    request.variables.clear()
    return turns.encode()


def encode(request: ChatRequest | CompletionRequest, turns: bytes, template: ChatTemplate, tokenizer: Tokenizer,
           rules: Sequence[Rule], most: int) -> list[int]:
    """The prompt's tokens, of a chat's `turns` or a completion's prompt. CapacityError, early, for more than `most`;
    RequestError for ids that are none."""
    if isinstance(request, ChatRequest):
        messages, given = json.loads(turns)
        variables = {name: _variable(rules, value) for name, value in given.items()}
        return template.encode([_message(rules, *turn) for turn in messages], tokenizer, variables=variables, most=most)
    text = request.text
    if text is not None:
        return tokenizer.encode(redact(rules, text), add_special=True, most=most)
    if rules:
        raise RequestError("unsupported_parameter", "prompt: token ids are not accepted where prompts are redacted",
                           param="prompt")
    ids = [token for token in request.prompt if isinstance(token, int)]
    if any(token >= tokenizer.vocab_size for token in ids):
        raise RequestError("invalid_value", f"prompt: token ids lie below {tokenizer.vocab_size}", param="prompt")
    return ids


def _variable(rules: Sequence[Rule], value: str | float | None) -> str | float | None:
    """What a template is given by name, redacted: of a number the text that it would be in the prompt."""
    text = str(value)
    redacted = text if value is None or isinstance(value, bool) else redact(rules, text)
    return value if redacted == text else redacted


def _message(rules: Sequence[Rule], role: str, text: str, name: str | None) -> dict[str, str]:
    """A turn as templates take it, redacted."""
    message = {"role": "system" if role == "developer" else role, "content": redact(rules, text)}
    return message if name is None else {**message, "name": redact(rules, name)}
