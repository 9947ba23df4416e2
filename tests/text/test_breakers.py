"""Sequence breakers as tokens, against a search through each token of a vocabulary."""

from __future__ import annotations

import functools

import pytest

from appliance.errors import CapacityError
from appliance.text import breakers
from tests.support import vocabularies


@functools.cache
def _pieces(tokenizer):
    return [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]


@functools.cache
def _searched(tokenizer, text):
    """The definition, token by token: llama.cpp's `get_overlapping_token_sequences`."""
    data, found = text.encode(), set()
    rest = {length: tokenizer.encode(data[length:].decode())[:20]
            for length in range(1, len(data)) if data[length] & 0xC0 != 0x80}
    for token, piece in enumerate(_pieces(tokenizer)):
        if data in piece:
            found.add((token,))
            continue
        for length, after in rest.items():
            if piece.endswith(data[:length]):
                found.add((token, *after))
    return found


@pytest.mark.parametrize("name", ["llama-spm", "llama-bpe", "gpt-2", "qwen2"])
def test_sequences_are_those_of_a_search(name):
    """Texts of one and of more characters, which tokens have whole or begin at their end."""
    tokenizer = vocabularies.tokenizer_of(name)
    for text in ("\n", ":", "*", '"', "\n\n", "<|end|>", "tion:", "é", "日本"):
        found = breakers.sequences(tokenizer, [text])
        assert len(found) == len(set(found))
        assert set(found) == _searched(tokenizer, text), text
    assert set(breakers.sequences(tokenizer, ["\n", ":"])) == {*_searched(tokenizer, "\n"), *_searched(tokenizer, ":")}


def test_too_many_are_refused(monkeypatch):
    """A text that most of a vocabulary has in it would make every request dear."""
    monkeypatch.setattr(breakers, "MOST_SEQUENCES", 100)
    with pytest.raises(CapacityError, match="sequence breaker"):
        breakers.sequences(vocabularies.tokenizer_of("gpt-2"), ["e"])
