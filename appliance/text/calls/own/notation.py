"""Values in a notation that is nearly JSON: read as JSON while they come, and written for grammars.

Gemma writes `{city:<|"|>Paris<|"|>,days:3}`, LFM2 writes `(city='Paris', days=3)`. Both have keys,
strings between quotes, words and numbers, objects and lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.errors import ConstraintError
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.reading.script import Sink
from appliance.text.calls.reading.tape import Steps, Tape
from appliance.text.calls.reading.typed import is_nullable, json_of, string_of, values_of

_KEY = re.compile(r"[^:=,{}\[\]()'\"<]*")
_SCALAR = re.compile(r"[^,{}\[\]()]*")
_CLOSE = {"{": "}", "[": "]", "(": "]"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_HARMLESS = frozenset(["type", "properties", "required", "items", "enum", "const", "anyOf", "$ref", "$defs",
                       "definitions", "description", "title", "default", "examples", "additionalProperties", "$schema",
                       "$id", "nullable", "example", "deprecated", "readOnly", "writeOnly", "$comment",
                       "propertyOrdering", "externalDocs", "xml"])
_SCALARS = ("integer", "number", "boolean", "null")
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Notation:
    """A way to write values: `quotes` around strings, the first one for grammars; whether a string
    has backslash `escapes`; `words` for those of JSON; whether keys are `quoted_keys`."""

    quotes: tuple[str, ...]
    escapes: bool = False
    words: Mapping[str, str] = field(default_factory=dict)
    quoted_keys: bool = False

    def read(self, tape: Tape, sink: Sink, close: str, equals: str) -> Steps[bool]:
        """Hand on an object, whose opening bracket was taken, as JSON, up to its `close`; False if
        it is cut. Its keys end with `equals`, those of objects within with a colon. Brackets are a
        stack of our own, since the model chooses how deep they are."""
        stack, wants_key = [(close, "}", equals)], True
        sink("{")
        while stack:
            char = yield from tape.next()
            if not char:
                return False
            if char in "}])":
                yield from tape.took(char)
                sink(stack.pop()[1])
                wants_key = False
            elif char == ",":
                yield from tape.took(char)
                sink(", ")
                wants_key = stack[-1][1] == "}"
            elif wants_key:
                wants_key = False
                yield from self._key(tape, sink, stack[-1][2])
            elif char in _CLOSE:
                yield from tape.took(char)
                sink("{" if char == "{" else "[")
                stack.append((char, _CLOSE[char], ":"))
                wants_key = char == "{"
            else:
                yield from self._value(tape, sink)
        return True

    def _key(self, tape: Tape, sink: Sink, equals: str) -> Steps[None]:
        held: list[str] = []
        for quote in self.quotes:
            if (yield from tape.took(quote)):
                yield from tape.upto((quote,), held.append)
                break
        else:
            yield from tape.while_matches(_KEY, held.append)
        if (yield from tape.next()):
            if not (yield from tape.took(equals)):
                yield from tape.upto((equals,), held.append)
            sink(string_of("".join(held).strip()) + ": ")

    def _value(self, tape: Tape, sink: Sink) -> Steps[None]:
        for quote in self.quotes:
            if (yield from tape.took(quote)):
                sink('"')
                if (yield from self._string(tape, quote, lambda text: sink(string_of(text)[1:-1]))):
                    sink('"')
                return
        held: list[str] = []
        complete = yield from tape.while_matches(_SCALAR, held.append)
        text = "".join(held).strip()
        text = self.words.get(text, text)
        sink(json_of(text, schema=True) if complete else text)

    def _string(self, tape: Tape, quote: str, sink: Sink) -> Steps[bool]:
        marks = (quote, "\\") if self.escapes else (quote,)
        while (mark := (yield from tape.upto(marks, sink))) is not None:
            if mark == quote:
                return True
            char = yield from tape.any()
            sink(_ESCAPES.get(char, char if char in "\\'\"" else "\\" + char))
        return False

    # For grammars.

    def object(self, grammar: GrammarWriter, tool: ToolSpec, equals: str) -> str:
        """An expression for a tool's arguments, without the brackets around them. ConstraintError
        for a strict tool with a keyword that would not be kept."""
        return _ArgumentsWriter(self, grammar, tool).members(tool.parameters, equals, 0)


def unkept(tool: ToolSpec) -> Iterator[tuple[str, ...]]:
    """The paths of keywords that the grammar of a tool's arguments does not keep."""
    waiting: list[tuple[tuple[str, ...], object]] = [((), tool.parameters)]
    while waiting:
        path, schema = waiting.pop()
        if isinstance(schema, Mapping) and schema.get("type") not in _SCALARS:
            yield from ((*path, name) for name in schema if name not in _HARMLESS and not name.startswith("x-"))
            waiting.append(((*path, "items"), schema.get("items")))
            waiting += [((*path, group, name), item) for group in ("properties", "$defs", "definitions")
                        for name, item in _members(schema.get(group))]
            options = schema.get("anyOf")
            waiting += [((*path, "anyOf", str(place)), item)
                        for place, item in enumerate(options if isinstance(options, list) else ())]


def _members(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, Mapping) else ()


class _ArgumentsWriter:
    """The grammar of one tool's arguments."""

    def __init__(self, notation: Notation, grammar: GrammarWriter, tool: ToolSpec) -> None:
        self._notation = notation
        self._grammar = grammar
        self._tool = tool
        self._rules: dict[str, str] = {}

    def members(self, schema: Mapping[str, Any], equals: str, deep: int) -> str:
        """The members of an object, in the schema's order."""
        properties, required = schema.get("properties"), schema.get("required")
        names = list(properties) if isinstance(properties, Mapping) else []
        wanted = required if isinstance(required, list) else []
        head = tail = self._grammar.rule('""')
        for name in reversed(names):
            member = f"{self._key(name, equals)} {self.value((properties or {})[name], deep + 1)}"
            head = self._grammar.rule(f"{member} {tail}" + ("" if name in wanted else f" | {head}"))
            after = f'"," {member}'
            tail = self._grammar.rule(f"{after} {tail}" if name in wanted else f"({after})? {tail}")
        return head

    def _key(self, name: str, equals: str) -> str:
        key = self._string(name) if self._notation.quoted_keys and equals == ":" else quoted(name)
        return f"{key} {quoted(equals)}"

    def _string(self, text: str) -> str:
        quote = self._notation.quotes[0]
        if self._notation.escapes:
            text = text.replace("\\", "\\\\").replace(quote, "\\" + quote)
        mark = self._grammar.text(quote)
        return f"{mark} {quoted(text)} {mark}"

    def value(self, schema: object, deep: int) -> str:
        """A value that a schema allows."""
        if deep > _DEEPEST:
            raise ConstraintError(f"the parameters of a tool are nested more than {_DEEPEST} deep")
        if not isinstance(schema, Mapping):
            return self._any()
        self._check(schema)
        if is_nullable(schema):
            rest = {name: each for name, each in schema.items() if name != "nullable"}
            return f"({self.value(rest, deep + 1)} | {self._literal(None)})"
        if "$ref" in schema:
            return self._reference(str(schema["$ref"]), deep)
        texts = values_of(schema)
        if texts is not None:
            return f"({' | '.join(map(self._literal, texts))})"
        if isinstance(schema.get("anyOf"), list):
            return f"({' | '.join(self.value(each, deep + 1) for each in schema['anyOf'])})"
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return f"({' | '.join(self._of_type(kind, schema, deep) for kind in kinds)})"

    def _of_type(self, kind: object, schema: Mapping[str, Any], deep: int) -> str:
        if kind == "string":
            return self._text()
        if kind == "array":
            item = self.value(schema.get("items"), deep + 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object" and isinstance(schema.get("properties"), Mapping):
            return f'"{{" {self.members(schema, ":", deep)} "}}"'
        if kind == "object":
            self._any()
            return self._rules["object"]
        return self._scalar({**schema, "type": kind}) if kind in _SCALARS else self._any()

    def _check(self, schema: Mapping[str, Any]) -> None:
        """ConstraintError for a keyword that would not be kept, where the tool is strict."""
        scalar = schema.get("type") in _SCALARS
        for keyword in schema if self._tool.strict and not scalar else ():
            if keyword not in _HARMLESS or (keyword == "additionalProperties" and schema[keyword] is not False):
                raise ConstraintError(f"the keyword {keyword!r} is not enforced in tool calls of this model",
                                      hint="leave it out, or set strict to false", path=keyword)

    def _reference(self, target: str, deep: int) -> str:
        if target not in self._rules:
            found: Any = self._tool.parameters
            for part in target.removeprefix("#/").split("/"):
                found = found.get(part) if isinstance(found, Mapping) else None
            if not target.startswith("#/") or not isinstance(found, Mapping):
                raise ConstraintError("a reference in a tool's parameters leads nowhere", path="$ref")
            self._rules[target] = self._grammar.rule("")
            self._grammar.replace(self._rules[target], self.value(found, deep + 1))
        return self._rules[target]

    def _literal(self, value: object) -> str:
        if isinstance(value, str):
            return f"({self._string(value)})"
        text = json.dumps(value)
        return quoted({word: own for own, word in self._notation.words.items()}.get(text, text))

    def _text(self) -> str:
        quote = self._notation.quotes[0]
        if self._notation.escapes:
            return rf"/{quote}([^{quote}\\]|\\(?s:.))*{quote}/"
        return f"{self._grammar.text(quote)} {self._grammar.up_to(quote)}"

    def _scalar(self, schema: Mapping[str, Any]) -> str:
        if schema["type"] in ("boolean", "null"):
            values = (True, False) if schema["type"] == "boolean" else (None,)
            return f"({' | '.join(map(self._literal, values))})"
        return self._grammar.json(schema)

    def _any(self) -> str:
        """Any value; the rules for it are written once."""
        if "any" not in self._rules:
            self._rules["any"], self._rules["object"] = self._grammar.rule(""), self._grammar.rule("")
            each = self._rules["any"]
            key = self._text() if self._notation.quoted_keys else "/[a-zA-Z_][a-zA-Z0-9_]*/"
            scalars = " | ".join(self._scalar({"type": kind}) for kind in ("number", "boolean", "null"))
            self._grammar.replace(each, f'{self._text()} | {scalars} | {self._rules["object"]} | '
                                  f'"[" ({each} ("," {each})*)? "]"')
            self._grammar.replace(self._rules["object"], f'"{{" ({key} ":" {each} ("," {key} ":" {each})*)? "}}"')
        return self._rules["any"]
