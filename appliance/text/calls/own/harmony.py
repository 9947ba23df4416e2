"""Harmony, of gpt-oss: messages in channels; a message to `functions.name` is a call.

Source: OpenAI's "Harmony response format" and the model's template. `analysis` is thought, `final`
and `commentary` to nobody are the answer's text; a call that nobody offered is thought, too. The
recipient stands after the role or after the channel. A header that is cut is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.script import Sink, Trimmed
from appliance.text.calls.reading.tape import Steps
from appliance.text.calls.reading.thinking import Story

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_CALL_TO = "functions."
_RECIPIENT = re.compile(r"\bto=([\w.\-/]+)")
_NAME = re.compile(r"\s*(\w+)")
_HEADER = re.compile(r"[\w\s.\-/=]*")
_MOST = 400  # characters of a header
_OPENS = (_START, _CHANNEL)


def _read(story: Story, tools: Sequence[ToolSpec] | None) -> Steps[None]:
    """The program that reads an answer: headers, messages, and text outside of them."""
    with story.attempt(heads=[f"to={_CALL_TO}{tool.name}" for tool in tools or ()]):
        if (yield from story.then("to=")):
            yield from _message(story, "to=", tools)
        story.is_text()
    while (mark := (yield from story.text(_OPENS))) is not None:
        with story.attempt(mark):
            yield from _message(story, mark, tools)


def _message(story: Story, mark: str, tools: Sequence[ToolSpec] | None) -> Steps[None]:
    """One message, whose header began with `mark`: as far as its end, or the next header."""
    header = [mark]
    while not (yield from story.took(_MESSAGE)):
        part: list[str] = []
        yield from story.while_matches(_HEADER, part.append, most=_MOST)
        for inner in (_CHANNEL, _CONSTRAIN):
            if (yield from story.took(inner)):
                part.append(inner)
        if not any(part):
            if (yield from story.peek()):
                story.is_text()
            return
        header += part
    story.drop()
    story.script.beside()
    end = yield from story.upto((*_ENDS, *_OPENS), _sink(story, "".join(header), tools))
    if end in _OPENS:
        story.back(end)
    story.script.beside()


def _sink(story: Story, header: str, tools: Sequence[ToolSpec] | None) -> Sink:
    """Where the text of a message goes, by its header."""
    recipient = _RECIPIENT.search(header)
    channel = _NAME.match(header.partition(_CHANNEL)[2])
    if recipient and recipient[1].startswith(_CALL_TO) and tools is not None:
        return story.call(recipient[1].removeprefix(_CALL_TO))
    if recipient or (channel and channel[1] == "analysis"):
        return Trimmed(story.script.think)
    return story.script.say


def _thought(grammar: GrammarWriter) -> str:
    return (f"({grammar.text(_CHANNEL + 'analysis' + _MESSAGE)} {grammar.up_to(_ENDS[0])} "
            f"{grammar.text(_START + 'assistant')})?")


def _around(grammar: GrammarWriter, text: str) -> str:
    return f"{_thought(grammar)} {grammar.text(_CHANNEL + 'final' + _MESSAGE)} {text}"


def _write(grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
    """A thought, if there is one, and a call: the model makes one call in an answer."""
    del parallel
    begin, json = grammar.text(f"{_CHANNEL}commentary to={_CALL_TO}"), grammar.text(f" {_CONSTRAIN}json{_MESSAGE}")
    calls = [f"{quoted(tool.name)} {json} {grammar.arguments(tool)}" for tool in tools]
    return f"{_thought(grammar)} {begin} {grammar.some(calls, many=False)}"


FORMAT = CallFormat("harmony", lambda source: _CHANNEL in source and "analysis" in source,
                    (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS), (_CHANNEL,), _read, _write, around=_around)
