"""Small real models of other families than llama, where they could be fetched: llama.cpp's choices, and sense."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from tests.support import require
from tests.support.engines import kernels
from tests.support.extent import some
from tests.support.fetch_real_models import FOLDER, MODELS
from tests.support.llama_models import LlamaModel
from tests.support.logits import logits_of
from tests.support.plain import open_resident

CONTEXT = 256
TEXTS = ("The capital of Italy is", "def fibonacci(n):\n    ", "Water boils at", "Once upon a time there was a",
         "import numpy as np\n\n\ndef mean(x):\n", "The three primary colours are", "To be or not to be,",
         "A list of the planets, from the sun outwards:", "for i in range(10):\n    print(", "In 1969, humans first")


SENSE = {"gemma-3-270m-q4_k_m.gguf": ("France: Paris. Germany: Berlin. The capital of Italy is", " Rome"),
         **dict.fromkeys(("qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-1.5b.gguf"),
                         ("def add(a, b):\n    return a +", " b"))}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Iterator[tuple[str, Engine]]:
    """A model's name, and an engine that has it open."""
    if not (FOLDER / request.param).is_file():
        absent = pytest.skip if MODELS[request.param].large else require.absent
        absent(f"{request.param}: python tests/support/fetch_real_models.py build/models {request.param}")
    source = open_resident(FOLDER / request.param)
    options = EngineOptions(threads=1, slots=1, context_length=CONTEXT)
    with Engine.open(source, options, kernels=kernels()) as engine:
        yield request.param, engine
    source.close()


@pytest.mark.slow
def test_llama_cpps_choices(model: tuple[str, Engine]) -> None:
    """Fed its greedy continuations of texts, the engine's best token is its own wherever its two best are apart."""
    name, engine = model
    texts = some(TEXTS, 4)
    near = wrong_near = apart = wrong = wrong_far = 0
    with LlamaModel(FOLDER / name, CONTEXT, engine.architecture.vocabulary) as peer:
        for text in texts:
            prompt = engine.tokenizer.encode(text, add_special=True)
            tokens, rows = peer.greedy(prompt, 24)
            found = logits_of(engine, [*prompt, *tokens[:-1]], last=len(tokens))
            second, best = np.partition(rows, (-2, -1), axis=1)[:, -2:].T
            other = found.argmax(axis=1) != tokens
            near += int((best - second > 0.2).sum())
            wrong_near += int((other & (best - second > 0.2)).sum())
            apart += int((best - second > 0.5).sum())
            wrong += int((other & (best - second > 0.5)).sum())
            wrong_far += int((other & (best - second > 1.0)).sum())
    assert apart >= 10 * len(texts)
    assert wrong_near <= max(1, near // 100)
    assert (True, 0) == (wrong <= max(1, apart // 1000), wrong_far)


def test_sense(model: tuple[str, Engine]) -> None:
    """The next token of a text that people would go on with alike."""
    name, engine = model
    text, expected = SENSE[name]
    token = int(logits_of(engine, engine.tokenizer.encode(text, add_special=True), last=1)[0].argmax())
    assert engine.tokenizer.encode(expected)[-1] == token
