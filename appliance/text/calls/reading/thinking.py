"""Thoughts in an answer: where they begin, where they end, and what frames the answer proper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from appliance.text.calls.reading.script import Trimmed
from appliance.text.calls.reading.tape import Steps, Tape


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """How models of one kind set their thoughts off.

    A thought lies at the beginning of an answer, between `open` and `close`; where it may lie
    `anywhere`, also later. The answer proper may have a `frame`: a mark before and a mark after it,
    which are no text of it. `tokens` are parts of these marks that are tokens of their own.
    """

    name: str
    recognises: Callable[[str], bool]
    open: str
    close: str
    anywhere: bool = False
    frame: tuple[str, str] | None = None
    tokens: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts of tokens that a reader must see, where they are control tokens."""
        return (self.open, self.close, *(self.frame or ()), *self.tokens)


class Story(Tape):
    """A tape with the thoughts of a model: programs read its text by `text`."""

    def __init__(self, thinking: ThoughtMarks | None = None, opened: bool = False, names: Collection[str] = (), *,
                 muted: bool = False) -> None:
        super().__init__(names, muted=muted)
        self._thinking = thinking
        self._opened = opened
        self._framed = False

    def begin(self) -> Steps[None]:
        """Read the beginning of an answer: a thought, and a mark that the answer proper begins."""
        thinking = self._thinking
        if thinking is None:
            return
        gap = yield from self.space()
        found = yield from self.took(thinking.open)
        if found or self._opened:
            yield from self._thought(thinking)
            gap = yield from self.space()
        self.script.say(gap)
        if thinking.frame is not None and (yield from self.took(thinking.frame[0])):
            self._framed = True
            self.script.beside()

    def text(self, marks: Sequence[str]) -> Steps[str | None]:
        """Say text, and think thoughts, up to the first of `marks`; take that mark. None at the
        end of the answer."""
        thinking = self._thinking
        more = [thinking.open] if thinking is not None and thinking.anywhere else []
        if thinking is not None and thinking.frame is not None and self._framed:
            more.append(thinking.frame[1])
        while True:
            mark = yield from self.upto([*marks, *more], self.script.say)
            if thinking is None or mark not in more or mark in marks:
                return mark
            if mark == thinking.open:
                yield from self._thought(thinking)
            self.script.beside()

    def _thought(self, thinking: ThoughtMarks) -> Steps[None]:
        self.script.beside()
        yield from self.upto([thinking.close], Trimmed(self.script.think))
        self.script.beside()
