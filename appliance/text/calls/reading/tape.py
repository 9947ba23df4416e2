"""An answer's text as it comes, for programs that read it from the front.

A program is a generator: it asks the tape for what it looks for, and the tape yields where it
needs more text to be certain. So a format reads straight down, and how the text is cut cannot
matter. Each character is taken once, and no more than a mark's length is looked at again: time
grows with the text alone.

An answer may be cut anywhere. The beginning of a call or a mark is then no text of the answer, and
is left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from appliance.text.calls.reading.marks import patterns
from appliance.text.calls.reading.pieces import Piece
from appliance.text.calls.reading.script import Script, Sink

T = TypeVar("T")
AnyTape = TypeVar("AnyTape", bound="Tape")
Steps = Generator[None, None, T]

_SPACE = re.compile(r"\s*")
_IN_STRING = re.compile(r'[^"\\]*')
_OUT_OF_STRING = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^\s,:\]}\"{\[]*")


class Tape:
    """The text that came and is not taken yet. Its certain part goes to the script."""

    def __init__(self, names: Collection[str] = (), *, muted: bool = False) -> None:
        """`names`: those of the functions. `muted`: calls are read, and left out."""
        self._names, self._muted = frozenset(names), muted
        self._text = ""
        self._at = 0
        self._ended = self._cut = False
        self._half: int | None = None  # where the rest of the text is the beginning of what a program looked for
        self._trail: list[str] | None = None  # what was taken and may turn out to be no call
        self._heads: Sequence[str] = ()  # how a call begins that has no mark, without white space
        self.script = Script()

    # The reader's side.

    def feed(self, text: str) -> None:
        """More text."""
        self._text = self._text[self._at:] + text
        self._at = 0

    def end(self, *, cut: bool = False) -> None:
        """No more text will come; `cut`: though the model would have gone on."""
        self._ended, self._cut = True, cut

    # Text for a program.

    def need(self, count: int) -> Steps[bool]:
        """Wait until `count` characters are there; False if the text ends before."""
        while len(self._text) - self._at < count:
            if self._ended:
                return False
            yield
        return True

    def peek(self) -> Steps[str]:
        """The next character, which stays; empty at the end."""
        yield from self.need(1)
        return self._text[self._at:self._at + 1]

    def any(self) -> Steps[str]:
        """Take the next character; empty at the end."""
        yield from self.need(1)
        return self._take(1)

    def starts(self, mark: str) -> Steps[bool]:
        """Whether the text goes on with `mark`, which stays."""
        while True:
            here = self._text[self._at:self._at + len(mark)]
            if here == mark:
                return True
            if self._ended or not mark.startswith(here):
                self._half = self._at if mark.startswith(here) else self._half
                return False
            yield

    def took(self, mark: str) -> Steps[bool]:
        """Whether the text went on with `mark`, which is taken then."""
        found = yield from self.starts(mark)
        if found:
            self._take(len(mark))
        return found

    def took_one(self, marks: Sequence[str]) -> Steps[bool]:
        """Whether the text went on with one of `marks`, which is taken then."""
        for mark in marks:
            if (yield from self.took(mark)):
                return True
        return False

    def then(self, mark: str) -> Steps[bool]:
        """Take white space; whether the text went on with `mark`, which is taken then."""
        yield from self.space()
        return (yield from self.took(mark))

    def space(self) -> Steps[str]:
        """Take white space."""
        taken = []
        while True:
            taken.append(self._take_match(_SPACE))
            if self._at < len(self._text) or self._ended:
                return "".join(taken)
            yield

    def next(self) -> Steps[str]:
        """The next character after white space, which is taken; the character stays."""
        yield from self.space()
        return (yield from self.peek())

    def upto(self, marks: Sequence[str], sink: Sink) -> Steps[str | None]:
        """Hand the text before the first of `marks` to `sink`, and take that mark; None if the text
        ends before. Of two marks at one place the longer one counts. The beginning of a mark that a
        cut leaves is dropped."""
        complete, partial = patterns(tuple(marks))
        while True:
            found = (complete if self._ended else partial).search(self._text, self._at)
            end = found.start() if found else self._end(partial)
            sink(self._take(end - self._at))
            if found and found.lastgroup == "whole":
                return self._take(len(found.group()))
            if self._ended:
                self._drop_rest()
                return None
            yield

    def _drop_rest(self) -> None:
        """Leave out what a cut left of a mark."""
        if self._at < len(self._text):
            self._at = len(self._text)
            self.script.beside()

    def _end(self, partial: re.Pattern[str]) -> int:
        """Where the text ends, but for the beginning of a mark that a cut leaves. That of a word is
        text."""
        if not self._cut:
            return len(self._text)
        if self._half == self._at:
            return self._at
        found = partial.search(self._text, self._at)
        return len(self._text) if found is None or found.group()[0].isalnum() else found.start()

    def back(self, mark: str) -> None:
        """Leave a mark that was taken just now."""
        self._at -= len(mark)

    def string(self) -> Steps[str | None]:
        """Take a JSON string; None if it is cut or malformed."""
        taken: list[str] = []
        complete = yield from self._string(taken.append)
        return decode_string("".join(taken)) if complete else None

    def value(self, sink: Sink) -> Steps[bool]:
        """Take a JSON value and hand its text to `sink` as it comes; False if it is cut. Brackets
        and strings alone are followed: the text may still not be JSON."""
        first = yield from self.peek()
        if first == '"':
            return (yield from self._string(sink))
        if first not in ("{", "["):
            return (yield from self.while_matches(_SCALAR, sink))
        depth = 0
        while True:
            yield from self.while_matches(_OUT_OF_STRING, sink)
            char = yield from self.peek()
            if not char:
                return False
            if char == '"':
                yield from self._string(sink)
                continue
            depth += 1 if char in "{[" else -1
            sink(self._take(1))
            if not depth:
                return True

    def while_matches(self, pattern: re.Pattern[str], sink: Sink, most: int = sys.maxsize) -> Steps[bool]:
        """Take what `pattern`, a repeated class, matches, and no more than `most` characters; False
        at the text's end."""
        while True:
            taken = self._take_match(pattern, most)
            most -= len(taken)
            sink(taken)
            if self._at < len(self._text) or not most:
                return True
            if self._ended:
                return False
            yield

    def _string(self, sink: Sink) -> Steps[bool]:
        sink(self._take(1))
        while (yield from self.while_matches(_IN_STRING, sink)):
            if self._text[self._at] == '"':
                sink(self._take(1))
                return True
            yield from self.need(2)
            sink(self._take(2))
        return False

    def _take(self, count: int) -> str:
        taken = self._text[self._at:self._at + count]
        self._at += len(taken)
        if self._trail is not None:
            self._trail.append(taken)
        return taken

    def _take_match(self, pattern: re.Pattern[str], most: int = sys.maxsize) -> str:
        found = pattern.match(self._text, self._at, min(self._at + most, len(self._text)))
        return self._take(found.end() - self._at) if found else ""

    # Text that may turn out to be no call.

    @contextmanager
    def attempt(self, mark: str = "", heads: Sequence[str] = ()) -> Iterator[None]:
        """Remember what is taken within, after `mark`: until a call begins, or it is text. `heads`:
        beginnings of a call that has no mark, without white space."""
        self._trail, self._heads = [mark], heads
        try:
            yield
        finally:
            self._trail = None

    def is_text(self) -> None:
        """Say what was taken in this attempt: it was no call. The beginning of one is left out
        where the answer was cut in it."""
        if self._trail:
            mark, text, self._trail = self._trail[0], "".join(self._trail), None
            if self._cut and self._at in (len(self._text), self._half) and (mark or self._begins(text)):
                self._at = len(self._text)
                self.script.beside()
            else:
                self.script.say(text)

    def _begins(self, text: str) -> bool:
        """Whether a text begins a call that has no mark."""
        compact = "".join(text.split()).lstrip("[")
        return any(head.startswith(compact) or compact.startswith(head) for head in self._heads)

    def drop(self) -> None:
        """Forget the text of this attempt: it has done its work."""
        self._trail = None

    def call(self, name: str) -> Sink:
        """A call begins; the sink takes its arguments. The attempt's text is its own. A name that
        is cut begins none."""
        self._trail = None
        is_half = self._cut and self._at == len(self._text) and name not in self._names and any(
            each.startswith(name) for each in self._names)
        return self.script.call(name, muted=self._muted or is_half)


class TapeReader:
    """A `Reader` by a program over a tape."""

    def __init__(self, tape: AnyTape, program: Callable[[AnyTape], Steps[None]]) -> None:
        self._tape: Tape = tape
        self._steps = program(tape)
        self._finished = False
        self._run()

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain with this text."""
        self._tape.feed(text)
        return self._run()

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The pieces that are left at the end of the answer."""
        if self._finished:
            return []
        self._finished = True
        self._tape.end(cut=cut)
        next(self._steps, None)
        self._tape.script.close()
        return self._tape.script.certain()

    def _run(self) -> list[Piece]:
        next(self._steps, None)
        return self._tape.script.certain()


def decode_string(text: str) -> str | None:
    """The value of a JSON string; control characters in it are forgiven, lone surrogates replaced.
    """
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
