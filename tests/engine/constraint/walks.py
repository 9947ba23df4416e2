"""Random ways through constraints, and texts put to them."""

from __future__ import annotations

import random
from functools import cache

import numpy as np

from appliance.engine.constraint.compiler import Compiler
from appliance.engine.constraint.walk import Constraint, Walk
from appliance.engine.text.tokenizer import Tokenizer, load
from appliance.errors import EngineError
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
    return np.flatnonzero(np.unpackbits(np.frombuffer(walk.mask(), np.uint8), bitorder="little")).tolist()


def walked(constraint: Constraint, rng: random.Random, most: int = 400,
           tokenizer: Tokenizer | None = None) -> str | None:
    """The text of a random answer; None where it did not end within `most` tokens. It ends as soon as it may with
    every second chance, and prefers tokens that close something, so that it does end."""
    tokenizer = tokenizer or words()
    walk, out = constraint.begin(), b""
    for _ in range(most):
        if walk.ended:
            return out.decode()
        tokens = allowed(walk)
        ends = [token for token in tokens if token in tokenizer.eot_ids]
        if ends and (len(ends) == len(tokens) or rng.random() < 0.5):
            assert walk.may_end
            return out.decode()
        assert bool(ends) == walk.may_end
        tokens = [token for token in tokens if token not in ends]
        closing = [token for token in tokens if tokenizer.piece(token)[:1] in (b'"', b"}", b"]")]
        printable = [token for token in tokens if tokenizer.piece(token).isascii()]
        token = rng.choice(closing if closing and rng.random() < 0.4 else printable if printable and rng.random() < 0.8
                           else tokens)
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
