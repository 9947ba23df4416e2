"""A model's vocabulary, as llguidance wants it: the bytes of each token, and which are no text."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, Protocol

from llguidance._lib import LLTokenizer

from appliance.errors import ConstraintError

AHEAD = 2048
"""Bytes of a forced text that become tokens at once: it may be long, is cut again for each token, and one CPU does it
while all others wait for the interpreter."""


class TokenTexts(Protocol):
    """The methods of a tokenizer that constraints call."""

    vocab_size: int

    @property
    def eot_ids(self) -> Collection[int]:
        """Tokens that end an answer."""
        ...

    def pieces(self) -> list[tuple[bytes, bool]]:
        """The bytes of every token, and whether it is a control token, which is no text."""

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Tokens of a text; `inside`: it continues another."""


class _Wrapped:
    """A tokenizer by the names that llguidance reads. It calls the object with a text that a
    grammar forces, to find the tokens that the model would expect for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, words: TokenTexts) -> None:
        ends, pieces = sorted(words.eot_ids), words.pieces()
        self._words = words
        self.tokens = [piece for piece, _ in pieces]
        self.special_token_ids = [token for token, (_, special) in enumerate(pieces) if special]
        self.special_token_ids += [token for token in ends if not pieces[token][1]]
        self.eos_token_id = ends[0]
        self._no_text = frozenset(self.special_token_ids)

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        """The first token with each piece of text. Few vocabularies need it."""
        return {self.tokens[token]: token for token in range(self._words.vocab_size - 1, -1, -1)
                if token not in self._no_text}

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text: as the tokenizer has them, if they have the very bytes of it, or
        else any that have. Compiled code calls it, and relies on the bytes. Of a long text it gets
        the tokens of its begin, which do not depend on what follows."""
        if len(text) > 2 * AHEAD:
            return self._begin(self._whole(text[:2 * AHEAD]))
        return self._whole(text)

    def _whole(self, text: str) -> list[int]:
        data = text.encode("utf-8", "replace")
        try:
            tokens = self._words.encode(text, inside=True)
        except Exception:  # noqa: BLE001  compiled code has no use for it
            return self._spelled(data)
        # A vocabulary may end answers by a token that is a word, or write a space by three bytes.
        same = self._no_text.isdisjoint(tokens) and b"".join(map(self.tokens.__getitem__, tokens)) == data
        return tokens if same else self._spelled(data)

    def _begin(self, tokens: list[int]) -> list[int]:
        """The first tokens, with `AHEAD` bytes or a little more."""
        size = 0
        for count, token in enumerate(tokens):
            if size >= AHEAD:
                return tokens[:count]
            size += len(self.tokens[token])
        return tokens

    def _spelled(self, data: bytes) -> list[int]:
        """Tokens that have the bytes of a text, the longest first. A byte that no token has is left
        out: the answer, which would need it, fails then."""
        found, at, longest = list[int](), 0, max(map(len, self._by_bytes), default=1)
        while at < len(data):
            for size in range(min(longest, len(data) - at), 0, -1):
                token = self._by_bytes.get(data[at:at + size])
                if token is not None:
                    found.append(token)
                    break
            else:
                size = 1
            at += size
        return found


def load(words: TokenTexts) -> Any:
    """llguidance's form of a vocabulary: some hundred bytes for each token, half a second for
    150,000. ConstraintError for a vocabulary without a token that ends an answer."""
    if not words.eot_ids:
        raise ConstraintError("the model's vocabulary has no token that ends an answer", code="constraint-vocabulary",
                              hint="a constrained answer could not end; use another model")
    wrapped = _Wrapped(words)
    return LLTokenizer(wrapped, eos_token=sorted(words.eot_ids))  # type: ignore[arg-type]


def controls(words: TokenTexts) -> dict[str, int]:
    """Control tokens by their text."""
    return {piece.decode("utf-8", "replace"): token for token, (piece, special) in enumerate(words.pieces())
            if special}
