"""Answers of models with calls in them, read whole and in pieces."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

from appliance.text.calls.readers import reader_of
from appliance.text.calls.reading.pieces import Arguments, Piece, PieceReader, ToolSpec, join
from appliance.text.template import ChatTemplate
from tests.support.chats import SPECIAL
from tests.support.vocabularies import template_source

WEATHER = ToolSpec("get_weather", "The weather.", {"type": "object", "required": ["city"], "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}}})
ADD = ToolSpec("add", None, {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}})
TOOLS = (WEATHER, ADD)


@cache
def template_of(name: str) -> ChatTemplate:
    """One of llama.cpp's templates, by its name without the ending."""
    return ChatTemplate(template_source(f"{name}.jinja"), SPECIAL)


def read(template: ChatTemplate, text: str, *, opened: bool = False, tools: Sequence[ToolSpec] | None = TOOLS
         ) -> list[Piece]:
    """The pieces of an answer, which are the same for forty ways to cut it."""
    found = in_pieces(reader_of(template, tools, opened), [text])
    for seed in range(40):
        assert found == in_pieces(reader_of(template, tools, opened), cut(text, random.Random(seed)))
    return found


def in_pieces(reader: PieceReader, texts: Sequence[str]) -> list[Piece]:
    """The joined pieces of an answer that comes as these texts."""
    return join([piece for text in texts for piece in reader.push(text)] + reader.finish())


def arguments_of(pieces: Sequence[Piece], index: int) -> str:
    """The arguments of one call."""
    return "".join(piece.text for piece in pieces if isinstance(piece, Arguments) and piece.index == index)


def cut(text: str, rng: random.Random) -> list[str]:
    """The text in pieces of random lengths, some of them empty."""
    longest, found, at = rng.choice((1, 2, 3, 8, 40)), [], 0
    while at < len(text):
        size = rng.randint(0, longest)
        found.append(text[at:at + size])
        at += size
    return found
