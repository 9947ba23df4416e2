"""The prose of code and documentation is short and plain: `python -m tests.support.prose --list` names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import idioms, prose

LEFT = {  # offences in code, by idiom
    "one that": 221, "what of": 1, "last word": 119, "is no": 65, "told": 62, "clause": 89, "command for a class": 7,
    "few words": 18,
}


@pytest.fixture(scope="module")
def measured() -> prose.Measured:
    """Every sentence, and every fault."""
    return prose.measure(prose.files())


def _shown(faults: list[prose.Fault]) -> list[str]:
    return [f"{each.path}:{each.line}: {each.rule}: {each.text}" for each in faults]


def test_no_sentence_is_long_and_none_begins_with_a_clause(measured: prose.Measured) -> None:
    """At most 35 words outside of tables, prose within 100 columns, one comment a declaration, no banned opening."""
    assert [] == _shown(measured.faults)


def test_sentences_have_eighteen_words_at_most_on_average(measured: prose.Measured) -> None:
    """Of each kind by itself: docstrings, comments, messages, pages."""
    assert len(measured.sentences) > 10_000
    for kind in ("docstring", "comment", "message", "page"):
        words = [each.words for each in measured.sentences if each.kind == kind]
        assert sum(words) / len(words) <= prose.MEAN_WORDS, kind


def test_pages_have_no_banned_idiom(measured: prose.Measured) -> None:
    """Tables included."""
    assert [] == _shown([each for each in measured.idioms if each.path.endswith(".md")])


@pytest.mark.parametrize("rule", LEFT)
def test_code_has_fewer_banned_idioms(measured: prose.Measured, rule: str) -> None:
    """A bound may fall, and never rise: `python -m tests.support.prose --list` has each place."""
    found = [each for each in measured.idioms if each.rule == rule and not each.path.endswith(".md")]
    assert len(found) <= LEFT[rule], _shown(found)


def test_every_idiom_has_a_bound() -> None:
    """None is counted for nothing."""
    assert {*idioms.PATTERNS, *idioms.DOCSTRINGS} == set(LEFT)


@pytest.mark.parametrize(("text", "rule"), [
    ("It takes the one that fits.", "one that"), ("Give it to those who verify.", "one that"),
    ("This tells what of it is left.", "what of"),
    ("It holds for threads alone.", "last word"), ("It works on a full disk, too.", "last word"),
    ("`x` is no port.", "is no"), ("A fault is told on the console.", "told"), ("What waits is served.", "clause"),
    ("It stops; whoever has it reads it.", "clause"),
])
def test_idioms_are_found(text: str, rule: str) -> None:
    """One sentence for each, as they stood in the project."""
    assert [rule] == list(idioms.of_sentence(text))


@pytest.mark.parametrize("text", [
    "It fits alone in a page.", "There is no key.", "It is no longer than that.", "It is no more than a page.",
    "The client is told how long is left.", "The two cannot be told apart.", "What is a page?", "Too many wait.",
    "The file says what waits.", "One of those files is read.",
])
def test_plain_sentences_are_left(text: str) -> None:
    """Words of the idioms in another use."""
    assert [] == list(idioms.of_sentence(text))


@pytest.mark.parametrize(("source", "rule"), [
    ('class A:\n    """Check the content of a batch."""\n', "command for a class"),
    ('class A:\n    """Put `new` in place of the old."""\n', "command for a class"),
    ('class A:\n    """A check of a batch."""\n', None), ('class A:\n    """Free text of some characters."""\n', None),
    ('def f():\n    """Of both tiles."""\n', "few words"), ('def f():\n    """Always."""\n', "few words"),
    ('def f():\n    """Close the disk."""\n', None), ('def f():\n    """The body."""\n', None),
])
def test_docstrings_by_what_they_document(tmp_path: Path, source: str, rule: str | None) -> None:
    """Classes are noun phrases, functions are commands or noun phrases."""
    path = tmp_path / "module.py"
    path.write_text(source)
    assert [rule] * (rule is not None) == [each.rule for each in prose.measure([path], tmp_path).idioms]


def test_cells_of_tables_are_read(tmp_path: Path) -> None:
    """With their heads, where a clause may stand. An escaped bar in a span of code ends no cell."""
    path = tmp_path / "page.md"
    path.write_text("| what it does | `a \\| b` |\n|---|---|\n| it is no port | whoever asks gets it |\n")
    assert ["is no", "clause"] == [each.rule for each in prose.measure([path], tmp_path).idioms]


@pytest.mark.parametrize(("text", "sentences"), [
    ("One. Two, e.g. this; three? Yes.", 3),
    ("Call `a. b` and go on. Then stop.", 2),
    ("It is 0.5 of all (see No. 3).", 1),
    ("A list:", 1),
])
def test_sentences_are_split(text: str, sentences: int) -> None:
    """At full stops that end a sentence."""
    assert sentences == len(prose.split(text))


@pytest.mark.parametrize(("source", "rule"), [
    ('"""What waits is served."""\n', "opening"),
    ('"""See there."""\n', "first line"),
    ("A = 1  # at most; and\nB = 2  # beside it\n", "comment over several declarations"),
    (f'"""{"word " * 36}."""\n', "36 words"),
    (f"# {'long ' * 20}\n", "columns"),
])
def test_faults_are_found(tmp_path: Path, source: str, rule: str) -> None:
    """Each rule finds its fault."""
    path = tmp_path / "module.py"
    path.write_text(source)
    assert rule in {each.rule for each in prose.measure([path], tmp_path).faults}
