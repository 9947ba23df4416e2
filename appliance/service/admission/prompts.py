"""A request's prompt as tokens: redacted, put into the template, tokenized, and no more of them
than there may be.

Text takes many times its length on the way. So it goes through in threads, but long ones one at a
time: the plan of the memory has room for one (`boot/planning/budget.py`). So do bodies on their way
to a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from appliance.api import findings, structure
from appliance.api.problems import RequestError, too_long
from appliance.api.wire import ChatRequest, CompletionRequest
from appliance.api.wishes import features
from appliance.detectors.looks import Looks
from appliance.errors import CapacityError, RefusedMessagesError, TemplateError
from appliance.oblivious.contents import joined
from appliance.service.admission import chats
from appliance.service.admission.redaction import Rule, redact
from appliance.text.calls import readers
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.jinja.standins import StandIns, TextNeeded, holds
from appliance.text.jinja.values import EXHAUSTED
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import Tokenizer

LONG = 8192  # characters; what shorter ones take, threads have room for
T = TypeVar("T")
COUNTED = 8  # times the tokens that are allowed: up to there a prompt's are counted for its refusal
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
    """Characters of a request's text, and what its turns and functions are worth of them; or the
    number of its token ids. A template may write what it is given by name in each turn."""
    if isinstance(request, ChatRequest):
        given = sum(len(value) for value in request.variables.values() if isinstance(value, str))
        offered = sum(len(function.description or "") + len(function.parameters or "") + _TURN
                      for function in request.offer.functions)
        own = offered + len(request.negative_prompt or "")
        return own + sum(len(turn.text) + len(turn.reasoning_content or "") + len(turn.calls) + _TURN + given
                             for turn in request.messages)
    return sum(map(len, request.prompts)) + len(request.suffix or "") + len(request.negative_prompt or "")


def at_least(request: ChatRequest | CompletionRequest, tokenizer: Tokenizer) -> int:
    """Tokens that a prompt has at least, the longest of several, told by its length at once. Of a
    chat only what users wrote counts, but for white space around it: templates leave other things
    out."""
    if isinstance(request, ChatRequest):
        return sum(tokenizer.at_least(turn.text.strip()) for turn in request.messages if turn.role == "user")
    return max(tokenizer.at_least(each) if isinstance(each, str) else len(each) for each in request.prompts)


def take_turns(request: ChatRequest | CompletionRequest, more: Mapping[str, object] = MappingProxyType({})) -> bytes:
    """Take the turns of a chat, the functions that it offers, and what its template is given by
    name, out of a request, as JSON. It waits, and lasts as long as its answer; as objects, many
    short ones are sixteen times as much. `more`: variables of ours for the template."""
    if not isinstance(request, ChatRequest):
        return b""
    turns = json.dumps([(turn.role, turn.text, turn.name, turn.reasoning_content, turn.calls, turn.tool_call_id)
                        for turn in request.messages], ensure_ascii=False)
    functions = ", ".join(function.as_json() for function in request.offer.functions)
    variables = json.dumps({**more, **request.variables}, ensure_ascii=False)
    for taken in (request.messages, request.tools, request.functions, request.variables):
        if taken is not None:
            taken.clear()
    return f"[{turns}, [{functions}], {variables}]".encode()


def drop_text(request: ChatRequest | CompletionRequest) -> None:
    """Take out of a request what lasts as long as its answer, and is used no more: a completion's
    prompt, whose tokens are made, and the answer's structure."""
    if isinstance(request, CompletionRequest):
        vars(request).update(prompt="", suffix=None)  # requests are frozen: nobody else may
    vars(request)["negative_prompt"] = None
    for name in structure.NAMES:
        vars(request)[name] = None


@dataclass(frozen=True)
class PromptTokens:
    """A prompt's tokens, and what its text says about the answer."""

    tokens: list[int]
    tools: tuple[ToolSpec, ...] = ()  # that the answer may call, redacted
    opened: bool = False  # whether it ends within a thought
    negative: Sequence[int] = ()  # the negative prompt's tokens, where the sampling is guided

    @property
    def count(self) -> int:
        """Tokens of both."""
        return len(self.tokens) + len(self.negative)


def encode(request: ChatRequest | CompletionRequest, given: bytes, template: ChatTemplate | None,
           tokenizer: Tokenizer, rules: Sequence[Rule], most: int,
           between: Callable[[], None] = lambda: None, path: Callable[[int], str] = str, *,
           guided: bool = False, exact: bool = False, stand_ins: StandIns | None = None,
           looks: Looks | None = None) -> list[PromptTokens]:
    """The prompt of what `take_turns` took of a chat, or a completion's prompts. RequestError,
    early, for one of more than `most` tokens, with their number where counts are told as they are
    (`exact`). RequestError also for ids that are none, where redaction would change a function, and
    for a suffix or a message that the model cannot go on with. `between` is called every few
    milliseconds of redaction, and may end it. `path`: where the parameters of a function stand in
    the request. `guided`: with a negative prompt, that of the request or the default. `stand_ins`:
    of the request's texts; `looks`: at what is redacted of them."""
    between()
    make = functools.partial(_encode, request, given, template, tokenizer, most, path, guided=guided, exact=exact,
                             redacted=bool(rules))
    if stand_ins is not None:
        with contextlib.suppress(TextNeeded):
            try:
                return make(clean=functools.partial(_kept, stand_ins, rules, looks, between), stand_ins=stand_ins)
            finally:  # also of a refusal
                stand_ins.settle()
    return make(clean=lambda text: redact(rules, text if stand_ins is None else stand_ins.lift(text), between))


def _kept(stand_ins: StandIns, rules: Sequence[Rule], looks: Looks | None, between: Callable[[], None],
          text: str) -> str:
    """A text, redacted: the same one, with its stand-ins, where no rule may change it. TextNeeded
    where a redacted text has characters that would stand for others."""
    if not rules or looks is None or not holds(text):
        return redact(rules, text, between)
    with contextlib.closing(joined(parts := stand_ins.parts_of(text))) as memory:
        found = looks.finds(memory.view[:sum(map(len, parts))], between)
    if not found:
        return text
    changed = redact(rules, stand_ins.lift(text), between)
    stand_ins.need(changed)
    return changed


def _encode(request: ChatRequest | CompletionRequest, given: bytes, template: ChatTemplate | None,
            tokenizer: Tokenizer, most: int, path: Callable[[int], str], *, clean: chats.Clean, guided: bool,
            exact: bool, redacted: bool, stand_ins: StandIns | None = None) -> list[PromptTokens]:
    """As `encode` says. TextNeeded where a text is read in whose place is a stand-in."""
    if isinstance(request, ChatRequest):
        if template is None:
            raise RequestError("no_chat_template", param="model")
        turns, functions, named = json.loads(given)
        variables = {name: _variable(clean, value) for name, value in named.items()}
        tools = chats.tools_of(functions, clean, path)
        template = template.of_request(tools=bool(tools))
        told, others = [chats.Turn(*turn) for turn in turns], list[int]()
        if guided:  # one after the other: both texts at once would take twice the memory
            other = chats.chat_of(template, chats.negative(told, request.negative_prompt), tools, clean)
            text = _render(template, other, variables, request, stand_ins)
            others = _within(functools.partial(template.tokens, text, tokenizer, stand_ins=stand_ins), most,
                             exact=exact)
        rendered = _render(template, chats.chat_of(template, told, tools, clean), variables, request, stand_ins)
        own = _within(functools.partial(template.tokens, rendered, tokenizer, stand_ins=stand_ins), most, exact=exact)
        return [PromptTokens(own, tools, readers.opened(template, rendered), others)]

    def tokens(given: str | Sequence[int], name: str, *, special: bool = True) -> list[int]:
        if isinstance(given, str):
            return _within(functools.partial(tokenizer.encode, clean(given), add_special=special, stand_ins=stand_ins),
                           most, exact=exact)
        if redacted:
            raise findings.refusal_of(features.exclusion(features.TOKEN_IDS, features.REDACTED_PROMPTS), name=name)
        return _ids(given, name, tokenizer)

    if request.suffix is None:
        made = [tokens(each, "prompt") for each in request.prompts]
    else:
        suffix = _within(functools.partial(tokenizer.encode, clean(request.suffix), stand_ins=stand_ins), most,
                         exact=exact)
        made = [_filling(tokenizer, tokens(each, "prompt", special=False), suffix, most) for each in request.prompts]
    if not guided:
        return [PromptTokens(each) for each in made]
    negative = tokens(request.negative_prompt or "", "negative_prompt")
    return [PromptTokens(each, negative=negative or each[-1:])  # of a model whose texts have no beginning
            for each in made]


def _within(make: Callable[..., list[int]], most: int, *, exact: bool) -> list[int]:
    """The ids that `make` makes. RequestError for more than `most`, with their number where counts
    are told as they are (`exact`); a text of many times as much is not counted."""
    try:
        return make(most=most)
    except CapacityError:
        count = None
        with contextlib.suppress(CapacityError):
            count = len(make(most=COUNTED * most, counted=True)) if exact else None
        raise too_long(most, count) from None


def _ids(given: Sequence[int], name: str, tokenizer: Tokenizer) -> list[int]:
    """A prompt that came as token ids. RequestError where they are none."""
    if any(token >= tokenizer.vocab_size for token in given):
        raise RequestError("invalid_value", f"{name}: token ids lie below {tokenizer.vocab_size}", param=name)
    return list(given)


def _filling(tokenizer: Tokenizer, before: list[int], after: list[int], most: int) -> list[int]:
    """A prompt for what stands between two texts, by the model's own tokens for that."""
    ids = tokenizer.around(before, after, most=most)
    if ids is None:
        raise RequestError("unsupported_parameter", "suffix: the model has no tokens for what stands between two texts",
                           param="suffix")
    return ids


def _render(template: ChatTemplate, chat: chats.Chat, variables: Mapping[str, object], request: ChatRequest,
            stand_ins: StandIns | None) -> str:
    """The text of a chat. Where a template takes no system's message, which says what tools there
    are, a user says it."""
    def render(messages: Sequence[chats.Message], tools: Sequence[chats.Message] | None) -> str:
        if request.continue_final_message:
            return template.render_open(messages, tools=tools, variables=variables, stand_ins=stand_ins)
        return template.render(messages, add_generation_prompt=request.begins, tools=tools, variables=variables,
                               stand_ins=stand_ins)

    try:
        return render(chat.messages, chat.tools)
    except RefusedMessagesError:
        other = chats.systems_first(chat.messages) or chats.thoughts_with_text(chat.messages)
        if other is not None:
            return _render(template, chat._replace(messages=other), variables, request, stand_ins)
        if chat.offered is None or chat.messages[0]["content"] != chat.offered:
            raise
        return render(chats.without_system(chat), None)
    except TemplateError as error:
        if not variables or error.code == EXHAUSTED:
            raise
        raise _unusable(variables) from None


def _unusable(variables: Mapping[str, object]) -> RequestError:
    """A template that fails on a chat with variables: they may be of a type that it does not
    expect."""
    names = ", ".join(sorted(variables))
    return RequestError("template_refused", "the model's chat template fails on these messages with these values of "
                        f"chat_template_kwargs: {names}; it may need values of another type",
                        param="chat_template_kwargs")


def _variable(clean: chats.Clean, value: str | float | None) -> str | float | None:
    """The redacted values that a template gets by name: of a number the text that it would be in
    the prompt."""
    text = str(value)
    redacted = text if value is None or isinstance(value, bool) else clean(text)
    return value if redacted == text else redacted
