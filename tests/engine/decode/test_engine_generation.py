"""One answer: tokens, text, stop strings, ends, and the bounds of a request."""

from __future__ import annotations

import codecs

import numpy as np
import pytest

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.events import ENTRY, End, Logprobs, Text
from appliance.engine.decode.generation import Generation, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import CapacityError, EngineError
from tests.support import any_models
from tests.support.engines import kernels, opened, running
from tests.support.logits import logits_of

GREEDY = Sampling(temperature=0.0)
PROMPT = (1, 300, 301, 302)


@pytest.fixture(scope="module")
def engine():
    """A synthetic model."""
    with running("tied", slots=3, context=96) as opened:
        yield opened


def run(engine, **values):
    """All advances of an answer."""
    request = GenerationRequest(**({"prompt_ids": PROMPT, "max_tokens": 20, "sampling": GREEDY} | values))
    return list(engine.generate(request))


def _entries(advance):
    """The log-probabilities of an advance: its own token's, then those of alternatives."""
    [logprobs] = [event for event in advance.events if isinstance(event, Logprobs)]
    return list(ENTRY.iter_unpack(logprobs.packed))


def test_greedy_answers_follow_the_logits(engine):
    """Each token is the highest logit after all tokens before it."""
    advances = run(engine)
    ids = [*PROMPT, *(advance.token for advance in advances)]
    best = logits_of(engine, ids[:-1]).argmax(-1)[len(PROMPT) - 1:]
    assert best.tolist() == ids[len(PROMPT):]
    assert [None] * 19 + ["length"] == [advance.finish_reason for advance in advances]


def test_text_is_that_of_the_tokens(engine):
    """The joined text equals the decoded tokens, character by character, invalid bytes included; a character that
    the last token leaves incomplete is left out."""
    for seed in range(5):
        advances = run(engine, sampling=Sampling(seed=seed, temperature=3.0), ignore_end=True)
        pieces = b"".join(engine.tokenizer.piece(s.token) for s in advances if not engine.tokenizer.is_special(s.token))
        whole = codecs.getincrementaldecoder("utf-8")("replace").decode(pieces)
        assert whole == "".join(advance.text for advance in advances)


def test_stop_strings_never_leak(engine):
    """An answer is cut before each string that it contains."""
    whole = "".join(advance.text for advance in run(engine))
    for stop in (whole[5:8], whole[3:4], whole[-2:]):
        advances = run(engine, stop=(stop, "never there"))
        assert whole[:whole.index(stop)] == "".join(advance.text for advance in advances)
        assert "stop" == advances[-1].finish_reason


# The tokens of an answer, as bytes, and its text: what its end cuts is left out, what is wrong within it is shown.
CUT = [(b"\xc3",), (b"a", b"\xe4", b"\xb8"), (b"\xf0", b"\x9f", b"\x98"), (b"\xc3", b"\xc3"), (b"\xff", b"\xc3"),
       (b"\xe4", b"\xb8", b"a", b"\xc3")]
CUT_TEXTS = ["", "a", "", "\ufffd", "\ufffd", "\ufffda"]


def _forced(engine, pieces, **more):
    """The advances of an answer whose tokens have these bytes: each has the highest logit in its turn."""
    words = engine.tokenizer
    ids = [next(token for token in range(words.vocab_size) if words.piece(token) == piece) for piece in pieces]
    scratch = Scratch(words.vocab_size)
    request = GenerationRequest((1,), more.pop("max_tokens", len(ids)), Sampling(temperature=0.0), **more)
    state = Generation(request, words, words.vocab_size, 64, scratch)
    for token in ids:
        logits = np.zeros(words.vocab_size, np.float32)
        logits[token] = 100.0
        yield state.advance(logits)
    if not state.finished:
        yield state.cancel()


@pytest.mark.parametrize(("pieces", "text"), list(zip(CUT, CUT_TEXTS, strict=True)))
def test_an_incomplete_character_is_left_out(engine, pieces, text):
    """An answer that ends within a character has nothing of it, whether the bound on tokens, a token that ends the
    answer, or the client ends it."""
    for more in ({}, {"stop": ("\ufffdx",)}, {"max_tokens": 60}):
        assert text == "".join(advance.text for advance in _forced(engine, pieces, **more))
    ended = _forced(engine, (*pieces, b"</s>"))
    assert text == "".join(advance.text for advance in ended)


def test_a_stop_string_of_a_replacement_character(engine):
    """A stop string may name U+FFFD, which stands for wrong bytes; half a character at the end is not one."""
    assert [("", "length")] == [(s.text, s.finish_reason) for s in _forced(engine, (b"\xc3",), stop=("\ufffd",))]
    assert [("", "stop")] == [(s.text, s.finish_reason) for s in _forced(engine, (b"\xff",), stop=("\ufffd",))]


def test_a_token_ends_the_answer(engine):
    """The end token comes with the last advance: no event has its text or counts it. Where it is ignored the answer
    goes on."""
    advances = run(engine, sampling=Sampling(temperature=0.0, logit_bias={2: 1000.0}))
    assert [(2, (End(0, "stop"),))] == [(advance.token, advance.events) for advance in advances]
    advances = run(engine, sampling=Sampling(temperature=0.0, logit_bias={2: 1000.0}), ignore_end=True, max_tokens=3)
    assert [2, 2, 2] == [advance.token for advance in advances]


def test_the_context_ends_the_answer(engine):
    """Prompt and answer share the context."""
    advances = run(engine, prompt_ids=(1,) * 90, max_tokens=50, ignore_end=True)
    assert (6, "length") == (len(advances), advances[-1].finish_reason)


def test_rows_without_a_token_are_never_chosen():
    """Where the matrices have more rows than the tokenizer has tokens, the likeliest of the tokens wins, drawn answers
    have tokens only, and log-probabilities are those of the tokens."""
    spare = 100
    with opened(any_models.model(1, spare)) as source, Engine.open(
            source, EngineOptions(threads=1), kernels=kernels()) as padded:
        known = padded.tokenizer.vocab_size
        assert spare == padded.architecture.vocabulary - known
        tokens = [advance.token for advance in run(padded, prompt_ids=(1, 5, 9), ignore_end=True, max_tokens=60)]
        logits = logits_of(padded, [1, 5, 9, *tokens[:-1]], last=60)
        assert any(logits.argmax(-1) >= known)  # the matter does come up
        assert logits[:, :known].argmax(-1).tolist() == tokens
        advance, *_ = run(padded, prompt_ids=(1, 5, 9), sampling=Sampling(temperature=5.0, top_logprobs=20))
        values = logits[0, :known].astype(np.float64)
        assert pytest.approx(values.max() - np.log(np.exp(values).sum()), abs=1e-9) == _entries(advance)[1][1]
        drawn = run(padded, prompt_ids=(1, 5, 9), sampling=Sampling(temperature=5.0), ignore_end=True, max_tokens=60)
        assert max(advance.token for advance in drawn) < known
        with pytest.raises(EngineError, match="outside"):
            run(padded, prompt_ids=(1, known))


def test_events_name_their_choice(engine):
    """Each event has the index that the request gave; a token's text comes before its log-probabilities, and the end
    comes last."""
    advances = run(engine, sampling=Sampling(temperature=0.0, top_logprobs=1), max_tokens=2, choice=3)
    assert [[Text, Logprobs], [Text, Logprobs, End]] == [[type(event) for event in each.events] for each in advances]
    assert {3} == {event.choice for each in advances for event in each.events}
    assert [1, 1] == [each.events[0].tokens for each in advances]


def test_cancel(engine):
    """A cancelled answer ends with an advance without token, and the engine is free again."""
    asked = iter([False, False, True])
    advances = list(engine.generate(GenerationRequest(PROMPT, 20, GREEDY), cancelled=lambda: next(asked)))
    assert (3, None, "cancelled") == (len(advances), advances[-1].token, advances[-1].finish_reason)
    generator = engine.generate(GenerationRequest(PROMPT, 20, GREEDY))
    next(generator)
    with pytest.raises(EngineError, match="in use"):
        logits_of(engine, PROMPT)
    generator.close()
    assert len(run(engine)) == 20


def test_seed_decides(engine):
    """The same seed gives the same answer; another seed another."""
    answers = [[advance.token for advance in run(engine, sampling=Sampling(seed=seed))] for seed in (1, 1, 2)]
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_logprobs(engine):
    """Log-probabilities come with each advance and belong to the logits."""
    advances = run(engine, sampling=Sampling(temperature=0.0, top_logprobs=2), max_tokens=2)
    logits = logits_of(engine, PROMPT)[-1].astype(np.float64)
    expected = logits.max() - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert pytest.approx(expected, abs=1e-9) == _entries(advances[0])[0][1]
    assert [advances[0].token] * 2 == [token for token, _ in _entries(advances[0])[:2]]
    assert 3 == len(_entries(advances[0]))


@pytest.mark.parametrize(("values", "error"), [
    ({"prompt_ids": ()}, EngineError), ({"prompt_ids": (1,) * 96}, CapacityError), ({"max_tokens": -1}, EngineError),
    ({"prompt_ids": (512,)}, EngineError), ({"prompt_ids": (-1,)}, EngineError), ({"stop": ("",)}, EngineError),
])
def test_requests_that_cannot_run(engine, values, error):
    """Bad requests are refused before anything runs."""
    with pytest.raises(error):
        run(engine, **values)


def test_closed_engine():
    """A closed engine refuses; closing twice does nothing."""
    with running("tied") as engine:
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            logits_of(engine, PROMPT)
        engine.close()
