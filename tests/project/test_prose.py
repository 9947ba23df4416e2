"""The prose of code and documentation is short: `python -m tests.support.prose --list` names what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import prose


@pytest.fixture(scope="module")
def measured() -> tuple[list[prose.Sentence], list[prose.Fault]]:
    """Every sentence, and every fault."""
    return prose.measure(prose.files())


def test_no_sentence_is_long_and_none_begins_with_a_clause(
        measured: tuple[list[prose.Sentence], list[prose.Fault]]) -> None:
    """At most 35 words outside of tables, prose within 100 columns, one comment a declaration, no banned opening."""
    assert [] == [f"{each.path}:{each.line}: {each.rule}: {each.text}" for each in measured[1]]


def test_sentences_have_eighteen_words_at_most_on_average(
        measured: tuple[list[prose.Sentence], list[prose.Fault]]) -> None:
    """Of each kind by itself: docstrings, comments, messages, pages."""
    assert len(measured[0]) > 10_000
    for kind in ("docstring", "comment", "message", "page"):
        words = [each.words for each in measured[0] if each.kind == kind]
        assert sum(words) / len(words) <= prose.MEAN_WORDS, kind


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
    assert rule in {each.rule for each in prose.measure([path], tmp_path)[1]}
