"""Heads of calls: texts with a place for the name, read and written from one pattern.

A pattern is literal text with places: `{name}` of the function, `{key}` and `{type}` of an
argument. `{number}` and `{id}` count or name the call, and are dropped. White space between the
parts of a pattern may be more or less than it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.tape import Steps, Tape

_PARTS = re.compile(r"(\{(?:name|key|type|number|id)\})")
_CLASSES = {"{name}": re.compile(r"[\w.\-/]*"), "{key}": re.compile(r"[^\"<>\n]*"), "{type}": re.compile(r"\w*"),
            "{number}": re.compile(r"[0-9]*"), "{id}": re.compile(r"[\w.\-:]*")}
_WRITTEN = {"{number}": "/[0-9]{1,3}/", "{id}": "/[a-zA-Z0-9]{9}/"}
_MOST = 256  # characters of a name


@dataclass(frozen=True, slots=True)
class HeadText:
    """The texts at the places of a pattern; empty where it has no such place."""

    name: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """A pattern, see above."""

    pattern: str

    @property
    def parts(self) -> list[str]:
        """Literals, stripped, and places."""
        return [part.strip() for part in _PARTS.split(self.pattern) if part.strip()]

    @property
    def start(self) -> str:
        """The literal that the pattern begins with."""
        return self.parts[0]

    def read(self, tape: Tape, *, begun: bool = False, aside: Head | None = None) -> Steps[HeadText | None]:
        """Take a head; None where the text does not go on as the pattern says. `begun`: its start
        was taken before. `aside` may stand after the name, and is dropped."""
        name = kind = ""
        for part in self.parts[begun:]:
            yield from tape.space()
            if aside is not None and name and (yield from tape.starts(aside.start)):
                yield from aside.read(tape)
            if part in _CLASSES:
                taken: list[str] = []
                yield from tape.while_matches(_CLASSES[part], taken.append, most=_MOST)
                text = "".join(taken)
                if part in ("{name}", "{key}"):
                    name = text
                elif part == "{type}":
                    kind = text
                if not text:
                    return None
            elif not (yield from tape.took(part)):
                return None
        return HeadText(name, kind)

    def write(self, grammar: GrammarWriter, name: str, kind: str = "", *, begun: bool = False) -> str:
        """An expression for the head of a call of `name`; `begun`: without its start."""
        parts = _PARTS.split(self.pattern)[begun:]
        given = {"{name}": quoted(name), "{key}": quoted(name), "{type}": quoted(kind), **_WRITTEN}
        return " ".join(given.get(part) or grammar.text(part) for part in parts if part)
