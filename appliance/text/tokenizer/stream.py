"""Tokens to text, one by one: what has to wait for the rest of a character waits."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Protocol


class Pieces(Protocol):
    """The methods of a tokenizer that a stream calls."""

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token."""


class TextStream:
    """Turns generated tokens into text as they come. Bytes that are no UTF-8 become U+FFFD, one for
    each maximal part of a character, as `bytes.decode(errors="replace")` has it; control tokens
    have no text, but those that are `visible`. A character that the last token leaves incomplete
    has no text either."""

    def __init__(self, tokenizer: Pieces, visible: Collection[int] = ()) -> None:
        self._tokenizer, self._visible = tokenizer, visible
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that is complete with this token; empty while a character is not."""
        if self._tokenizer.is_special(token) and token not in self._visible:
            return ""
        return self._decoder.decode(self._tokenizer.piece(token))

    def finish(self) -> None:
        """Leave out a character that is still incomplete: its end was cut off, its bytes are not
        wrong. The stream is as new then."""
        self._decoder.reset()
