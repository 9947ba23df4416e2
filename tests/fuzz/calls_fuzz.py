"""Fuzz the readers of answers: a format, and an answer that comes in pieces, from the same bytes."""

from __future__ import annotations

from appliance.text.calls.reading.format import CallFormat
from appliance.text.calls.reading.pieces import Arguments, Call, Piece, Said, Thought, ToolSpec
from appliance.text.calls.reading.tape import TapeReader
from appliance.text.calls.reading.thinking import Story
from appliance.text.calls.table import FORMATS, GENERIC
from appliance.text.calls.thoughts import THOUGHTS
from tests.support.answers import in_pieces

ALL = (*FORMATS, GENERIC)
TOOLS = [ToolSpec("f", None, {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}})]
MOST = 6  # characters that come out for one that goes in, where all of them have to be escaped


def fuzz(data: bytes) -> None:
    """How the answer is cut must not matter; calls are numbered, and nothing is made up."""
    data = data.ljust(3, b"\0")
    form, thinking, size = ALL[data[0] % len(ALL)], THOUGHTS[data[1] % len(THOUGHTS)], 1 + data[2] % 9
    text = data[3:].decode("utf-8", "replace")
    whole = _pieces(form, thinking, data[2] > 127, [text])
    if len(text) < 4000:
        parts = [text[at:at + size] for at in range(0, len(text), size)]
        assert whole == _pieces(form, thinking, data[2] > 127, parts), "the cut matters"
    indices = [piece.index for piece in whole if isinstance(piece, Call)]
    assert indices == list(range(len(indices))), "calls are not numbered"
    for place, piece in enumerate(whole):
        if isinstance(piece, Arguments):
            before = whole[place - 1]
            assert isinstance(before, Call), "arguments without a call"
            assert before.index == piece.index, "arguments of another call"
    made = sum(len(piece.text) for piece in whole if isinstance(piece, Said | Thought | Arguments))
    assert made <= MOST * len(text) + 2 * len(indices), "there is more text than came"


def _pieces(form: CallFormat, thinking: object, opened: bool, parts: list[str]) -> list[Piece]:
    story = Story(thinking if form.around is None else None, opened)  # type: ignore[arg-type]

    def program(story: Story):  # type: ignore[no-untyped-def]
        yield from story.begin()
        yield from form.read(story, TOOLS)

    return in_pieces(TapeReader(story, program), parts)


def seeds() -> list[bytes]:
    """An answer in each format, and what is hard for one of them."""
    objects = '{"name": "f", "arguments": {"a": "\\"}{", "b": [1, {}]}}'
    found = []
    for place, form in enumerate(ALL):
        marks = [*form.opens, *form.markers, "<function=f>", "<parameter=a>", "</parameter>", "</function>", "f",
                 objects, "[", "]", "call:f{a:", "}", '<invoke name="f">', '<parameter name="a">', "</invoke>",
                 "f(a='x')"]
        for text in ("".join(marks), "\n".join(reversed(marks)), f"{''.join(form.opens[:1])}{objects} tail",
                     f"a <think>b</think>\n\n{''.join(form.opens[:1])}[{objects}, {objects}]"):
            found.append(bytes([place, len(THOUGHTS) - 1, 3]) + text.encode())
    return found
