"""Walks on vocabularies of several kinds: forced tokens, masks, ends and steps back agree with each other."""

from __future__ import annotations

import json
import random
from functools import cache

import jsonschema
import pytest

from appliance.constraint import spec
from appliance.constraint.compiler import Compiler
from appliance.errors import ConstraintError, EngineError
from appliance.models.file import gguf
from appliance.text.tokenizer import Tokenizer, load
from tests.constraint.walks import accepts, allowed, compiler, walked, words
from tests.support.demo_model import demo_model
from tests.support.engines import synthetic_model
from tests.support.vocabularies import byte_level, tokenizer_of

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["first name", "n", "kind", "élan"],
    "properties": {"first name": {"type": "string", "maxLength": 12}, "kind": {"enum": ["an alpha", "a beta", "日本"]},
                   "n": {"type": "number", "minimum": -3, "maximum": 1e5},
                   "élan": {"type": "array", "maxItems": 2, "items": {"type": "boolean"}}}}
SPECS = {"schema": spec.JsonSchema(SCHEMA), "object": spec.JsonObject(),
         "regex": spec.RegexText("(?:ab|\\d)+ [α-ω]{2,5}\\."),
         "choice": spec.TextList(("one thing", "one other", "zwölf")),
         "gbnf": spec.Gbnf('root ::= "say " item ("," item)*\nitem ::= [a-c] | "\\"" [^"\\\\]{1,4} "\\""\n')}
LARGE = [pytest.param("llama-bpe", marks=pytest.mark.slow),
         *(pytest.param(name, marks=pytest.mark.soak) for name in ("qwen2", "gemma-4"))]
VOCABULARIES = ["small", "synthetic", "demo", "llama-spm", *LARGE]


@cache
def _made(name: str) -> tuple[Tokenizer, Compiler]:
    if name == "demo":
        tokenizer = load(gguf.parse(demo_model().read_bytes()).metadata)
    elif name == "synthetic":  # it has no token of a space
        tokenizer = load(gguf.parse(synthetic_model("tied")).metadata)
    else:
        tokenizer = words() if name == "small" else tokenizer_of(name)
    return tokenizer, Compiler(tokenizer)


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("asked", SPECS)
def test_a_walk_agrees_with_itself(name: str, asked: str) -> None:
    """A forced token is the only one in the mask, and no other mask has one alone but at an end; a guess that is taken
    back leaves no trace; the whole text is accepted byte for byte, by the same constraint of other tokens."""
    tokenizer, made = _made(name)
    constraint, rng = made.compile(SPECS[asked]), random.Random(f"{name} {asked}")
    for _ in range(3):
        walk, out = constraint.begin(), b""
        for _ in range(40):
            if walk.ended:
                break
            forced = walk.forced()
            tokens = allowed(walk)
            assert walk.may_end == any(token in tokenizer.eot_ids for token in tokens)
            if forced:
                assert [forced[0]] == tokens
                assert walk.prefix(forced) == len(forced)
                walk.back(len(forced))
                assert tokens == allowed(walk)
            token = rng.choice([each for each in tokens if each not in tokenizer.eot_ids] or [-1])
            if token < 0:
                break
            guesses = [token, *(rng.randrange(tokenizer.vocab_size) for _ in range(3))]
            count = walk.prefix(guesses)
            assert count >= 1
            walk.back(count)
            assert tokens == allowed(walk)
            walk.accept(token)
            out += tokenizer.piece(token)
        if walk.may_end:
            assert accepts(compiler().compile(SPECS[asked]), out.decode())


@pytest.mark.parametrize("name", VOCABULARIES)
def test_answers_of_each_vocabulary_meet_the_schema(name: str) -> None:
    """The independent validator accepts them."""
    tokenizer, made = _made(name)
    constraint, rng, count = made.compile(SPECS["schema"]), random.Random(name), 0
    for _ in range(15 if tokenizer.vocab_size < 100_000 else 6):
        text = walked(constraint, rng, 300, tokenizer)
        if text is not None:
            count += 1
            jsonschema.validate(json.loads(text), SCHEMA)
    assert count >= 2


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    """And so is every step after it: an error never turns into an end."""
    constraint = compiler().compile(spec.TextList(("yes", "no")))
    walk = constraint.begin()
    with pytest.raises(EngineError, match="cannot go on"):
        walk.accept(ord("x"))
    for step in (walk.mask, walk.forced, lambda: walk.accept(ord("y")), lambda: walk.back(1)):
        with pytest.raises(EngineError, match="cannot go on"):
            step()
    assert constraint.spoiled
    assert not constraint.begin().ended


def test_an_end_that_is_a_word_is_no_text() -> None:
    """Where the vocabulary ends answers by a token that a text may have, no text is spelled by it: an answer that would
    need it fails."""
    plain = load(byte_level())
    [end] = [token for token in range(256) if plain.piece(token) == b"a"]
    tokenizer = load(byte_level((), **{"tokenizer.ggml.eos_token_id": end}))
    constraint = Compiler(tokenizer).compile(spec.TextList(("xay", "xab")))
    walk = constraint.begin()
    walk.accept(next(token for token in range(256) if tokenizer.piece(token) == b"x"))
    assert end not in allowed(walk)
    for token in allowed(walk):
        walk = constraint.begin()
        walk.accept(next(each for each in range(256) if tokenizer.piece(each) == b"x"))
        with pytest.raises(EngineError, match="cannot go on"):
            walk.accept(token)


def test_a_vocabulary_without_an_end_is_refused() -> None:
    """A constrained answer could not end there."""
    tokenizer = load(byte_level(special=(), **{"tokenizer.ggml.eos_token_id": 0xFFFFFFFF}))
    assert not tokenizer.eot_ids
    with pytest.raises(ConstraintError, match="no token that ends"):
        Compiler(tokenizer).compile(spec.JsonObject())


def test_masks_have_a_bit_for_each_token() -> None:
    """Words of 32 bits; those beyond the vocabulary are zero."""
    for name in ("small", "llama-spm"):
        tokenizer, made = _made(name)
        mask = made.compile(spec.JsonObject()).begin().mask()
        assert -(-tokenizer.vocab_size // 32) * 4 == len(mask)
        assert max(allowed(made.compile(spec.RegexText(".*")).begin())) < tokenizer.vocab_size
