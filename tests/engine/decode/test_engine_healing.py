"""Token healing: which tokens of a prompt are taken back, which may come instead, and what the caller gets."""

from __future__ import annotations

import base64
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.constraint.spec import JsonSchema
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.healing import Healing
from appliance.engine.decode.sampler import Sampling
from appliance.errors import EngineError
from tests.support import plain_healing
from tests.support.engines import running


class Words:
    """A vocabulary of these pieces; token 0 is a control token, 1 ends an answer."""

    eot_ids = frozenset({1})
    suppressed = frozenset[int]()

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [b"<s>", b"the end", *pieces]
        self.vocab_size = len(self._pieces)

    def piece(self, token: int) -> bytes:
        """The bytes of a token."""
        return self._pieces[token]

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token."""
        return token == 0


WORDS = Words([b"http", b":", b"://", b":/", b"/", b"//", b"", b" the", b" th", b" t", b"e", b"\xc3", b"\xa9",
               b"\xc3\xa9", b"a", b"then", b"h"])
IDS = {WORDS.piece(token): token for token in range(WORDS.vocab_size)}


def _ids(*pieces: bytes) -> list[int]:
    return [IDS[piece] for piece in pieces]


def _allowed(healing: Healing) -> set[bytes] | None:
    mask = healing.mask()
    if mask is None:
        return None
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return {WORDS.piece(token) for token in np.flatnonzero(bits).tolist()}


def test_the_famous_colon() -> None:
    """`http:` goes on with `://`, whose token the prompt's last one barred."""
    healing = Healing(_ids(b"<s>", b"http", b":"), 1, WORDS)
    assert _ids(b"<s>", b"http") == healing.prompt
    assert {b":", b"://", b":/"} == _allowed(healing)
    healing.accept(IDS[b"://"])
    assert _allowed(healing) is None
    assert ("//", "x") == (healing.new_characters("://"), healing.new_characters("x"))


def test_a_text_is_written_in_parts() -> None:
    """Tokens that are a part of it may come, where others complete it."""
    healing = Healing(_ids(b"<s>", b"a", b" the"), 1, WORDS)
    assert {b" the", b" th", b" t"} == _allowed(healing)
    healing.accept(IDS[b" t"])
    assert ("", {b"h"}) == (healing.new_characters(" t"), _allowed(healing))
    healing.accept(IDS[b"h"])
    assert {b"e"} == _allowed(healing)
    without_h = Words([b"a", b" the", b" th", b" t", b"e"])
    assert [2 + 1, 2 + 2] == np.flatnonzero(np.unpackbits(np.frombuffer(
        Healing([0, 2, 3], 1, without_h).mask() or b"", np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize(("prompt", "most", "left"), [
    ((b"<s>", b"a"), 0, 2), ((b"<s>", b"a"), 8, 1), ((b"a", b"a"), 8, 1), ((b"a",), 8, 1), ((b"a", b"<s>"), 8, 2),
    ((b"a", b"<s>", b"e", b"a"), 8, 2), ((b"a", b"the end"), 1, 2), ((b"<s>", b"a", b"\xc3", b"\xa9"), 1, 4),
    ((b"<s>", b"a", b"\xc3", b"\xa9"), 2, 2), ((b"<s>", b"a", b"\xc3"), 2, 3), ((b"<s>", b"a", b""), 1, 3),
    ((b"<s>", b"a", b""), 2, 3)])
def test_what_is_taken_back(prompt: tuple[bytes, ...], most: int, left: int) -> None:
    """No control token, nothing before one, never the first token, and whole characters alone."""
    healing = Healing(_ids(*prompt), most, WORDS)
    assert _ids(*prompt)[:left] == healing.prompt
    assert (left == len(prompt)) == (healing.mask() is None)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=3).map(lambda data: bytes(b"ab\xc3\xa9"[byte % 4] for byte in data)), min_size=1,
                max_size=12), st.integers(0, 4), st.randoms())
def test_it_is_its_plain_twin(pieces: list[bytes], most: int, chance: random.Random) -> None:
    """For any vocabulary and prompt, until the text is written."""
    words = Words(pieces)
    plain = plain_healing.pieces_of(words)
    prompt = [chance.randrange(words.vocab_size) for _ in range(chance.randrange(1, 6))]
    healing = Healing(prompt, most, words)
    left, text = plain_healing.taken_back(plain, prompt, most)
    assert left == healing.prompt
    while text:
        ids = plain_healing.allowed(plain, text)
        mask = healing.mask() or b""
        assert ids == np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()
        token = chance.choice(ids)  # there is one always: the text's own tokens
        healing.accept(token)
        text = text[len(plain[token] or b""):]
    assert healing.mask() is None


def test_the_answer_goes_on_with_the_prompt() -> None:
    """Prompt and answer are one text; the answer's first tokens are those that masks allow, and it is replayed."""
    with running("mixed") as engine:
        words = engine.tokenizer
        pieces = plain_healing.pieces_of(words)
        cut = 0
        for seed in range(12):
            prompt = [1, *random.Random(seed).choices([t for t, p in enumerate(pieces) if p and p.isascii()], k=6)]
            sampling = Sampling(token_healing=3, temperature=1.5, seed=seed)
            generation = engine.generation(GenerationRequest(prompt, 10, sampling, ignore_end=True))
            left, text = plain_healing.taken_back(pieces, prompt, 3)
            assert left == list(generation.prompt_ids)
            advances = list(engine.generate(generation.request))
            tokens = [advance.token for advance in advances if advance.token is not None]
            written = b"".join(map(words.piece, tokens))
            assert written.startswith(text)
            expected = [mask and base64.b64decode(mask) for mask in plain_healing.masks(pieces, text, tokens)]
            assert expected == [advance.mask for advance in advances]
            shown = "".join(advance.text for advance in advances)
            assert written[len(text):].decode("utf-8", "replace").startswith(shown)
            cut += len(left) < len(prompt)
        assert cut == 12


def test_beside_a_constraint_it_is_refused() -> None:
    """By the engine; the service refuses it by name."""
    with running("mixed") as engine:
        constraint = engine.constraints.compile(JsonSchema({"type": "object"}))
        with pytest.raises(EngineError, match="token_healing goes with no constraint"):
            engine.generation(GenerationRequest([1, 5], 4, Sampling(token_healing=1), constraint=constraint))
