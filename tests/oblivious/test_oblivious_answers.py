"""Text of an answer that is never a text of Python's, against the plain stream, stop strings and JSON."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from appliance.boot.planning import budget
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.events import End, Text
from appliance.engine.decode.generation import Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.errors import CapacityError
from appliance.oblivious import AnswerTexts, Sweeps, answers, may_stand
from appliance.secure import locked
from appliance.text.calls.readers import reader_of, searched_of
from appliance.text.calls.reading.pieces import Call, Piece, join
from appliance.text.calls.reading.tape import Steps, TapeReader
from appliance.text.calls.reading.thinking import Story, ThoughtMarks
from appliance.text.stops import MAX_LENGTH, MAX_STOPS, StopFilter
from appliance.text.tokenizer import Tokenizer
from appliance.text.tokenizer.stream import TextStream
from tests.support import oblivious
from tests.support.answers import TOOLS, template_of
from tests.support.extent import examples
from tests.support.step_traces import StepTracer
from tests.support.vocabularies import byte_level
from tests.text.calls.test_calls_cut import ONE_EACH, _answer

STOPS = ("ab", "\n\nUser:", "é中", "\ufffd", "\x00", "a" * 40 + "b")


def _plain() -> Tokenizer:
    return oblivious.both()[0]


def _swept() -> Tokenizer:
    return oblivious.both()[1]


@cache
def _each() -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer that has a token for each byte, in both forms."""
    return oblivious.forms(byte_level(oblivious.small_merges()))


@cache
def _byte_tokens() -> dict[bytes, int]:
    each = _each()[0]
    return {each.piece(token): token for token in range(each.vocab_size) if len(each.piece(token)) == 1}


def _token(byte: int) -> int:
    return _byte_tokens()[bytes([byte])]


def texts(swept: Tokenizer | None = None, marks: Sequence[str] = ()) -> AnswerTexts:
    """A request's, with no text yet."""
    sweeping = (swept or _swept()).sweeping
    assert isinstance(sweeping, Sweeps)
    return AnswerTexts(sweeping.writer, marks)



def both_ways(tokens: Sequence[int], stops: Sequence[str], visible: Sequence[int] = (), least: int = 0, *,
              each_byte: bool = False) -> None:
    """Compare what leaves with each token, and at the end."""
    stream, plain = TextStream(_each()[0] if each_byte else _plain(), visible), StopFilter(stops)
    made = texts(_each()[1] if each_byte else _swept())
    swept = made.begin(stops, visible)
    for number, token in enumerate(tokens, 1):
        text = stream.push(token)
        wanted = plain.push(text) if number > least else text
        _same(made, swept.push(token, searched=number > least), wanted)
        assert (swept.stopped, swept.found) == (plain.stopped, plain.found)
        if plain.stopped:
            break
    _same(made, swept.flush(), plain.flush())
    made.close()


def _same(made: AnswerTexts, found: str, wanted: str) -> None:
    assert len(found) <= 1
    assert made.fill(to_json(f"x{found}y")) == to_json(f"x{wanted}y")
    assert made.missing(found) == len(to_json(wanted)) - len(to_json(found))


@pytest.mark.parametrize("stops", [(), STOPS, ("zzzz",)])
def test_any_bytes(stops: Sequence[str]) -> None:
    """Bytes that are UTF-8 or not, one at a time and many: the same text leaves with the same token."""
    assert len(_byte_tokens()) == 256
    rng = random.Random(5)
    special = [0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0, 0x1F,
               0x22, 0x5C, 0x7F, 97, 98, 10]
    for number in range(examples(150, 4000)):
        letters = special if number % 2 else range(256)
        both_ways([_token(rng.choice(letters)) for _ in range(30)], stops, each_byte=True)
    for lead in (0xC2, 0xE0, 0xE1, 0xED, 0xF0, 0xF1, 0xF4):
        for second in (0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0):
            for rest in ((), (0x80,), (0x80, 0x80), (0xBF, 0x41)):
                both_ways([_token(each) for each in (lead, second, *rest, 0x41)], stops, each_byte=True)


@pytest.mark.parametrize("stops", [(), STOPS])
def test_drawn_texts(stops: Sequence[str]) -> None:
    """Tokens of texts of all kinds, and any tokens, long ones and control tokens among them."""
    rng = random.Random(3)
    longest = sorted(range(_plain().vocab_size), key=lambda token: -len(_plain().piece(token)))[:40]
    for text in oblivious.drawn_texts(examples(80, 3000), 120, seed=9):
        both_ways(_plain().encode(text), stops, least=rng.choice((0, 0, 5)))
    for _ in range(examples(40, 2000)):
        tokens = [rng.choice((rng.randrange(_plain().vocab_size), rng.choice(longest), rng.randrange(17)))
                  for _ in range(20)]
        both_ways(tokens, stops, visible=[token for token in tokens if token < 9])


@given(st.binary(max_size=24), st.lists(st.text(min_size=1, max_size=4), max_size=4))
def test_any_stop_strings(data: bytes, stops: list[str]) -> None:
    """Bytes and stop strings that a property test draws."""
    stops = [stop for stop in stops if stop.isprintable() and "\ud800" not in stop]
    both_ways([_token(each) for each in data], stops, each_byte=True)


def test_each_character_in_json() -> None:
    """All characters of ASCII and some beyond are written as the API's own JSON writes them, whatever the length."""
    for text in [*map(chr, range(128)), "\u2028é中😀" * 40, "\x01\"\\" * 200, "a" * 1000]:
        made = texts()
        data = memoryview(text.encode())
        with made.writer.turn:
            stand_in = made.add(data)
        assert made.fill(to_json(stand_in)) == to_json(text)


def test_a_generation_tells_stand_ins() -> None:
    """An answer with texts has the tokens, events and end of one without; its texts are the same once filled in."""
    scratch = Scratch(_plain().vocab_size, oblivious.kernels(), sweeps=True)
    wished = _plain().encode('He said: "one\n\ttwo é中😀" and then\n\nUser: more')
    seen = list[list[Any]]()
    for made in (None, texts()):
        request = GenerationRequest([1], 40, Sampling(temperature=0.0), ("\n\nUser:",), texts=made)
        generation, events = Generation(request, _swept(), _plain().vocab_size, 200, scratch), list[Any]()
        for token in wished:
            logits = np.zeros(_plain().vocab_size, np.float32)
            logits[token] = 9
            events += generation.advance(logits).events
            if generation.finished:
                break
        if made is not None:
            assert all(len(each.text) <= 1 for each in events if isinstance(each, Text))
            assert any(each.text >= chr(answers.FIRST) for each in events if isinstance(each, Text))
        fill = (lambda data: data) if made is None else made.fill
        seen.append([fill(to_json(each.text)) if isinstance(each, Text) else each for each in events])
    assert seen[0] == seen[1]
    assert isinstance(seen[0][-1], End)
    assert seen[0][-1].stop == 0


def test_bodies_with_such_characters() -> None:
    """A request may have a character that stands for a text, raw or escaped: then none stands for the answer's."""
    for character in (0xF0000, 0xFFFFD, 0x100000, 0x10FFFD):
        text = f'{{"metadata": {{"a": "{chr(character)}"}}}}'
        assert not may_stand(text.encode())
        high, low = 0xD800 + (character - 0x10000 >> 10), 0xDC00 + (character & 0x3FF)
        for form in (f"\\u{high:04x}\\u{low:04x}", f"\\u{high:04X}\\u{low:04X}"):
            assert not may_stand(text.replace(chr(character), form).encode())
    for harmless in ("é中😀", "\U000e0067", "\\ud83d\\ude00", "\ue000"):
        assert may_stand(f'{{"metadata": {{"a": "{harmless}"}}}}'.encode())


def test_texts_end_with_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is wiped and given back at the end. A token that comes later leaves nothing. Where there is no memory,
    the error says so, and others' texts go on."""
    made = texts()
    swept = made.begin(("zz",), ())
    word = next(iter(_plain().encode(" Rumpelstiltskin")))
    first = swept.push(word)
    parts = list(made._parts)
    assert made.fill(to_json(first)) == to_json(_plain().decode([word]))
    other = chr(answers.FIRST + 7)  # that stands for nothing
    assert (made.fill(to_json(other)), made.missing(other)) == (to_json(other), 0)
    made.close()
    assert made.fill(to_json(first)) == to_json(first)
    assert all(part._pages.closed for part in parts)
    assert swept.push(word) == swept.flush() == ""

    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError

    other = texts()
    with monkeypatch.context() as patched:
        patched.setattr(locked.mmap, "mmap", refuse)
        with pytest.raises(CapacityError, match="no memory"):
            other.begin((), ()).push(word)
    again = other.begin((), ()).push(word)
    assert other.fill(to_json(again)) == to_json(_plain().decode([word]))


def test_no_step_depends_on_a_text(tmp_path: Path) -> None:
    """Both kernels take the same steps for all tokens of one class, and for all texts of one length, and name the same
    lines of memory."""
    pieces = [b"a" * 12, b"\xe4" * 12, b" the one more", b"\x80\xff" * 6, b'"\\' * 6, b"\x01\n" * 6,
              b"12345678 \xf0\x9f\x98", " naïve és ".encode(), b"\xed\xa0\x80" * 4, b""]
    for kernel in ("complete_text", "write_string"):
        tracer, traces, made = StepTracer(oblivious.kernels().address(kernel), tmp_path), set(), texts()
        writer, run = made.writer, oblivious.kernels().function(kernel)
        for data in pieces:
            with writer.turn:
                writer._text.view[:len(data)] = data
                writer._set(COUNT=len(data), LENGTH=16)
                run(writer._call.address)
                with tracer.tracing():
                    run(writer._call.address)
                traces.add(tracer.trace)
                writer.wipe()
        assert len(traces) == 1, kernel


MARKS = ("<think>", "</think>", "<response>", "</response>")
PARTS = (*MARKS, "<thi", "</", "<", "k>", "a", " b", "\n\n", " ", "é中", "\u3000", "\u2028x", "\x85", "\xa0", "\x1c",
         "<<think>", "</think></think>", "Rumpel", "\U000f0001", "😀", "\ufffd", " \u3000 ", "\"\\\x00")


def _story(opened: bool, framed: bool) -> TapeReader:
    marks = ThoughtMarks("x", lambda _: True, "<think>", "</think>", frame=MARKS[2:] if framed else None)

    def program(story: Story) -> Steps[None]:
        yield from story.begin()
        yield from story.text(())

    return TapeReader(Story(marks, opened), program)


@pytest.mark.parametrize("stops", [(), ("Rumpel", "aé", "think> b")])
def test_a_reader_finds_its_marks(stops: Sequence[str]) -> None:
    """Thoughts and frames are found in stand-ins' company as in text, wherever tokens and the answer end."""
    rng = random.Random(8)
    for number in range(examples(300, 20_000)):
        data = "".join(rng.choice(PARTS) for _ in range(rng.randrange(12))).encode()
        opened, framed, cut = (bool(number & bit) for bit in (1, 2, 4))
        data = data[:rng.randrange(len(data) + 1)] if cut else data
        each = number % 3 > 0
        tokens = [_token(byte) for byte in data] if each else _plain().encode(data.decode("utf-8", "ignore"))
        made = texts(_each()[1] if each else _swept(), MARKS if framed else MARKS[:2])
        swept, stream, plain = made.begin(stops, ()), TextStream(_each()[0] if each else _plain()), StopFilter(stops)
        ours, theirs = _story(opened, framed), _story(opened, framed)
        found, wanted = list[Piece](), list[Piece]()
        for token in tokens:
            if not plain.stopped:
                wanted += theirs.push(plain.push(stream.push(token)))
                found += ours.push(swept.push(token))
                assert (swept.stopped, swept.found) == (plain.stopped, plain.found)
        if not plain.stopped:
            wanted += theirs.push(plain.flush())
            found += ours.push(swept.flush())
        ended = plain.stopped or cut
        wanted, found = join(wanted + theirs.finish(cut=ended)), join(found + ours.finish(cut=ended))
        assert [type(each) for each in found] == [type(each) for each in wanted], data
        assert [made.fill(to_json(each.text)) for each in found] == [to_json(each.text) for each in wanted], data
        made.close()


def test_most_formats_are_covered() -> None:
    """Those whose calls begin with words of their own."""
    covered = {form for form, name in ONE_EACH.items() if searched_of(template_of(name), tools=True)}
    assert len(covered) >= 20
    assert not {"harmony", "llama"} & covered


@pytest.mark.parametrize("form", sorted(ONE_EACH))
def test_a_reader_finds_calls(form: str) -> None:
    """Text and thoughts before a call are stand-ins, calls and what follows them are text, wherever the answer ends."""
    template, (answer, opened), rng = template_of(ONE_EACH[form]), _answer(form), random.Random(form)
    searched = searched_of(template, tools=True)
    if searched is None:
        return
    marks, calls = searched
    for number in range(examples(16, 600)):
        said = "".join(rng.choice((*PARTS, *marks)) for _ in range(rng.randrange(6)))
        text = said + answer + "\U000f0000 é\U000f0001" * (number % 2)
        data = text.encode()[:rng.randrange(len(text.encode()) + 1) if number % 4 else None]
        muted, made = number % 3 == 0, AnswerTexts(texts(_each()[1]).writer, marks, calls)
        swept, stream = made.begin((), ()), TextStream(_each()[0])
        ours, theirs = (reader_of(template, TOOLS, opened, muted=muted) for _ in range(2))
        found, wanted = list[Piece](), list[Piece]()
        for byte in data:
            wanted += theirs.push(stream.push(_token(byte)))
            found += ours.push(swept.push(_token(byte)))
        found += ours.push(swept.flush())
        wanted, found = (join(each + reader.finish(cut=number % 4 > 0)) for each, reader in
                         ((wanted, theirs), (found, ours)))
        assert [_filled(made, each) for each in found] == [_filled(None, each) for each in wanted], data
        made.close()


def _filled(made: AnswerTexts | None, piece: Piece) -> tuple[type, bytes]:
    """A piece as JSON, with texts in the place of stand-ins."""
    text = to_json(piece.name if isinstance(piece, Call) else piece.text)
    return type(piece), text if made is None else made.fill(text)


def test_an_answer_takes_what_is_planned() -> None:
    """The most stop strings, marks of thoughts, what waits, and the first text."""
    made = texts(_swept(), MARKS)
    swept = made.begin(("\U0001f600" * MAX_LENGTH,) * MAX_STOPS, ())
    swept.push(next(iter(_plain().encode(" one"))))
    swept.flush()
    searches = [each.table for each in (swept._stops, swept._search)]
    assert swept._memory
    parts = [*made._parts, swept._memory, *(each for each in searches if each)]
    assert sum(part.nbytes for part in parts) <= budget._SWEPT_BYTES
    assert len(parts) == 4
