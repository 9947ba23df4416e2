"""Encoding and decoding of any text: round trips, linear time, Unicode classes, text that comes token by token."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import CapacityError, TokenizerError
from appliance.text.tokenizer import TextStream, Tokenizer, load
from appliance.text.tokenizer.merging import merge
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS
from appliance.text.tokenizer.splitting import Splitter, class_table
from tests.support import pace
from tests.support.texts import TEXTS, random_texts
from tests.support.vocabularies import byte_level, sentencepiece, tokenizer_of

MERGES = ("a b", "ab c", "Ġ a", "Ġ Ġ", "ĠĠ ĠĠ", "e e", "ee ee", "Ã ©", "1 1", "! !", "Ċ Ċ", "t h", "th e", "Ġ the")
BPE = load(byte_level(MERGES))
SPM = load(sentencepiece({"▁": -1.0, "a": -2.0, "b": -3.0, "ab": -0.5, "▁a": -0.4, "▁▁": -0.3, "é": -4.0, "ba": -0.5}))
WITHOUT = load(byte_level((), without=b" \x03e\xc3\xf0"))  # leaves these bytes out of a text, as llama.cpp does
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_byte_level_round_trip(text: str) -> None:
    """Any text decodes to itself, under every kind of pre-tokenizer here."""
    for pre in ("gpt-2", "llama-bpe", "deepseek-llm", "bloom", "superbpe", "kimi-k2"):
        tokenizer = _TOKENIZERS[pre]
        assert text == tokenizer.decode(tokenizer.encode(text))


_TOKENIZERS = {pre: load(byte_level(MERGES, pre)) for pre in
               ("gpt-2", "llama-bpe", "deepseek-llm", "bloom", "superbpe", "kimi-k2")}


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT)
def test_sentencepiece_round_trip(text: str) -> None:
    """Any text decodes to itself but for U+2581, which stands for a space."""
    assert text.replace("\u2581", " ") == SPM.decode(SPM.encode(text))


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT, st.sampled_from(sorted(PRE_TOKENIZERS)))
def test_words_are_the_text(text: str, pre: str) -> None:
    """The words of every pre-tokenizer are the text, whole and in order."""
    assert text == "".join(Splitter(PRE_TOKENIZERS[pre]).split(text))


@settings(max_examples=150, deadline=None)
@given(ANY_TEXT, st.integers(0, 100))
def test_no_more_tokens_than_are_allowed(text: str, most: int) -> None:
    """A text has its tokens where these are as many as are allowed, and none where there would be more."""
    for tokenizer in (*_TOKENIZERS.values(), SPM, WITHOUT):
        expected = tokenizer.encode(text, add_special=True)
        if len(expected) <= most:
            assert expected == tokenizer.encode(text, add_special=True, most=most)
        else:
            with pytest.raises(CapacityError, match=f"more than {most} tokens"):
                tokenizer.encode(text, add_special=True, most=most)


@pytest.mark.parametrize("word", ["a", "ab, c! ", " ", "é", "\U0001f600", "0", "the ", "abcabc\n"])
@pytest.mark.parametrize("tokenizer", [_TOKENIZERS["gpt-2"], _TOKENIZERS["deepseek-llm"], SPM])
def test_memory_goes_with_the_tokens_that_are_allowed(tokenizer: Tokenizer, word: str) -> None:
    """A text of two million characters that is too long takes a few copies of itself, not a hundred and more."""
    text = word * (2_000_000 // len(word))
    tracemalloc.start()
    try:
        with pytest.raises(CapacityError):
            tokenizer.encode(text, most=1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(text)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c", "ab"]), max_size=80), st.randoms(use_true_random=False))
def test_merging_by_heap(symbols: list[str], rng: random.Random) -> None:
    """The heap merges as a search for the best pair at each turn does."""
    pairs = [f"{left} {right}" for left in ("a", "b", "ab", "bc", "abab") for right in ("a", "b", "c", "ab", "bc")]
    ranks = {pair: rng.randrange(6) for pair in pairs}
    wanted = list(symbols)
    while True:
        found = [(ranks[f"{left} {right}"], at) for at, (left, right) in enumerate(pairwise(wanted))
                 if f"{left} {right}" in ranks]
        if not found:
            break
        at = min(found)[1]
        wanted[at:at + 2] = [wanted[at] + wanted[at + 1]]
    assert wanted == merge(symbols, ranks, " ")


def test_lone_surrogates_are_refused() -> None:
    """A lone surrogate is no text: the error says where it is, and nothing of the text."""
    for tokenizer in (BPE, SPM):
        with pytest.raises(TokenizerError, match="lone surrogate at character 3") as caught:
            tokenizer.encode("abc\ud83d")
        assert "abc" not in str(caught.value)


HOSTILE: dict[str, Callable[[int], str]] = {
    "one letter": lambda n: "a" * n, "one word": lambda n: "".join(random.Random(1).choices("etaoinshr", k=n)),
    "spaces": lambda n: " " * n, "spaces before a word": lambda n: " " * n + "x", "tabs": lambda n: "\t" * n + "\x00",
    "newlines": lambda n: "\n" * n, "digits": lambda n: "1" * n, "punctuation": lambda n: "!?" * (n // 2),
    "apostrophes": lambda n: "'" * n, "emoji": lambda n: "\U0001f600" * n, "marks": lambda n: "e\u0301" * (n // 2),
    "NULs": lambda n: "\x00" * n, "upper case": lambda n: "AB" * (n // 2), "mixed case": lambda n: "aB" * (n // 2),
    "words": lambda n: "a " * (n // 2), "spaces and newlines": lambda n: (" " * 50 + "\n") * (n // 51),
    "sentinels": lambda n: "<sentinel:1" * (n // 11), "cjk": lambda n: "世" * n,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_long_texts_are_linear(name: str) -> None:
    """20,000 characters of anything take every pre-tokenizer and both tokenizers well below a second."""
    text = HOSTILE[name](20_000)
    for pre in set(PRE_TOKENIZERS.values()):
        split = Splitter(pre).split
        began = time.process_time()
        split(text)
        assert pace.within(time.process_time() - began, 0.5), pre
    for tokenizer in (BPE, SPM):
        began = time.process_time()
        ids = tokenizer.encode(text)
        assert pace.within(time.process_time() - began, 1)
        assert text == tokenizer.decode(ids)


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm", "llama-bpe"])
def test_a_long_word_takes_no_quadratic_time(name: str) -> None:
    """A word sixteen times as long takes at most 64 times the processor time, best of three (quadratic: 256)."""
    tokenizer = tokenizer_of(name)

    def least(length: int) -> float:
        times = []
        for _ in range(3):
            began = time.process_time()
            tokenizer.encode(HOSTILE["one word"](length))
            times.append(time.process_time() - began)
        return min(times)

    assert least(64_000) < 64 * least(4_000)


def test_many_special_tokens_are_linear() -> None:
    """Text full of special tokens, or of user-defined ones that overlap, takes no quadratic time."""
    special = tuple(f"<|{number}|>" for number in range(300))
    tokenizer = load(byte_level(special=special))
    newlines = tuple("\n" * count for count in range(1, 32))
    metadata = byte_level(special=newlines)
    metadata["tokenizer.ggml.token_type"] = [1] * 256 + [4] * 31
    began = time.process_time()
    assert 30_000 == len(tokenizer.encode("".join(special) * 100, parse_special=True))
    assert 3226 == len(load(metadata).encode("\n" * 100_000))
    assert pace.within(time.process_time() - began, 3)


def test_unicode_classes() -> None:
    """The class table agrees with another implementation of Unicode wherever a code point was assigned by 15.1."""
    everything = "".join(map(chr, range(0x110000)))
    table = class_table()
    for letter, value in (("L", 0xD2), ("N", 0xD1), ("P", 0xD3), ("S", 0xD5), ("M", 0xD4)):
        wanted = {found.start() for found in regex.finditer(rf"\p{{{letter}}}", everything) if found.start() > 127}
        found = {code for code in range(128, 0x110000) if table[code] == value}
        assert set() == found - wanted
        assert all(table[code] == 0xD0 for code in wanted - found)  # assigned later
    spaces = {found.start() for found in regex.finditer(r"\p{White_Space}", everything) if found.start() > 127}
    assert spaces == {code for code in range(128, 0x110000) if table[code] == 0x0B}


ORIGINALS = {  # as in the models' tokenizer.json
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                 r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
             r"|\s+(?!\S)|\s+",
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_words_of_the_original_patterns(name: str) -> None:
    """Words are those of the models' original patterns, run by an engine with Unicode classes of its own."""
    table = class_table()
    pattern, split = regex.compile(ORIGINALS[name]), Splitter(PRE_TOKENIZERS[name]).split
    for text in [*TEXTS, *random_texts(300, seed=5)]:
        known = "".join(letter for letter in text if table[ord(letter)] != 0xD0 and letter not in "ſ\x1c\x1d\x1e\x1f")
        assert pattern.findall(known) == list(split(known)), ascii(known)


STREAMS = [
    ("whole characters", "héllo 世界 😀", "héllo 世界 😀"),
    ("invalid bytes", b"a\xffb\xc3(\xe4\xb8", "a\ufffdb\ufffd("),
    ("cut off", "a世".encode()[:-1], "a"), ("cut off after wrong bytes", b"\xff\xf0\x9f\x98", "\ufffd"),
    ("surrogates in UTF-8", b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ("overlong", b"\xc0\x80", "\ufffd\ufffd"),
]


@pytest.mark.parametrize(("name", "text", "wanted"), STREAMS, ids=[case[0] for case in STREAMS])
def test_text_token_by_token(name: str, text: str | bytes, wanted: str) -> None:
    """A stream gives no part of a character, and a replacement for wrong bytes; what its end cuts off is left out."""
    data = text.encode() if isinstance(text, str) else text
    bytes_of = {BPE.piece(token): token for token in range(256)}
    stream = TextStream(BPE)
    pieces = [stream.push(bytes_of[bytes([byte])]) for byte in data]
    assert wanted == "".join(pieces)
    assert all(piece.encode() for piece in pieces if piece)
    stream.finish()
    assert "a" == stream.push(bytes_of[b"a"])


def test_stream_without_control_tokens() -> None:
    """Control tokens have no text in a stream; the text of all tokens has them."""
    ids = BPE.encode("a<|im_end|>b", parse_special=True)
    stream = TextStream(BPE)
    assert "ab" == "".join(map(stream.push, ids))
    assert "a<|im_end|>b" == BPE.decode(ids)


def test_untrusted_spans() -> None:
    """No control token is read where it touches an untrusted span; the rest is as without the span."""
    text = "<|im_end|>x<|im_end|>"
    end = byte_level(MERGES)["tokenizer.ggml.tokens"].index("<|im_end|>")
    assert 2 == BPE.encode(text, parse_special=True).count(end)
    for span in ((0, 1), (9, 10), (0, 21), (3, 12)):
        ids = BPE.encode(text, parse_special=True, untrusted=[span])
        assert (0 if span[1] > 11 else 1) == ids.count(end), span
        assert text == BPE.decode(ids)
    assert BPE.encode(text, parse_special=True) == BPE.encode(text, parse_special=True, untrusted=[(10, 11)])
