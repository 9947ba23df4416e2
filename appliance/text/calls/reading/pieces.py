"""The pieces that an answer's text falls into, and what a reader of them is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer proper; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's reasoning; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """The beginning of a tool call: `index` counts from 0 in one answer."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of a call's arguments; never empty. Where the answer is complete, the
    texts of one call joined are what the model wrote, which a grammar alone makes sure is JSON."""

    index: int
    text: str


Piece = Said | Thought | Call | Arguments


class PieceReader(Protocol):
    """Reads an answer as it comes. How the text is cut changes nothing but how texts are cut."""

    def push(self, text: str) -> list[Piece]:
        """The pieces that are certain with this text."""
        ...

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The pieces that are left at the end of the answer. `cut`: the model would have gone on,
        so the beginning of a call or a mark is left out."""
        ...


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call. `parameters` is a JSON Schema of an object."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces with texts of one kind in a row joined: equal for each way to cut an answer."""
    found: list[Piece] = []
    for (kind, index), group in groupby(pieces, _kind):
        pieces = list(group)
        text = "".join(piece.text for piece in pieces if not isinstance(piece, Call))
        if kind is Call:
            found += pieces
        else:
            found.append(Arguments(index, text) if kind is Arguments else Said(text) if kind is Said else Thought(text))
    return found


def _kind(piece: Piece) -> tuple[type[Piece], int]:
    return type(piece), piece.index if isinstance(piece, Call | Arguments) else 0
