"""Random ways through constraints, and texts put to them."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from numpy.typing import NDArray

from appliance.constraint.compiler import Compiler
from appliance.constraint.walk import Constraint, Walk
from appliance.errors import EngineError
from appliance.text.tokenizer import Tokenizer, load
from tests.support.vocabularies import byte_level

MERGES = ('" :', '{ "', '} ,', 't r', 'f a', 'tr u', 'n u', '" ,', '1 2', 'a b')


@cache
def words() -> Tokenizer:
    """All bytes, some merges, and an end: small, so that a mask takes microseconds."""
    return load(byte_level(MERGES))


@cache
def compiler() -> Compiler:
    """One for all tests."""
    return Compiler(words())


def allowed(walk: Walk) -> list[int]:
    """Tokens that may come next."""
    return np.flatnonzero(_bits(walk)).tolist()


def _bits(walk: Walk) -> NDArray[np.bool_]:
    """Whether each token may come next, of the vocabulary and some that are beyond it."""
    return np.unpackbits(np.frombuffer(walk.mask(), np.uint8), bitorder="little").view(bool)


@cache
def _kinds(tokenizer: Tokenizer) -> tuple[NDArray[np.bool_], ...]:
    """Of each token: whether it ends answers, closes something, is ASCII."""
    pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
    beyond = [False] * (-len(pieces) % 32)
    return (np.array([token in tokenizer.eot_ids for token in range(len(pieces))] + beyond),
            np.array([piece[:1] in (b'"', b"}", b"]") for piece in pieces] + beyond),
            np.array([piece.isascii() for piece in pieces] + beyond))


def walked(constraint: Constraint, rng: random.Random, most: int = 400,
           tokenizer: Tokenizer | None = None) -> str | None:
    """The text of a random answer; None where it did not end within `most` tokens. It ends as soon as it may with
    every second chance, and prefers tokens that close something, so that it does end."""
    tokenizer = tokenizer or words()
    end, closes, ascii_alone = _kinds(tokenizer)
    walk, out = constraint.begin(), b""
    for _ in range(most):
        if walk.ended:
            return out.decode()
        tokens = _bits(walk)
        ends = tokens & end
        if ends.any() and (ends.sum() == tokens.sum() or rng.random() < 0.5):
            assert walk.may_end
            return out.decode()
        assert ends.any() == walk.may_end
        tokens = tokens & ~end
        closing, printable = tokens & closes, tokens & ascii_alone
        token = int(rng.choice(np.flatnonzero(
            closing if closing.any() and rng.random() < 0.4 else printable if printable.any() and rng.random() < 0.8
            else tokens)))
        walk.accept(token)
        out += tokenizer.piece(token)
    return None


def accepts(constraint: Constraint, text: str, tokenizer: Tokenizer | None = None) -> bool:
    """Whether a whole text meets a constraint, byte for byte."""
    tokenizer = tokenizer or words()
    walk = constraint.begin()
    tokens = _bytes(tokenizer, text.encode())
    try:
        return walk.prefix(tokens) == len(tokens) and walk.may_end
    except EngineError:
        return False


@cache
def _single(tokenizer: Tokenizer) -> dict[int, int]:
    found = {}
    for token in range(tokenizer.vocab_size):
        piece = tokenizer.piece(token)
        if len(piece) == 1 and not tokenizer.is_special(token):
            found.setdefault(piece[0], token)
    return found


def _bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [_single(tokenizer)[byte] for byte in data]
