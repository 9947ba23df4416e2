"""Which features of a request go together: every pair is either refused by its names, or has the answer that it has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from appliance.constraint import spec
from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.chain.ending import Ending
from appliance.engine.decode.generation import FEATURES, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine
from appliance.errors import EngineError
from tests.support.engines import running

ASKED: dict[str, dict[str, Any]] = {
    "beam search": {"beam": Beam(2)}, "constraint": {"constraint": spec.TextList(("ab", "cd"))},
    "stop strings": {"stop": ("abc",)}, "log-probabilities": {"top_logprobs": 1},
    "log-probabilities of the prompt": {"prompt_logprobs": True},
    "guidance_scale": {"guidance_scale": 1.5, "negative_ids": (1, 7, 8)}, "shift_keep": {"shift_keep": 1},
    "token_healing": {"token_healing": 1}, "rule for its end": {"ending": Ending(least=2)},
}
SAMPLED = {"top_logprobs", "guidance_scale", "token_healing"}
REFUSED = {frozenset(pair) for pair in (
    *(("beam search", other) for other in ASKED if other != "beam search"), ("constraint", "rule for its end"),
    ("token_healing", "constraint"), ("token_healing", "log-probabilities of the prompt"),
    ("guidance_scale", "shift_keep"))}


@pytest.fixture(scope="module")
def engine():
    """A small model with two slots."""
    with running("tied", slots=2, context=128) as opened:
        yield opened


def request(engine: Engine, names: tuple[str, ...]) -> GenerationRequest:
    """A request for some features."""
    values = {key: value for name in names for key, value in ASKED[name].items()}
    sampling = Sampling(seed=1, **{key: values.pop(key) for key in SAMPLED & values.keys()})
    if "constraint" in values:
        values["constraint"] = engine.constraints.compile(values["constraint"])
    return GenerationRequest([1, 300, 301, 302], 4, sampling, **values)


def test_every_feature_is_tried() -> None:
    """A new one has a row here."""
    assert FEATURES.keys() == ASKED.keys()


@pytest.mark.parametrize("names", [*((name,) for name in ASKED), *itertools.combinations(ASKED, 2)], ids=" and ".join)
def test_together(engine: Engine, names: tuple[str, ...]) -> None:
    """One that is not refused comes to its end."""
    if frozenset(names) in REFUSED:
        with pytest.raises(EngineError, match="goes with no"):
            engine.generation(request(engine, names))
    else:
        *_, last = engine.generate(request(engine, names))
        assert last.finish_reason in ("stop", "length")
