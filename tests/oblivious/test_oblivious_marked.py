"""Tokenizers of characters and marks for spaces (SentencePiece, Gemma 4) in oblivious form: the plain ones' tokens."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from appliance.errors import CapacityError, UnsupportedError
from appliance.text.tokenizer import Tokenizer
from tests.support.extent import examples
from tests.support.oblivious import drawn_texts, forms
from tests.support.texts import TEXTS, around, random_texts
from tests.support.vocabularies import metadata_of, sentencepiece

LETTERS = ("a", "b", "\u2581", "é", "\u4e00", "\U0001f600")
PARTS = ("a", "b", "ab", "ba", " ", "  ", "\u2581", "é", "è", "\u4e00", "\u4e01", "\U0001f600", "\U0001f601", "z", "\n",
         "<s>", "</s>", "<mark>", "\x00")


def _words(rng: random.Random, letters: tuple[str, ...], count: int) -> dict[str, float]:
    """A vocabulary where many splits make the same token, with a score for each."""
    texts = [*letters]
    for _ in range(count):
        made = rng.choice(texts) + rng.choice(texts)
        if made not in texts and len(made) < 7:
            texts.append(made)
    for letter in rng.sample(letters, 2):  # tokens have it, it is none
        if letter != "\u2581":
            texts.remove(letter)
    scores = rng.sample(range(len(texts)), len(texts))
    return {text: -float(score) for text, score in zip(texts, scores, strict=True)}


def _marked(rng: random.Random, letters: tuple[str, ...] = LETTERS, **more: Any) -> dict[str, Any]:
    kinds = sentencepiece(_words(rng, letters, 40), **more)
    return kinds | {"tokenizer.ggml.tokens": [*kinds["tokenizer.ggml.tokens"], "<mark>"],
                    "tokenizer.ggml.scores": [*kinds["tokenizer.ggml.scores"], -1000.0],
                    "tokenizer.ggml.token_type": [*kinds["tokenizer.ggml.token_type"], 4]}


def _compare(plain: Tokenizer, swept: Tokenizer, text: str, **how: Any) -> None:
    assert plain.encode(text, **how) == swept.encode(text, **how), (text, how)


@pytest.mark.parametrize("number", range(8))
def test_small_vocabularies(number: int) -> None:
    """Of drawn tokens and scores: with a space put before texts and without, inside of a text, and with special
    tokens."""
    rng = random.Random(number)
    plain, swept = forms(_marked(rng, **{"tokenizer.ggml.add_space_prefix": number % 2 == 0}))
    for _ in range(examples(100, 3000)):
        text = "".join(rng.choice(PARTS) for _ in range(rng.randint(0, 20)))
        cuts = sorted(rng.sample(range(len(text) + 1), 2)) if text else [0, 0]
        for parse, inside in itertools.product((False, True), repeat=2):
            _compare(plain, swept, text, parse_special=parse, inside=inside, untrusted=[(cuts[0], cuts[1])])


def test_marks_within_tokens() -> None:
    """A vocabulary whose tokens go on after a mark cuts no words."""
    rng = random.Random(5)
    plain, swept = forms(sentencepiece({"\u2581": -9.0, "a": -8.0, "b": -7.0, "a\u2581": -3.0, "a\u2581b": -1.0,
                                        "\u2581b": -2.0, "\u2581\u2581": -4.0}))
    for _ in range(200):
        _compare(plain, swept, "".join(rng.choice(("a", "b", " ")) for _ in range(rng.randint(0, 25))))


def _listed(merges: list[str], more: tuple[str, ...] = ()) -> dict[str, Any]:
    """A vocabulary as Gemma 4's: merges by a list."""
    texts = dict.fromkeys([*(part for merge in merges for part in merge.split(" ")),
                           *(merge.replace(" ", "") for merge in merges), "\u2581", *more])
    kinds = sentencepiece(dict.fromkeys(texts, 0.0))
    return kinds | {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.merges": merges, "tokenizer.ggml.bos_token_id": 1}


def test_merges_by_a_list() -> None:
    """Words end at newlines, runs of which may be tokens of their own."""
    rng, merges = random.Random(3), ["a b", "\u2581 a", "\u2581a b", "b \u2581", "\u2581 \u2581", "\n \n", "é a", "é b",
                                     "\u4e00 é", "ab ab", "b a", "b ab"]
    plain, swept = forms(_listed(merges, ("\n\n\n", "\n\n\n\n\n")))
    for _ in range(examples(300, 10_000)):
        _compare(plain, swept, "".join(rng.choice((*PARTS, "\n", "\n\n", "\n\n\n")) for _ in range(rng.randint(0, 30))),
                 parse_special=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-spm", "phi-3", pytest.param("gemma-4", marks=pytest.mark.soak)])
def test_published_vocabularies(name: str) -> None:
    """300 drawn texts of each, 100,000 in the soak, of Gemma 4 there alone; and all hard ones, but for 600 spaces
    in a row (see `test_long_runs`)."""
    plain, swept = forms(metadata_of(name))
    count = examples(300, 100_000)
    names = [plain.token_text(token) for token in range(3, 12)]
    hard = [text for text in TEXTS if " " * 600 not in text]
    for text in [*hard, "".join(hard), *random_texts(count * 9 // 10, 3), *drawn_texts(count // 10, 240, 3),
                 *around(names)[:300]]:
        _compare(plain, swept, text, parse_special=True)


def test_runs_of_one_score() -> None:
    """Runs of spaces whose tokens have one score, the worst, merge after all else and from the left: Llama 2's."""
    words = {"\u2581": -1.0, "a": -2.0, "b": -3.0, "\u2581a": -4.0, "ab": -5.0, "\u2581ab": -6.0}
    plain, swept = forms(sentencepiece(words | {"\u2581" * count: -1e9 for count in range(2, 8)}))
    rng = random.Random(9)
    for _ in range(300):
        parts = ("a", "b", " " * rng.randint(1, 20), "\u2581", "</s>")
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 9)))
        _compare(plain, swept, text, parse_special=True)


def test_long_runs() -> None:
    """A text is refused by name where too many merges go one after the other."""
    plain, swept = forms(_listed([f"a{'b' * count} b" for count in range(300)]))
    _compare(plain, swept, "a" + "b" * 100)
    with pytest.raises(CapacityError, match="too many merges"):
        swept.encode("a" + "b" * 299)


def test_not_covered() -> None:
    """Two tokens of one score, no token for a space, and a special token of one byte are refused by name."""
    for words, more, said in (({"\u2581": -1.0, "a": -2.0, "b": -3.0, "ab": -4.0, "ba": -4.0}, {}, "the same score"),
                              ({"a": -2.0, "b": -3.0, "ab": -4.0}, {}, "no token for a space")):
        with pytest.raises(UnsupportedError, match=said):
            forms(sentencepiece(words, **more))
    kinds = sentencepiece({"\u2581": -1.0, "~": -2.0})
    kinds["tokenizer.ggml.token_type"][-1] = 3
    with pytest.raises(UnsupportedError, match="'~' has one byte"):
        forms(kinds)
