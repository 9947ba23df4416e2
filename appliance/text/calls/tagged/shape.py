"""Calls as tags: a head with the name, then a tag for each argument, with its value as bare text.

A reader makes JSON of them as they come. Strings are handed on at once; other values when they end,
since only then it is certain whether they are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.grammar import GrammarWriter
from appliance.text.calls.reading.heads import Head
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.script import Sink
from appliance.text.calls.reading.tape import Steps
from appliance.text.calls.reading.thinking import Story
from appliance.text.calls.reading.typed import (
    is_bare,
    json_of,
    parameters_of,
    schema_of,
    string_of,
    tool_of,
    unkept,
    write_value,
)


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """How calls with tags are set.

    A call is a `head`, arguments and a `tail`; an argument is a `key`, the value and `value_end`.
    `opens` are marks around one call, or all of them, and `closes` those after; a shape without
    `opens` begins with its head. A value has a `pad` on both sides, which is no part of it. `kinds`
    are the words for a string and another value, where the key says which one it is. `quote` are
    marks that may be around a string. A grammar writes `before` the first call, `between` two,
    `after` the last, and `gap` after each value.
    """

    head: Head
    tail: str
    key: Head
    value_end: str
    opens: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    pad: str = ""
    kinds: tuple[str, str] | None = None
    quote: tuple[str, str] | None = None
    before: str = ""
    between: str = ""
    after: str = ""
    gap: str = ""

    @property
    def searched(self) -> tuple[str, ...]:
        """The words by which calls begin."""
        return (*self.opens, *([] if self.head.start.startswith("{") else [self.head.start]))

    def read(self, story: Story, tools: Sequence[ToolSpec] | None) -> Steps[None]:
        """The program that reads an answer."""
        while (mark := (yield from story.text(self.searched))) is not None:
            begun = mark == self.head.start
            with story.attempt(mark):
                found = yield from self.head.read(story, begun=begun)
                if found is not None and (yield from self._goes_on(story)):
                    yield from self._arguments(story, story.call(found.name), tool_of(tools, found.name))
                story.is_text()
            gap = yield from story.space()
            while (yield from story.took_one(self.closes)):
                gap += yield from story.space()
            story.script.say(gap)

    def write(self, grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
        """The expression for calls after the first mark."""
        calls = [self._write(grammar, tool) for tool in tools]
        some = grammar.some(calls, grammar.text(self.between), many=parallel)
        return f"{grammar.text(self.before)} {some} {grammar.text(self.after)}"

    def _goes_on(self, story: Story) -> Steps[bool]:
        """Whether an argument or the tail comes next, or the answer is cut here."""
        if not (yield from story.next()):
            return True
        return (yield from story.starts(self.key.start)) or (yield from story.starts(self.tail))

    def _arguments(self, story: Story, sink: Sink, tool: ToolSpec | None) -> Steps[None]:
        """Hand on the arguments as JSON, up to the tail."""
        before = "{"
        while (yield from story.then(self.key.start)):
            found = yield from self.key.read(story, begun=True)
            if found is None:
                return
            sink(f"{before}{string_of(found.name)}: ")
            before = ", "
            schema = schema_of(tool, found.name)
            if self.kinds is not None:
                schema = {"type": "string"} if found.type == self.kinds[0] else True
            if not (yield from self._value(story, sink, schema, strict=tool is not None and tool.strict)):
                return
        if (yield from story.took(self.tail)):
            sink("{}" if before == "{" else "}")

    def _value(self, story: Story, sink: Sink, schema: object, *, strict: bool) -> Steps[bool]:
        """Hand on a value as JSON; False if it is cut."""
        string: Sink = lambda text: sink(string_of(text)[1:-1])  # noqa: E731
        if self.quote is not None and (yield from story.took(self.quote[0])):
            sink('"')
            complete = (yield from story.upto((self.quote[1],), string)) is not None
            sink('"' if complete else "")
            return complete and (yield from story.then(self.value_end))
        if is_bare(schema, strict=strict):
            sink('"')
            padded = _Padded(self.pad, string)
            complete = yield from self._raw(story, padded)
            if complete:
                padded.end()
                sink('"')
            return complete
        held: list[str] = []
        complete = yield from self._raw(story, held.append)
        text = "".join(held)
        if complete:
            text = text.removeprefix(self.pad).removesuffix(self.pad)
            text = json_of(text, schema if isinstance(schema, dict) else True)
        sink(text)
        return complete

    def _raw(self, story: Story, sink: Sink) -> Steps[bool]:
        """Hand on a value's text. Its end is one only before another argument or the tail."""
        while (yield from story.upto((self.value_end,), sink)) is not None:
            gap = yield from story.space()
            if not (yield from story.peek()) or (yield from story.starts(self.key.start)) or (
                    yield from story.starts(self.tail)):
                return True
            sink(self.value_end + gap)
        return False

    def _write(self, grammar: GrammarWriter, tool: ToolSpec) -> str:
        parts = [self.head.write(grammar, tool.name, begun=not self.opens)]
        for name, required in parameters_of(tool):
            kind = self.kinds[not is_bare(schema_of(tool, name))] if self.kinds else ""
            value = write_value(grammar, tool, name, self.pad + self.value_end + self.gap)
            argument = f"{self.key.write(grammar, name, kind)} {grammar.text(self.pad)} {value}"
            parts.append(argument if required else f"({argument})?")
        return " ".join([*parts, grammar.text(self.tail)])


class _Padded:
    """A sink before another one, without a pad at both ends of the text."""

    def __init__(self, pad: str, sink: Sink) -> None:
        self._pad = pad
        self._sink = sink
        self._begun = not pad
        self._held = ""

    def __call__(self, text: str) -> None:
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix(self._pad)
        text = self._held + text
        keep = len(self._pad) if self._pad and text.endswith(self._pad) else 0
        self._held = text[len(text) - keep:]
        if len(text) > keep:
            self._sink(text[:len(text) - keep])

    def end(self) -> None:
        """The text ends here: what is held back is the pad."""
        self._held = ""


def format_of(name: str, recognises: Callable[[str], bool], shape: TaggedCalls,
              markers: tuple[str, ...] = ()) -> CallFormat:
    """The format of a shape."""
    return CallFormat(name, recognises, markers, shape.opens or (shape.head.start,), shape.read, shape.write,
                      unkept=unkept, searched=shape.searched)
