"""Looks at texts, against Python's `re` and what redaction does to the texts themselves."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.detectors import table
from appliance.detectors.folding import Folded
from appliance.detectors.looks import WINDOW, Looks
from appliance.detectors.stream import Detection
from appliance.matching import search
from appliance.oblivious import AnswerTexts, Sweeps
from appliance.service.admission.redaction import Redactor, Rule, Substitution, redact
from appliance.service.delivery.standing import Standing, StandingRedactor
from tests.support import oblivious
from tests.support.extent import WHOLE, examples
from tests.support.page_traces import PageTracer
from tests.support.step_traces import StepTracer

PATTERNS = (r"\bproject-x\b", r"(?i)codename\s{1,9}[a-z]{3,9}", r"[0-9]{3}-\d{2,4}", r"(?:ab|c){2,9}d", r"a.{0,40}?z",
            r"[^\W\d]{12,40}", "é中", r"\Bxx\b", r"\s{3}", "\U0001f600{1,3}")
PLACED = (r"^so\b", r"end$", r"(?m)^line$", r"\A[a-z]{3}\Z")
SET = Path(__file__).parents[1] / "detectors/labelled.jsonl.gz"
WORDS = ["project-x", "project-xy", "Codename  zebra", "123-45", "\uff11\uff12\uff13-\uff14\uff15", "ababcd", "abc",
         "a", "z", "internationalise", "é中", "xx", "   ", "\n", "😀", "so", "end", "line", " ", ". ", "555", "-",
         "hello", "½", "\u200d", "mail", "bob@mail.example.org", "+1 555 234 5678", "password: hunter22",
         "4111 1111 1111 1111",
         "ß", "\u2028", "中文", "\u2014"]
"""Of these, some are matched, some nearly."""


@cache
def looks(*patterns: str, detectors: bool = False) -> Looks:
    return Looks([row.expression for row in table.DETECTORS] if detectors else [], patterns, oblivious.kernels())


@cache
def rules(*patterns: str, detectors: bool = False) -> tuple[Rule, ...]:
    own = tuple(Substitution.compile(each, each, "[gone]") for each in patterns)
    return (Detection(table.DETECTORS, oblivious.kernels()), *own) if detectors else own


def finds(look: Looks, text: str) -> bool:
    return look.finds(memoryview(text.encode()))


TEXTS = st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=12).map("".join)


@given(TEXTS)
@settings(max_examples=examples(300, 5000), deadline=None)
def test_a_pattern_is_found_where_python_finds_it(text: str) -> None:
    """No more and no less, whatever characters a text has."""
    text = text.encode("utf-8", "ignore").decode()
    assert any(re.search(each, text) for each in PATTERNS) == finds(looks(*PATTERNS), text)


@given(TEXTS)
@settings(max_examples=examples(100, 5000), deadline=None)
def test_places_are_found_anywhere(text: str) -> None:
    """An expression with `^` or `$` is found at least where Python finds it."""
    text = text.encode("utf-8", "ignore").decode()
    assert finds(looks(*PLACED), text) or not any(re.search(each, text) for each in PLACED)
    assert finds(looks(PLACED[3]), "a name of more")


@given(TEXTS)
@settings(max_examples=examples(200, 5000), deadline=None)
def test_candidates_are_found_in_the_folded_text(text: str) -> None:
    """Those of all detectors; and each character that does not fold to one."""
    text = text.encode("utf-8", "ignore").decode()
    folded = Folded(text).text
    wanted = any(re.search(row.expression, folded) for row in table.DETECTORS)
    assert (wanted or any(len(Folded(each).text) != 1 for each in text)) == finds(looks(detectors=True), text)


def test_what_detectors_find_is_found() -> None:
    """No text of the labelled set is left alone that redaction changes."""
    lines = gzip.decompress(SET.read_bytes()).splitlines()
    texts = [text for line in lines for text in _texts_of(json.loads(line))]
    changed = 0
    for text in random.Random(3).sample(texts, len(texts) if WHOLE else 400):
        if redact(rules(detectors=True), text) != text:
            changed += 1
            assert finds(looks(detectors=True), text), text
    assert changed > 20


def _texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in items for text in _texts_of(each)]


@pytest.mark.parametrize("place", [0, WINDOW // 2 - 4, WINDOW - 9, WINDOW, 2 * WINDOW - 5, 3 * WINDOW + 1])
def test_long_texts_are_looked_at_in_windows(place: int) -> None:
    """A match is found across their borders, also between characters of several bytes."""
    for filler in ("x", "é", "中"):
        text = filler * (place // len(filler.encode())) + " project-x " + filler * WINDOW
        assert finds(looks(*PATTERNS[:1]), text)
        assert not finds(looks(*PATTERNS[:1]), text.replace("project-x", "project-z"))


def _streamed(texts: AnswerTexts, redactor: StandingRedactor, pieces: Sequence[str]) -> tuple[str, list[str]]:
    """What leaves in all, with each piece as a stand-in."""
    told = list[str]()
    for piece in pieces:
        with texts.writer.turn:
            stand_in = texts.add(memoryview(piece.encode()))
        told.append(redactor.feed(stand_in))
    told.append(redactor.finish())
    memory, sizes = texts.copy("".join(told))
    return str(memory.view[:sum(sizes)], "utf-8"), told


def _standing(*patterns: str, detectors: bool) -> Standing:
    sweeping = oblivious.both()[1].sweeping
    assert isinstance(sweeping, Sweeps)
    return Standing(rules(*patterns, detectors=detectors), looks(*patterns, detectors=detectors),
                    AnswerTexts(sweeping.writer, kept=True))


@given(st.data(), st.booleans())
@settings(max_examples=examples(60, 5000), deadline=None)
def test_pieces_add_up_to_the_redacted_whole(data: Any, detectors: bool) -> None:
    """However a text is cut, and whichever of its pieces a rule changes."""
    text = data.draw(TEXTS).encode("utf-8", "ignore").decode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=9)) | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(cuts)]
    standing = _standing(*PATTERNS, *PLACED, detectors=detectors)
    wanted = Redactor(standing.rules)
    assert "".join([*map(wanted.feed, pieces), wanted.finish()]) == redact(standing.rules, text)
    try:
        assert redact(standing.rules, text) == _streamed(standing.texts, StandingRedactor(standing), pieces)[0]
    finally:
        standing.texts.close()


def test_a_text_that_no_rule_changes_stays_in_its_place() -> None:
    """It leaves as stand-ins, soon after it came; a redacted one is Python's from its beginning on."""
    standing = _standing(*PATTERNS[:4], detectors=True)
    pieces = re.findall(r"\S+ ", "this is how a text of prose goes on and on until it ends here ")
    found, told = _streamed(standing.texts, StandingRedactor(standing), pieces)
    assert "".join(pieces) == found
    assert not any(each.isascii() for each in told if each)
    assert sum(map(bool, told)) > len(pieces) // 2
    more = ["mail bob@", "mail.example.org", " ok"]
    found, told = _streamed(standing.texts, StandingRedactor(standing), [*pieces, *more])
    assert "".join(pieces) + "mail [email] ok" == found
    assert "[email]" in "".join(told)
    standing.texts.close()


def _parts(look: Looks) -> list[tuple[int, int]]:
    """The memory of a look: what comes of a text, all tables, the kernel's streams."""
    memory = look._room._memory
    tables = [each._pages for one in look._spellings for each in (one._page_of, one._row_of, *one._rows)]
    streams = search._scratch._blocks["streams"][0]
    start, end = -(-streams.address // 4096) * 4096, (streams.address + streams.nbytes) // 4096 * 4096
    return [(memory.address, memory.nbytes), (start, end - start),
            *((each.ctypes.data, each.nbytes) for each in tables)]


@pytest.mark.slow
def test_looks_have_one_trace(tmp_path: Path) -> None:
    """Texts of a class that no rule changes: prose, code, scripts, white space, signs."""
    look, count = looks(*PATTERNS[:3], detectors=True), 2000 if WHOLE else 60
    kept = [text for text in oblivious.drawn_texts(6 * count, 256, 5) if not finds(look, text)][:count]
    assert count == len(kept)
    tracer, traces = PageTracer(_parts(look), tmp_path, 4), set()
    for text in kept:
        data = memoryview(text.encode())
        with tracer.tracing():
            look.finds(data)
        traces.add(tracer.pages)
    assert 1 == len(traces)


@pytest.mark.slow
def test_looks_have_the_same_steps(tmp_path: Path) -> None:
    """The kernel writes the stream of each class, and takes all turns of a loop, whatever a text has. It names the same
    lines of memory, but for what a few instructions load lane by lane: nobody sees their lines."""
    look, traces = looks(r"(?:ab|c){2,5}d"), set()
    (spelling,), size = look._spellings, 64
    tracer = StepTracer(oblivious.kernels().address("find_spans"), tmp_path)
    for text in ("x" * 60, "abcabcabcababababcccc".ljust(60, "c"), "d" * 60, "é" * 60):
        count = look._read(memoryview(text.encode()), 2 * size)
        spelling.classify(look._room, size)
        with tracer.tracing():
            assert [] == list(spelling.places[0].spans(look._text[:count]))
        traces.add((tracer.steps.tobytes(), tracer.lines))
        look._room.wipe(2 * size)
    assert 1 == len(traces)
