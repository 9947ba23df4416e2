"""The pieces of an answer, as a program finds them one after the other.

White space around calls and thoughts is layout. It is held back, and handed on only between two
texts of the answer.
"""

from __future__ import annotations

from collections.abc import Callable

from appliance.text.calls.reading.pieces import Arguments, Call, Piece, Said, Thought, join

Sink = Callable[[str], None]


class Script:
    """The pieces that are certain, and white space that may belong to them."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._calls = 0
        self._gap: list[str] = []  # white space that is held back
        self._layout = False  # whether the gap lies beside a call or a thought
        self._said = False

    def certain(self) -> list[Piece]:
        """The pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return join(pieces)

    def say(self, text: str) -> None:
        """Text of the answer; white space at its end is held back."""
        body = text.lstrip()
        self._gap.append(text[:len(text) - len(body)])
        if body:
            text = body.rstrip()
            gap = "" if self._layout and not self._said else "".join(self._gap)
            self._gap, self._layout, self._said = [body[len(text):]], False, True
            self._pieces.append(Said(gap + text))

    def beside(self) -> None:
        """A call or a thought lies here: white space on both sides is layout."""
        self._layout = True

    def think(self, text: str) -> None:
        """Text of a thought."""
        if text:
            self._pieces.append(Thought(text))

    def call(self, name: str, *, muted: bool) -> Sink:
        """A call begins; the sink takes its arguments. One that is `muted` is left out."""
        self.beside()
        if muted:
            return _nowhere
        index = self._calls
        self._calls += 1
        self._pieces.append(Call(index, name))
        return lambda text: self._pieces.append(Arguments(index, text)) if text else None

    def close(self) -> None:
        """The end of the answer: white space that no call is beside is its own."""
        gap = "".join(self._gap)
        if gap and not self._layout:
            self._pieces.append(Said(gap))


class Trimmed:
    """A sink before another one, without white space at both ends of the text."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._gap: list[str] = []
        self._begun = False

    def __call__(self, text: str) -> None:
        """Hand on what is certain not to be the end."""
        body = text.lstrip()
        if self._begun:
            self._gap.append(text[:len(text) - len(body)])
        if body:
            text = body.rstrip()
            self._sink("".join(self._gap) + text)
            self._gap, self._begun = [body[len(text):]], True


def _nowhere(_text: str) -> None:
    """Drop the arguments of a call that is left out."""
