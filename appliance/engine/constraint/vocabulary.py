"""A model's vocabulary, as llguidance wants it: the bytes of each token, and which are no text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from llguidance._lib import LLTokenizer

from appliance.errors import ConstraintError


class Words(Protocol):
    """The methods of a tokenizer that constraints call."""

    vocab_size: int

    @property
    def eot_ids(self) -> Collection[int]:
        """Tokens that end an answer."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token, which is no text."""

    def encode(self, text: str, *, inside: bool = False) -> list[int]:
        """Tokens of a text; `inside`: it continues another."""


class _Wrapped:
    """A tokenizer by the names that llguidance reads. It calls the object with a text that a
    grammar forces, to find the tokens that the model would expect for it."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, words: Words) -> None:
        ends = sorted(words.eot_ids)
        self._words = words
        self.tokens = [words.piece(token) for token in range(words.vocab_size)]
        self.special_token_ids = [token for token in range(words.vocab_size) if words.is_special(token)]
        self.special_token_ids += [token for token in ends if not words.is_special(token)]
        self.eos_token_id = ends[0]
        self._no_text = frozenset(self.special_token_ids)

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text; none where they are not the same text, or where anything fails: an
        exception would end the process's trust in this answer, and no answer needs the tokens."""
        try:
            tokens = self._words.encode(text, inside=True)
            if not self._no_text.isdisjoint(tokens):  # a vocabulary may end answers by a token that is a word, too
                return []
            return tokens if b"".join(map(self.tokens.__getitem__, tokens)) == text.encode() else []
        except Exception:  # noqa: BLE001  called from compiled code, which has no use for it
            return []


def load(words: Words) -> Any:
    """llguidance's form of a vocabulary: some hundred bytes for each token, half a second for
    150,000. ConstraintError for a vocabulary without a token that ends an answer."""
    if not words.eot_ids:
        raise ConstraintError("the model's vocabulary has no token that ends an answer", code="constraint-vocabulary",
                              hint="a constrained answer could not end; use another model")
    wrapped = _Wrapped(words)
    return LLTokenizer(wrapped, eos_token=sorted(words.eot_ids))  # type: ignore[arg-type]


def controls(words: Words) -> dict[str, int]:
    """Control tokens by their text."""
    return {words.piece(token).decode("utf-8", "replace"): token for token in range(words.vocab_size)
            if words.is_special(token)}
