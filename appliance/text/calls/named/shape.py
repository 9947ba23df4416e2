"""Calls as a head with a name, then a JSON object of arguments, between marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.tape import Steps
from appliance.text.calls.reading.thinking import Story


@dataclass(frozen=True, slots=True)
class NamedCalls:
    """How named calls are set.

    A call is `begin`, a `head`, the arguments and an `end`. A `section` of marks may be around all
    calls. `aside` is a mark that may follow a name, with an id. A grammar writes `between` two
    calls.
    """

    begin: str
    head: Head
    end: str = ""
    section: tuple[str, str] | None = None
    between: str = ""
    aside: Head | None = None

    @property
    def opens(self) -> tuple[str, ...]:
        """The marks by which calls begin."""
        return (self.section[0], self.begin) if self.section else (self.begin,)

    @property
    def _ends(self) -> tuple[str, ...]:
        """The marks after a call, without white space."""
        ends = [*self.end.split("\n"), *(self.section[1:] if self.section else ())]
        return tuple(end for end in ends if end)

    def read(self, story: Story, _tools: Sequence[ToolSpec] | None) -> Steps[None]:
        """The program that reads an answer."""
        while (mark := (yield from story.text(self.opens))) is not None:
            with story.attempt(mark):
                if mark == self.begin or (yield from story.then(self.begin)):
                    yield from self._call(story)
                story.is_text()
            yield from self._close(story)

    def _call(self, story: Story) -> Steps[None]:
        found = yield from self.head.read(story, aside=self.aside)
        if found is None:
            return
        first = yield from story.next()
        if first == "{":
            yield from story.value(story.call(found.name))
        elif not first:
            story.call(found.name)

    def _close(self, story: Story) -> Steps[None]:
        gap = yield from story.space()
        while (yield from story.took_one(self._ends)):
            gap += yield from story.space()
        story.script.say(gap)

    def write(self, grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
        """The expression for calls after the first mark."""
        begin = grammar.text(self.begin) if self.section else ""
        end = grammar.text(self.end)
        calls = [f"{self.head.write(grammar, tool.name)} {grammar.arguments(tool)} {end}" for tool in tools]
        some = grammar.some(calls, grammar.text(self.between + self.begin), many=parallel)
        return f"{begin} {some} {grammar.text(self.section[1]) if self.section else ''}"


def format_of(name: str, recognises: Callable[[str], bool], shape: NamedCalls, markers: tuple[str, ...]) -> CallFormat:
    """The format of a shape."""
    return CallFormat(name, recognises, markers, shape.opens, shape.read, shape.write, searched=shape.opens)
