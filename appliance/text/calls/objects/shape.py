"""Calls as JSON objects with a name and arguments: alone or in a list, between marks or bare.

A reader takes more than a writer gives: a list or objects in a row, keys in any order, arguments as
an object or as its JSON text. An object that has no name is text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from appliance.text.calls.reading.format import CallFormat, Spelling
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.script import Sink
from appliance.text.calls.reading.tape import Steps, decode_string
from appliance.text.calls.reading.thinking import Story
from appliance.text.jinja.marks import concatenate, mark

_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class ObjectCalls:
    """How calls as JSON objects are set.

    `opens` begin a call or a list of them, `close` ends it. A `bare` object at the beginning of an
    answer is a call, too, if it has the name of a tool that was offered. The keys are `name` and
    `arguments`; `wraps` are keys of objects around a call. A grammar writes `before` the first
    object, `between` two, and `after` the last; `first` is an expression for what stands in an
    object before its name.
    """

    opens: tuple[str, ...] = ()
    close: str = ""
    bare: bool = False
    name: str = "name"
    arguments: str = "arguments"
    wraps: tuple[str, ...] = ()
    before: str = ""
    between: str = ""
    after: str = ""
    first: str = ""

    def read(self, story: Story, tools: Sequence[ToolSpec] | None) -> Steps[None]:
        """The program that reads an answer."""
        if self.bare:
            yield from self.lead(story, tools)
        while (mark := (yield from story.text(self.opens))) is not None:
            yield from self._group(story, mark, None)

    def lead(self, story: Story, tools: Sequence[ToolSpec] | None) -> Steps[None]:
        """Read a bare call, if the answer begins with one."""
        gap = yield from story.space()
        story.script.say(gap)
        if (yield from story.peek()) in ("{", "["):
            yield from self._group(story, "", frozenset(tool.name for tool in tools or ()))

    def write(self, grammar: GrammarWriter, tools: Sequence[ToolSpec], parallel: bool) -> str:
        """The expression for calls after the first mark."""
        calls = [f"{self._head(tool)} {grammar.arguments(tool)} {self._tail()}" for tool in tools]
        some = grammar.some(calls, grammar.text(self.between), many=parallel and bool(self.between))
        return f"{grammar.text(self.before)} {some} {grammar.text(self.after)}"

    def spell(self, calls: Sequence[Spelling]) -> str:
        """Calls as a grammar would have them written, with names and arguments marked."""
        parts: list[str] = [*self.opens[:1], self.before]
        for index, (name, arguments) in enumerate(calls):
            parts += [self.between if index else "", "{" + quoted(self.name) + ": ", mark(json.dumps(name)),
                      f", {quoted(self.arguments)}: ", mark(arguments), "}"]
        return concatenate([*parts, self.after])

    def _head(self, tool: ToolSpec) -> str:
        wraps = "".join(f'{{"{wrap}": ' for wrap in self.wraps[:1])
        name = f"{quoted(self.name)}: {quoted(tool.name)}, {quoted(self.arguments)}: "
        return f"{quoted(wraps + '{')} {self.first} {quoted(name)}" if self.first else quoted(wraps + "{" + name)

    def _tail(self) -> str:
        return quoted("}" * (1 + len(self.wraps[:1])))

    def _group(self, story: Story, mark: str, known: frozenset[str] | None) -> Steps[None]:
        """Objects in a row, or in a list, and the mark after them."""
        with story.attempt(mark, () if mark else self._heads(known or ())):
            if (yield from story.then("[")):
                yield from story.space()
            found = yield from self._object(story, known)
            if not found:
                story.is_text()
                return
        while True:
            char = yield from story.next()
            if self.close and (yield from story.took(self.close)):
                return
            if char in (",", ";", "]"):
                yield from story.took(char)
            elif char == "{":
                with story.attempt():
                    if not (yield from self._object(story, known)):
                        story.is_text()
                        return
            else:
                return

    def _heads(self, names: Iterable[str]) -> list[str]:
        """How a bare call of one of `names` begins, without white space."""
        wraps = ["", *(f"{{{quoted(wrap)}:" for wrap in self.wraps)]
        return [f"{wrap}{{{quoted(self.name)}:{quoted(name)}" for wrap in wraps for name in names]

    def _object(self, story: Story, known: frozenset[str] | None, deep: int = 0) -> Steps[bool]:
        """Whether an object was a call; what was taken of another one stays in the attempt."""
        call = _OpenCall(story, self, known)
        if not (yield from story.took("{")):
            return False
        while True:
            char = yield from story.next()
            if char == "}":
                yield from story.took("}")
                return call.complete(required=known is not None)
            if char == ",":
                yield from story.took(",")
                continue
            key = (yield from story.string()) if char == '"' else None
            if key is None or (yield from story.next()) != ":":
                return call.begun
            yield from story.took(":")
            wrapped = key in (*self.wraps, "function") and not deep and not call.begun
            if (yield from story.next()) in ("{", "[") and wrapped:
                call.begun = yield from self._wrapped(story, known)
            elif not (yield from call.take(key)):
                return call.begun

    def _wrapped(self, story: Story, known: frozenset[str] | None) -> Steps[bool]:
        """Calls in an object around them: one, or a list."""
        found = False
        if (yield from story.took("[")):
            while (yield from story.next()) in ("{", ","):
                if not (yield from story.took(",")) and not (yield from self._object(story, known, deep=1)):
                    return found
                found = True
            yield from story.took("]")
            return found
        return (yield from self._object(story, known, deep=1))


class _OpenCall:
    """A call's object, as far as it is known."""

    def __init__(self, story: Story, shape: ObjectCalls, known: frozenset[str] | None) -> None:
        self._story = story
        self._shape = shape
        self._known = known
        self._name: str | None = None
        self._held: str | None = None
        self.begun = False

    def take(self, key: str) -> Steps[bool]:
        """Take the value of a key; False where the object cannot be a call."""
        if key == self._shape.name and self._name is None:
            name = yield from self._story.string() if (yield from self._story.peek()) == '"' else _nothing()
            if not name or (self._known is not None and name not in self._known):
                return False
            self._name = name
            if self._held is not None:
                self._begin(name)(self._held)
            return True
        if key in (self._shape.arguments, *_ARGUMENTS) and self._held is None and not self.begun:
            yield from self._arguments()
            return True
        return (yield from self._story.value(_ignore))

    def complete(self, *, required: bool) -> bool:
        """Whether the object that ends here is a call: one without arguments is, unless they are
        `required`."""
        if self._name is not None and not self.begun and not required:
            self._begin(self._name)("{}")
        return self.begun

    def _begin(self, name: str) -> Sink:
        self.begun = True
        return self._story.call(name)

    def _arguments(self) -> Steps[None]:
        """Arguments as an object are handed on as they come, once the name is known."""
        first = yield from self._story.peek()
        if first == "{" and self._name is not None:
            yield from self._story.value(self._begin(self._name))
            return
        held: list[str] = []
        yield from self._story.value(held.append)
        text = "".join(held)
        if first == '"':
            text = decode_string(text) or text
        text = "{}" if text in ("", "null") else text
        if self._name is None:
            self._held = text
        else:
            self._begin(self._name)(text)


def _nothing() -> Steps[str | None]:
    return None
    yield


def _ignore(_text: str) -> None:
    """Drop the values of other keys."""


def format_of(name: str, recognises: Callable[[str], bool], shape: ObjectCalls, markers: tuple[str, ...]) -> CallFormat:
    """The format of a shape."""
    opens = () if shape.bare else shape.opens
    return CallFormat(name, recognises, markers, opens, shape.read, shape.write, spell=shape.spell, searched=opens)
