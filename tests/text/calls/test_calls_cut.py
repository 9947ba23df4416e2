"""Answers that end within a call: what was begun of it, or of a mark, is no text; however the answer came."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache

import pytest

from appliance.text.calls.history import fit
from appliance.text.calls.readers import opened, reader_of
from appliance.text.calls.reading.pieces import Call, Piece, Said, join
from tests.support.answers import TOOLS, cut, template_of
from tests.support.extent import examples
from tests.text.calls.test_calls_round_trip import NATIVE, UNRENDERED, chat, written

ONE_EACH = {form: name for name, form in reversed(NATIVE.items()) if name not in UNRENDERED}
WORDS = ("functools", "function call", "Action")  # marks that begin as words do: half of one is text


def _read(form: str, texts: Sequence[str], *, is_cut: bool, muted: bool = False) -> list[Piece]:
    """The pieces of an answer that comes as these texts."""
    template = template_of(ONE_EACH[form])
    reader = reader_of(template, TOOLS, _answer(form)[1], muted=muted)
    return join([piece for text in texts for piece in reader.push(text)] + reader.finish(cut=is_cut))


@cache
def _answer(form: str) -> tuple[str, bool]:
    """What a template writes for a turn with a call, and whether its prompt ends within a thought."""
    template = template_of(ONE_EACH[form])
    begun, text = written(template, fit(template, chat(1)[:2]))
    return text, opened(template, begun)


def _said(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, Said)).strip()


@pytest.mark.parametrize("muted", [False, True], ids=["read", "muted"])
@pytest.mark.parametrize("form", sorted(ONE_EACH))
def test_a_cut_leaves_no_half(form: str, muted: bool) -> None:
    """The text of the beginning of an answer begins the text of the whole, whose calls alone are begun."""
    text, rng = _answer(form)[0], random.Random(form)
    whole = _read(form, [text], is_cut=False, muted=muted)
    sizes = range(len(text)) if examples(0, 1) else sorted(rng.sample(range(len(text)), min(len(text), 60)))
    for size in sizes:
        found = _read(form, [text[:size]], is_cut=True, muted=muted)
        assert found == _read(form, cut(text[:size], rng), is_cut=True, muted=muted), text[:size]
        said = _said(found)
        last = said.split("\n")[-1]
        assert _said(whole).startswith(said) or any(word.startswith(last) for word in WORDS), text[:size]
        calls = [piece.name for piece in found if isinstance(piece, Call)]
        assert calls in ([], [] if muted else ["get_weather"]), text[:size]
    assert muted != any(isinstance(piece, Call) for piece in whole)


@pytest.mark.parametrize(("text", "rest"), [
    ("a < b", "a < b"), ("a <", "a"), ("see <tool", "see"), ("see <tool_call>", "see"),
    ("see <tool_caller", "see <tool_caller"), ("x <tool_call> is", "x <tool_call> is"),
    ('{"name": "Ann", "age": 3', '{"name": "Ann", "age": 3'), ("1 [", "1 [")])
def test_text_that_is_cut_stays(text: str, rest: str) -> None:
    """What is no beginning of a mark, and JSON that calls nothing that was offered."""
    assert rest == _said(_read("hermes", [text], is_cut=True))
    assert text == _said(_read("hermes", [text], is_cut=False)), "an answer that is whole says all of it"


@pytest.mark.parametrize(("text", "rest"), [
    ('{"name": "Ann", "age": 3', '{"name": "Ann", "age": 3'), ('{"name": "get_wea', ""),
    ('[{"name": "get_weather", "par', ""), ('{"na', ""), ('{"title": "x', '{"title": "x'), ("{", "")])
def test_a_bare_call_that_is_cut(text: str, rest: str) -> None:
    """Only a name that was offered makes one; other JSON is the answer's."""
    assert rest == _said(_read("llama-3", [text], is_cut=True))
