"""Chat templates: messages to the prompt that a model was trained on, by the model's own Jinja
template.

The conventions are Hugging Face's (`apply_chat_template`): `messages`, `tools`,
`add_generation_prompt`, the texts of special tokens, `raise_exception`, `strftime_now`, `tojson`,
loop controls, trimmed blocks.

The writer of a message must not be able to write control tokens: a message with the text
`<|im_end|>` would end its turn and forge the next one. So every string of the messages and tools is
marked as coming from outside, marks follow the characters through the template (`jinja.marks`), and
`encode` reads control tokens only where all characters are the template's own. Files call some of
them "user-defined", which any text may name: those that the template itself uses are control
tokens, too. Any other text gives the same ids as tokenizing the rendered prompt as a whole.
"""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from functools import cached_property
from typing import Any, Literal

from appliance.errors import RefusedMessagesError, TemplateError
from appliance.text.jinja import Template
from appliance.text.jinja.marks import is_marked, own_of, part, spans_of
from appliance.text.jinja.standins import StandIns
from appliance.text.jinja.values import EXHAUSTED, Absent, Budget, TemplateFunction, Value
from appliance.text.messages import CHATML, MessageForm, outside, prepare
from appliance.text.tokenizer import Tokenizer

# The bounds of a rendering. The costliest of 70 templates in use takes 640 steps per message and 8
# characters per character of the input; a hundred thousand steps take about a quarter of a second.
STEPS = 100_000
STEPS_PER_MESSAGE = 2_000
STEPS_PER_CHARACTER = 1
ROOM = 2 << 20  # characters that are made, memory in all
ROOM_PER_CHARACTER = 32
_TIME_FORMAT = re.compile(r"(?:[^%]|%-?[aAbBcdHIjmMpSuUVwWxXyYZzfFT%]){0,64}", re.DOTALL)
_NONE = frozenset(["tools", "documents"])  # what Hugging Face gives as none where a request has none
_OWN = frozenset(["messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "range",
                  "namespace", "dict"])  # names of what a rendering gives itself, beside those of tokens

TEMPLATE_KEY = "tokenizer.chat_template"
TOOLS_KEY = f"{TEMPLATE_KEY}.tool_use"  # of the template for requests that offer tools
NO_TEMPLATE = "no-chat-template"  # the code of the error about a model that has none
NO_TEMPLATE_HINT = ("it continues a text (infer --raw, /v1/completions); for chats give chat_template in the policy, "
                    'or allow chat_template_fallback = "chatml"')
Fallback = Literal["refuse", "chatml"]
Message = Mapping[str, Any]
_PROBE = "a message to find"
_PROBE_TIME = datetime(2024, 1, 1)
_ASKED: Message = {"role": "user", "content": _PROBE}
_PROBE_TOOL = "a_tool_to_find"
_OFFERED: list[Message] = [{"type": "function", "function": {
    "name": _PROBE_TOOL, "description": "d", "parameters": {
        "type": "object", "required": ["x"], "properties": {"x": {"type": "string", "description": "d"}}}}}]
_CALLED: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": f'{{"x": "{_PROBE}"}}'}}]}]


def _turns(calls: int) -> list[Message]:
    """A chat with this many calls at once, and their results; the last call has the text to find.
    """
    made = [{"id": f"call0000{index}", "type": "function", "function": {
        "name": _PROBE_TOOL, "arguments": f'{{"x": "{_PROBE if index + 1 == calls else index}"}}'}}
        for index in range(calls)]
    results = [{"role": "tool", "tool_call_id": call["id"], "name": _PROBE_TOOL, "content": "x"} for call in made]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": made}, *results]


class ChatTemplate:
    """A model's chat template. Threads may share it."""

    def __init__(self, source: str, special: Mapping[str, str], tool_use: ChatTemplate | None = None) -> None:
        """`tool_use`: another one, for requests that offer tools."""
        self.source, self._tool_use = source, tool_use
        self._template = Template(source)
        self._special = dict(special)  # "bos_token" and the like
        self._form = self._best_form()

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], *, override: str | None = None,
                      fallback: Fallback = "refuse") -> ChatTemplate:
        """As `of_model`; a model without a template is refused with TemplateError."""
        found = cls.of_model(metadata, override=override, fallback=fallback)
        if found is None:
            raise TemplateError("the model has no chat template (metadata key 'tokenizer.chat_template')",
                                code=NO_TEMPLATE, hint=NO_TEMPLATE_HINT)
        return found

    @classmethod
    def of_model(cls, metadata: Mapping[str, Any], *, override: str | None = None,
                 fallback: Fallback = "refuse") -> ChatTemplate | None:
        """The template of a model, or `override` instead. A model without one, or with one that is
        blank, gets ChatML if `fallback` says so, else None: it can continue a text, and takes no
        chats. A file's own template goes with the file's other one for requests with tools."""
        if not has_template(metadata, override=override, fallback=fallback):
            return None
        source = override if override is not None else metadata.get(TEMPLATE_KEY, "")
        with_tools = metadata.get(TOOLS_KEY, "") if override is None else ""
        for key, value in ((TEMPLATE_KEY, source), (TOOLS_KEY, with_tools)):
            if not isinstance(value, str):
                raise TemplateError(f"metadata key {key!r} is not a string")
        special, tool_use = _special_tokens(metadata), None
        if source.strip() and with_tools.strip():
            tool_use = cls(with_tools, special)
            tool_use.check(_OFFERED)
        template = cls(source if source.strip() else CHATML, special, tool_use)
        template.check()
        return template

    def of_request(self, *, tools: bool) -> ChatTemplate:
        """The template for a request that offers tools, or none."""
        return self._tool_use if tools and self._tool_use is not None else self

    def check(self, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        """TemplateError for a template that fails on the plainest chats, with and without a system
        message: it would on all others. That it refuses them in words of its own is no failure."""
        failures = []
        for messages in ([_ASKED], [{"role": "system", "content": _PROBE}, _ASKED]):
            try:
                self.render(messages, tools=tools, now=_PROBE_TIME)
            except RefusedMessagesError:
                return
            except TemplateError as error:
                failures.append(error)
            else:
                return
        named = "template" if tools is None else "template for requests with tools"
        raise TemplateError(f"no chat can be put into the model's {named}: {failures[0].summary}",
                            hint="give a chat_template in the policy")

    def takes(self, name: str) -> bool:
        """Whether a variable of this name may be given: the template reads it and does not set it
        itself, and it is not one of our own. An attribute, a loop variable or a word of the
        template's text is not such a variable."""
        return name in self._template.free and name not in _OWN and not name.endswith("_token")

    def mentions(self, name: str) -> bool:
        """Whether the template has a word as an attribute of something, or in quotes as a key."""
        behind = (rest[:1] for rest in self.source.split(f".{name}")[1:])
        return f"'{name}'" in self.source or f'"{name}"' in self.source or any(
            not (each.isalnum() or each == "_") for each in behind)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the template tells the model which tools a request offers."""
        return self._finds([_ASKED], _PROBE_TOOL)

    @cached_property
    def needs_descriptions(self) -> bool:
        """Whether the template fails on a function without a description."""
        bare = [{"type": "function", "function": {
            name: value for name, value in _OFFERED[0]["function"].items() if name != "description"}}]
        return self.shows_tools and not self._finds([_ASKED], _PROBE_TOOL, bare)

    @cached_property
    def shows_calls(self) -> bool:
        """Whether the template writes the calls of an earlier turn."""
        return self._finds(_turns(1), _PROBE)

    @cached_property
    def shows_several_calls(self) -> bool:
        """Whether the template writes all calls of an earlier turn that has several."""
        return self._finds(_turns(2), _PROBE)

    def _finds(self, messages: Sequence[Message], text: str, tools: Sequence[Message] = _OFFERED) -> bool:
        try:
            return text in self.render(messages, tools=tools, now=_PROBE_TIME)
        except TemplateError:
            return False

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
               tools: Sequence[Mapping[str, Any]] | None = None, variables: Mapping[str, Any] | None = None,
               now: datetime | None = None, stand_ins: StandIns | None = None) -> str:
        """The prompt for `messages`, each with "role" and "content" (a string, or text parts).
        `variables` are for the template (such as enable_thinking); `now` is the time that it may
        ask for. Names that the request does not have are none or undefined, see `_defaults`.
        TemplateError says what in the messages or the template does not work. TextNeeded: the
        template reads a text in whose place is a stand-in."""
        given = {**outside({name: value for name, value in (variables or {}).items() if name not in _OWN}),
                 "messages": prepare(messages, self._form)}
        if tools is not None:
            given["tools"] = outside(tools)
        own = {"raise_exception": TemplateFunction("raise_exception", _refuse),
               "strftime_now": TemplateFunction("strftime_now", lambda pattern: _time(pattern, now)),
               **self._special, "add_generation_prompt": add_generation_prompt}
        size, failure = _size(given), None
        for defaults in self._defaults(given.keys() | own.keys()):
            budget = Budget(STEPS + STEPS_PER_MESSAGE * len(messages) + STEPS_PER_CHARACTER * size,
                            ROOM + ROOM_PER_CHARACTER * size, stand_ins)
            try:
                return self._template.render({**defaults, **given, **own}, budget)
            except RefusedMessagesError:
                raise
            except TemplateError as error:
                if error.code == EXHAUSTED:
                    raise
                failure = failure or error
        raise failure or TemplateError("the chat template cannot be rendered")

    def render_open(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None,
                    variables: Mapping[str, Any] | None = None, now: datetime | None = None,
                    stand_ins: StandIns | None = None) -> str:
        """The prompt for `messages`, the last of which is to go on: it ends with what that one says
        so far. TemplateError as `render` has it, RefusedMessagesError for a template that does not
        write it as it is.

        A mark at the message's end is looked for in what is rendered. The space after it tells
        whether the template leaves white space at the end of a message out: then the prompt ends
        without it, too.
        """
        *before, last = messages
        mark = f"END{secrets.token_hex(16)}"
        text = self.render([*before, {**last, "content": f"{last.get('content') or ''}{mark} "}],
                           add_generation_prompt=False, tools=tools, variables=variables, now=now,
                           stand_ins=stand_ins)
        end = text.rfind(mark)
        if end < 0:
            raise RefusedMessagesError("the chat template does not write the last message as it is, so it cannot go on")
        if not text.startswith(f"{mark} ", end):
            end = len(text[:end].rstrip())
        return part(text, 0, end)

    def _defaults(self, given: Set[str]) -> Iterator[dict[str, Value]]:
        """The stand-ins for names that are not `given`, most usual first; the next is for a
        template that fails.

        1. `tools` and `documents` are none: what `apply_chat_template` of Hugging Face gives.
        2. They are undefined, for a template that goes through them or asks for their length
           without a test.
        3. Every free name is undefined, and also empty text, for a template that joins one to other
           text.
        """
        yield dict.fromkeys(_NONE)
        yield {}
        yield {name: Absent(name) for name in self._template.free - given if name not in _OWN - _NONE}

    def encode(self, messages: Sequence[Message], tokenizer: Tokenizer, *, add_generation_prompt: bool = True,
               tools: Sequence[Mapping[str, Any]] | None = None, variables: Mapping[str, Any] | None = None,
               now: datetime | None = None, most: int = sys.maxsize) -> list[int]:
        """Token ids of the prompt; the text of messages never gives a control token. The
        beginning-of-text token is there once if the tokenizer wants it, whether or not the template
        writes it. CapacityError, early, for more than `most`."""
        text = self.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables,
                           now=now)
        return self.tokens(text, tokenizer, most=most)

    def tokens(self, text: str, tokenizer: Tokenizer, *, most: int = sys.maxsize, counted: bool = False,
               stand_ins: StandIns | None = None) -> list[int]:
        """Token ids of a rendered prompt, or their count alone, see `encode`. TextNeeded for a
        template with a stand-in's character."""
        own = own_of(text)
        if stand_ins is not None:
            stand_ins.need(own)
        ids = tokenizer.encode(text, parse_special=True, untrusted=spans_of(text), own=self.source + "\0" + own,
                               most=most, counted=counted, stand_ins=stand_ins)
        if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]:
            ids.insert(0, tokenizer.bos)
        return ids

    def _best_form(self) -> MessageForm:
        """The first form in which the template loses neither a message nor the arguments of a tool
        call."""
        parts = not self._shows([_ASKED], MessageForm()) and self._shows([_ASKED], MessageForm(parts=True))
        forms = [MessageForm(parts, text, none) for none in (False, True) for text in (False, True)]
        return next((form for form in forms if self._shows(_CALLED, form)), forms[0])

    def _shows(self, messages: Sequence[Message], form: MessageForm) -> bool:
        self._form = form
        try:
            return _PROBE in self.render(messages, now=_PROBE_TIME)
        except TemplateError:
            return False


def has_template(metadata: Mapping[str, Any], *, override: str | None, fallback: Fallback) -> bool:
    """Whether a model can be asked chats, however good its template is."""
    source = override if override is not None else metadata.get(TEMPLATE_KEY, "")
    return fallback == "chatml" or not isinstance(source, str) or bool(source.strip())


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of special tokens by the names that templates use. Where the file names none, the
    usual ids of SentencePiece hold for its models; a model without bos or eos has an empty text."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    found = {"bos_token": "", "eos_token": ""}
    if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes):
        return found
    usual = {"bos": 1, "eos": 2, "unknown": 0} if metadata.get("tokenizer.ggml.model") == "llama" else {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token = metadata.get(f"tokenizer.ggml.{key}_token_id", usual.get(key))
        if isinstance(token, int) and 0 <= token < len(tokens):
            text = tokens[token]
            found[name] = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return found


def _size(value: Value) -> int:
    """The characters and items in a value from outside."""
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, list):
        return 1 + sum(map(_size, value))
    if isinstance(value, dict):
        return 1 + sum(_size(key) + _size(item) for key, item in value.items())
    return 1


def _refuse(message: Value = "") -> Value:
    """`raise_exception`: the template's own words are shown, those of a message are not."""
    if not isinstance(message, str) or is_marked(message):
        raise RefusedMessagesError("the chat template refuses these messages")
    raise RefusedMessagesError(f"the chat template refuses these messages: {message[:200]}")


def _time(pattern: Value, now: datetime | None) -> str:
    if not isinstance(pattern, str) or is_marked(pattern) or _TIME_FORMAT.fullmatch(pattern) is None:
        raise TemplateError("the chat template asks for a time in a format that is not known here")
    return (now or datetime.now()).strftime(pattern)
