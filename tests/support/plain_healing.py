"""A plain twin of token healing: over all tokens, one by one."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np


def pieces_of(words: Any) -> list[bytes | None]:
    """The bytes of each token; None for tokens that are not text."""
    return [None if words.is_special(token) or token in words.eot_ids or not words.piece(token) else words.piece(token)
            for token in range(words.vocab_size)]


def taken_back(pieces: Sequence[bytes | None], prompt: Sequence[int], most: int) -> tuple[list[int], bytes]:
    """The prompt without its end, and the text of that: the longest end of whole characters."""
    for count in range(min(most, len(prompt) - 1), 0, -1):
        end = [pieces[token] for token in prompt[-count:]]
        if None in end:
            continue
        text = b"".join(end)
        if text.decode("utf-8", "replace").encode() == text:
            return list(prompt[:-count]), text
    return list(prompt), b""


def completable(pieces: Sequence[bytes | None], text: bytes) -> bool:
    """Whether some tokens, one after the other, begin with all of a text."""
    can = {len(text)}
    for start in range(len(text) - 1, -1, -1):
        rest = text[start:]
        if any(piece and (piece.startswith(rest) or (rest.startswith(piece) and start + len(piece) in can))
               for piece in pieces):
            can.add(start)
    return 0 in can


def allowed(pieces: Sequence[bytes | None], text: bytes) -> list[int]:
    """Tokens that may come while a text is missing."""
    return [token for token, piece in enumerate(pieces) if piece and (
        piece.startswith(text) or (text.startswith(piece) and completable(pieces, text[len(piece):])))]


def masks(pieces: Sequence[bytes | None], text: bytes, answer: Sequence[int]) -> list[str | None]:
    """The mask of each token of an answer, in base64; None once the text is there."""
    found = list[str | None]()
    for token in answer:
        if not text:
            found.append(None)
            continue
        bits = np.zeros(len(pieces), np.uint8)
        bits[allowed(pieces, text)] = 1
        found.append(base64.b64encode(np.packbits(bits, bitorder="little").tobytes()).decode())
        text = text[len(pieces[token] or b""):]
    return found
