"""Answers whose texts are put in last, against the same shapes with texts: the same bytes, of all APIs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from appliance.api.answers import AnswerFacts, AnswerPart, CompletionUsage, Finish
from appliance.api.anthropic.shape import MessageShape
from appliance.api.responses.shape import ResponseShape
from appliance.api.shapes import AnswerShape, ChatShape, TextShape
from appliance.oblivious import AnswerTexts, Sweeps
from appliance.service.delivery.filled import FilledShape
from tests.support import oblivious

SHAPES: dict[str, Callable[[AnswerFacts], AnswerShape]] = {
    "chat": lambda facts: ChatShape(facts, with_usage=True, created=5),
    "text": lambda facts: TextShape(facts, with_usage=False, created=5),
    "messages": MessageShape, "responses": lambda facts: ResponseShape(facts, created=5)}
PIECES = (" He", ' said "', "", "é中\n", "😀\\\x01", "\ufffd", "x" * 300, " end.")
USAGE = CompletionUsage.of(3, 9, None)


def _texts() -> AnswerTexts:
    tokenizer = oblivious.both()[1]
    assert isinstance(tokenizer.sweeping, Sweeps)
    return AnswerTexts(tokenizer.sweeping.writer)


def _stand_in(texts: AnswerTexts, text: str) -> str:
    with texts.writer.turn:
        return texts.add(memoryview(text.encode()))


def _events(shape: AnswerShape, pieces: Sequence[str], choices: int, *, paced: bool) -> list[bytes]:
    ends: dict[int, Finish] = dict.fromkeys(range(choices), "stop")
    more = [shape.more([AnswerPart(choice, piece) for choice in range(choices)], paced=paced) for piece in pieces]
    return [shape.opened(choices), *more, shape.ended(ends, USAGE)]


@pytest.mark.parametrize("padding", [None, 64, 512])
@pytest.mark.parametrize("name", SHAPES)
def test_the_bytes_are_the_same(name: str, padding: int | None) -> None:
    """Streamed, at once and on the grid, and whole: of one choice or two, with sizes as they are and padded."""
    for choices in (1, 2) if name in ("chat", "text") else (1,):
        for paced in (False, True):
            texts = _texts()
            own = [_stand_in(texts, piece) for piece in PIECES]
            plain = AnswerFacts("req-1", "m", "fp", padding=padding)
            facts = AnswerFacts("req-1", "m", "fp", padding=padding, missing=texts.missing)
            wanted = _events(SHAPES[name](plain), PIECES, choices, paced=paced)
            assert wanted == _events(FilledShape(SHAPES[name](facts), texts), own, choices, paced=paced)
            ends: dict[int, Finish] = dict.fromkeys(range(choices), "length")
            whole, filled = ([AnswerPart(choice, "".join(pieces)) for choice in range(choices)]
                             for pieces in (PIECES * 400, own * 400))
            body = b"".join(SHAPES[name](plain).whole(whole, ends, USAGE))
            made = list(FilledShape(SHAPES[name](facts), texts).whole(filled, ends, USAGE))
            assert (body, True) == (b"".join(made), len(made) > 1)
            texts.close()
