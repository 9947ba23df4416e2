"""Constrained answers: they meet their constraint, end where it does, and have the same tokens whatever runs beside
them, with and without speculation."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from appliance.constraint import spec
from appliance.constraint.compiler import Compiler
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.events import Logprobs
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from tests.support.demo_model import demo_model
from tests.support.engines import kernels, running
from tests.support.logits import logits_of
from tests.support.plain import open_resident

SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "born", "age", "colour", "address"],
    "properties": {
        "name": {"type": "string", "maxLength": 20}, "born": {"type": "string", "format": "date"},
        "age": {"type": "integer", "minimum": 3, "maximum": 120}, "colour": {"enum": ["red", "green", "blue"]},
        "address": {"type": "object", "additionalProperties": False, "required": ["street_name", "postal_code"],
                    "properties": {"street_name": {"type": "string", "maxLength": 20},
                                   "postal_code": {"type": "string", "pattern": "^[0-9]{5}$"}}}}}
PROMPT = "<|im_start|>user\nTell me about Alice, as JSON<|im_end|>\n<|im_start|>assistant\n"
SAMPLINGS = [Sampling(temperature=0), *(Sampling(seed=seed, temperature=1.2, top_p=0.95, repeat_penalty=1.1)
                                        for seed in range(4))]


@pytest.fixture(scope="module")
def source():
    """The demo model's tiles."""
    with open_resident(demo_model()) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine(source):
    """The demo model, with speculation."""
    with Engine.open(source, EngineOptions(context_length=512), kernels=kernels()) as opened:
        yield opened


def _request(engine: Engine, constraint, sampling: Sampling, most: int = 200, **more) -> GenerationRequest:
    ids = engine.tokenizer.encode(PROMPT, parse_special=True)
    return GenerationRequest(ids, most, sampling, constraint=constraint, **more)


def _answers(engine: Engine, constraint):
    return [list(engine.generate(_request(engine, constraint, sampling))) for sampling in SAMPLINGS]


def test_answers_meet_their_schema_and_end_with_it(engine):
    """Whatever is sampled; the independent validator accepts it, and the answer ends without a pass for its end."""
    constraint = engine.constraints.compile(spec.JsonSchema(SCHEMA))
    for advances in _answers(engine, constraint):
        assert "stop" == advances[-1].finish_reason
        jsonschema.validate(json.loads("".join(each.text for each in advances)), SCHEMA,
                            format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def test_speculation_changes_no_token_and_forced_tokens_save_passes(engine, source):
    """The same tokens without speculation, which takes a pass for each."""
    constraint = engine.constraints.compile(spec.JsonSchema(SCHEMA))
    batcher = engine.acquire()
    before = batcher.passes
    engine.release()
    found = _answers(engine, constraint)
    batcher = engine.acquire()
    passes = batcher.passes - before
    engine.release()
    with Engine.open(source, EngineOptions(context_length=512, speculate=False), kernels=kernels()) as plain:
        again = _answers(plain, plain.constraints.compile(spec.JsonSchema(SCHEMA)))
    assert [[each.token for each in one] for one in again] == [[each.token for each in one] for one in found]
    assert passes < 0.7 * sum(map(len, found))


@pytest.mark.parametrize("rules", [
    'start: "The sky, the sky, the sky is " word " and the sea is " word "."\nword[max_tokens=3]: ANY',
    'start: line "The end, the end, the end."\nline[stop="\\n", max_tokens=30]: ANY',
    'start: line\nline[capture, stop="."]: ANY'], ids=["max_tokens", "both", "stop"])
def test_rules_of_which_no_token_is_taken_back(engine, source, rules):
    """llguidance takes back no token of such a grammar: guesses go on in a copy, and the answer is as without them."""
    grammar = spec.Lark(f"%llguidance {{}}\n{rules}\nANY: /(?s:.*)/\n")
    with Engine.open(source, EngineOptions(context_length=512, speculate=False), kernels=kernels()) as plain:
        expected = _answers(plain, plain.constraints.compile(grammar))
    found = _answers(engine, engine.constraints.compile(grammar))
    assert [[each.token for each in one] for one in expected] == [[each.token for each in one] for one in found]


def test_whatever_runs_beside_changes_no_token(engine):
    """Answers with constraints, alone and together with each other and with one that has none."""
    constraint = engine.constraints.compile(spec.JsonSchema(SCHEMA))
    alone = [[each.token for each in advances] for advances in _answers(engine, constraint)]
    free = _request(engine, None, Sampling(seed=3), 100)
    apart = [each.token for each in engine.generate(free)]
    scheduler, tokens = Scheduler(engine), [list[int]() for _ in range(len(SAMPLINGS) + 1)]
    handles = [scheduler.submit(request, f"t{index}", lambda each, index=index: tokens[index].append(each.token))
               for index, request in enumerate([*(_request(engine, constraint, each) for each in SAMPLINGS), free])]
    assert all(handle.wait(120) for handle in handles)
    scheduler.close()
    assert [*alone, apart] == tokens


def test_a_cut_answer_says_length_and_a_complete_one_stop(engine):
    """At the last token that fits, the end of the constraint counts."""
    constraint = engine.constraints.compile(spec.JsonSchema(SCHEMA))
    count = len(_answers(engine, constraint)[0])
    for most, reason in ((count, "stop"), (count - 1, "length"), (1, "length")):
        advances = list(engine.generate(_request(engine, constraint, SAMPLINGS[0], most)))
        assert (reason, most) == (advances[-1].finish_reason, len(advances))


def test_ends_are_allowed_exactly_where_the_constraint_is_met(engine):
    """Tokens that end an answer have their bit where it may end; `ignore_end` does not open it."""
    words, constraint = engine.tokenizer, engine.constraints.compile(spec.RegexText("[a-c]{2,4}"))
    for advances in (list(engine.generate(_request(engine, constraint, Sampling(seed=seed), ignore_end=True)))
                     for seed in range(6)):
        text = ""
        for each in advances:
            bits = np.unpackbits(np.frombuffer(each.mask, np.uint8), bitorder="little")
            assert [len(text) >= 2] * len(words.eot_ids) == [bool(bits[token]) for token in words.eot_ids]
            text += each.text
        assert 2 <= len(text) <= 4
        assert set(text) <= set("abc")
        assert "stop" == advances[-1].finish_reason


def test_log_probabilities_stay_the_models_own(engine):
    """The log-softmax of all logits, not of those that the mask leaves."""
    constraint = engine.constraints.compile(spec.TextList(("Zebra", "yellow")))
    request = _request(engine, constraint, Sampling(temperature=0, top_logprobs=2))
    advances = list(engine.generate(request))
    ids = [*request.prompt_ids, *(each.token for each in advances)]
    rows = logits_of(engine, ids[:-1])[len(request.prompt_ids) - 1:].astype(np.float64)
    for row, advance in zip(rows, advances, strict=True):
        [entry] = [event for event in advance.events if isinstance(event, Logprobs)]
        stated = np.frombuffer(entry.packed, np.dtype([("id", "<i4"), ("value", "<f8")]))
        expected = row[stated["id"]] - row.max() - np.log(np.exp(row - row.max()).sum())
        assert np.allclose(expected, stated["value"], atol=1e-9)
        assert int(row.argmax()) in stated["id"]


def test_control_tokens_of_a_grammar_have_text_where_they_are_visible(engine):
    """`<name>` is the control token; its text is in the answer where the request says so."""
    words = engine.tokenizer
    token = next(token for token in range(words.vocab_size) if words.piece(token) == b"<|im_start|>")
    constraint = engine.constraints.compile(spec.Lark('start: <|im_start|> "call" <|no-token|>'))
    for visible, text in ((frozenset({token}), "<|im_start|>call<|no-token|>"), (frozenset(), "call<|no-token|>")):
        advances = list(engine.generate(_request(engine, constraint, SAMPLINGS[0], visible=visible)))
        assert (token, text) == (advances[0].token, "".join(each.text for each in advances))


def test_an_answer_that_cannot_go_on_fails_alone():
    """A grammar whose text the vocabulary's limits do not reach ends as an error, never as an end."""
    with running("tied", slots=2, context=96) as engine:
        constraint = Compiler(engine.tokenizer).compile(spec.RegexText("(?:a{1,900}b){1,20}"))
        walk = constraint.begin()
        with pytest.raises(EngineError, match="cannot go on"):
            walk.accept(next(token for token in range(engine.tokenizer.vocab_size)
                             if engine.tokenizer.piece(token) == b"z"))
        good = GenerationRequest((1, 300, 301), 30, Sampling(seed=1), ignore_end=True)
        expected = [each.token for each in engine.generate(good)]
        scheduler, tokens, errors = Scheduler(engine), [], []
        handles = [scheduler.submit(good, "a", lambda each: tokens.append(each.token))]
        for constraint in (_Stuck(), _Broken(engine.tokenizer.vocab_size)):
            bad = GenerationRequest((1, 300), 5, Sampling(seed=1), constraint=constraint)
            handles.append(scheduler.submit(bad, "b", lambda each: None, errors.append))
        assert all(handle.wait(60) for handle in handles)
        scheduler.close()
        assert (expected, ["constraint-stuck", "engine-internal"]) == (tokens, [error.code for error in errors])


class _Stuck:
    """A constraint that allows nothing."""

    def ahead(self):
        return self

    def begin(self):
        return self

    def mask(self):
        raise EngineError("stuck", code="constraint-stuck")

    def back(self, count):
        assert count == 0

    def forced(self):
        return []


class _Broken(_Stuck):
    """A constraint that fails in a way that nobody foresaw."""

    def __init__(self, vocabulary):
        self._mask = b"\xff" * -(-vocabulary // 8)

    def mask(self):
        return self._mask

    def accept(self, token):
        raise IndexError(token)


def test_the_mask_comes_after_all_adjustments():
    """A bias cannot bring back what the mask bars; a constraint whose tokens have no chance is an error."""
    logits, mask = np.array([5.0, 1.0, 2.0, 3.0], np.float32), bytes([0b0110, 0, 0, 0])
    sampler = Sampler(Sampling(temperature=0, logit_bias={0: 100.0, 1: 5.0}), (1,), 4, Scratch(4, kernels()))
    assert (0, 1) == (sampler.choose(logits).token, sampler.choose(logits, mask).token)
    assert [5.0, 1.0, 2.0, 3.0] == logits.tolist()
    for seed in range(20):
        hot = Sampler(Sampling(temperature=50.0, seed=seed, top_k=3), (1,), 4, Scratch(4, kernels()))
        assert hot.choose(logits, mask).token in (1, 2)
    with pytest.raises(EngineError, match="has a chance"):
        sampler.choose(np.array([5.0, -np.inf, -np.inf, 3.0], np.float32), mask)
