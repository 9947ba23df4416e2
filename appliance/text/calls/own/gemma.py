"""Gemma 4 and FunctionGemma: `call:name{key:value}`, with marks around strings.

Source: the models' templates, and Google's "Function calling with Gemma". Keys have no quotes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.text.calls.own.notation import Notation, unkept
from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.tape import Steps
from appliance.text.calls.reading.thinking import Story

_HEAD = Head("call:{name}{")


@dataclass(frozen=True, slots=True)
class _Shape:
    """The marks around a call, and the one on both sides of a string."""

    open: str
    close: str
    quote: str

    @property
    def _notation(self) -> Notation:
        return Notation((self.quote,))

    def read(self, story: Story, _tools: Sequence[ToolSpec] | None) -> Steps[None]:
        """The program that reads an answer."""
        while (mark := (yield from story.text((self.open,)))) is not None:
            with story.attempt(mark):
                found = yield from _HEAD.read(story)
                if found is not None:
                    yield from self._notation.read(story, story.call(found.name), "}", ":")
                story.is_text()
            gap = yield from story.space()
            yield from story.took(self.close)
            story.script.say(gap)

    def write(self, grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
        """The expression for calls after the first mark."""
        calls = [f"{quoted('call:' + tool.name + '{')} {self._notation.object(grammar, tool, ':')} "
                 f"{grammar.text('}' + self.close)}" for tool in tools]
        return grammar.some(calls, grammar.text(self.open), many=parallel)


def _format(name: str, shape: _Shape) -> CallFormat:
    return CallFormat(name, lambda source: shape.open in source, (shape.open, shape.close, shape.quote), (shape.open,),
                      shape.read, shape.write, unkept=unkept, searched=(shape.open,))


FOUR = _format("gemma-4", _Shape("<|tool_call>", "<tool_call|>", '<|"|>'))
FUNCTION = _format("function-gemma", _Shape("<start_function_call>", "<end_function_call>", "<escape>"))
