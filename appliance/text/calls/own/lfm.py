"""LFM2: calls as Python, `<|tool_call_start|>[name(key='value')]<|tool_call_end|>`.

Source: Liquid AI's "Tool use" page, and the models' templates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from appliance.text.calls.own.notation import Notation, unkept
from appliance.text.calls.reading.format import CallFormat, Spelling
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.tape import Steps
from appliance.text.calls.reading.thinking import Story
from appliance.text.jinja.marks import concatenate, mark

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_HEAD = Head("{name}(")
_PYTHON = Notation(("'", '"'), escapes=True, words={"True": "true", "False": "false", "None": "null"}, quoted_keys=True)


def _read(story: Story, _tools: Sequence[ToolSpec] | None) -> Steps[None]:
    """The program that reads an answer."""
    while (mark := (yield from story.text((_OPEN,)))) is not None:
        with story.attempt(mark):
            yield from story.then("[")
            yield from _call(story)
            story.is_text()
        gap = yield from story.space()
        while (yield from story.took(",")):
            with story.attempt(","):
                yield from _call(story)
                story.is_text()
            gap += yield from story.space()
        yield from story.took("]")
        gap += yield from story.space()
        yield from story.took(_CLOSE)
        story.script.say(gap)


def _call(story: Story) -> Steps[None]:
    found = yield from _HEAD.read(story)
    if found is not None:
        yield from _PYTHON.read(story, story.call(found.name), ")", "=")


def _write(grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
    calls = [f"{quoted(tool.name + '(')} {_PYTHON.object(grammar, tool, '=')} \")\"" for tool in tools]
    return f"\"[\" {grammar.some(calls, grammar.text(', '), many=parallel)} {grammar.text(']' + _CLOSE)}"


def _spell(calls: Sequence[Spelling]) -> str:
    parts = [_OPEN + "["]
    for index, (name, arguments) in enumerate(calls):
        parts += [", " if index else "", mark(f"{name}({_spelled(arguments)})")]
    return concatenate([*parts, "]" + _CLOSE])


def _spelled(arguments: str) -> str:
    """A JSON object as arguments of Python; other text as it is."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return ", ".join(f"{key}={value!r}" for key, value in values.items()) if isinstance(values, dict) else arguments


FORMAT = CallFormat("lfm2", lambda source: _OPEN in source or "List of tools: " in source,
                    (_OPEN, _CLOSE), (_OPEN,), _read, _write, spell=_spell, unkept=unkept, searched=(_OPEN,))
