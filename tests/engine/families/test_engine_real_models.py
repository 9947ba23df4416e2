"""Small real models of other families than llama, where they could be fetched: llama.cpp's choices, and sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.text import tokenizer
from tests.support import require
from tests.support.engines import kernels
from tests.support.fetch_real_models import FOLDER, MODELS
from tests.support.llama_models import LlamaModel
from tests.support.logits import logits_of
from tests.support.plain import open_resident

CONTEXT = 256
TEXTS = ("The capital of Italy is", "def fibonacci(n):\n    ", "Water boils at", "Once upon a time there was a",
         "import numpy as np\n\n\ndef mean(x):\n", "The three primary colours are", "To be or not to be,",
         "A list of the planets, from the sun outwards:", "for i in range(10):\n    print(", "In 1969, humans first")


def _model(name: str) -> Path:
    if not (FOLDER / name).is_file():
        require.absent(f"{name}: python tests/support/fetch_real_models.py")
    return FOLDER / name


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpps_choices(name: str) -> None:
    """Fed its greedy continuations of ten texts, the engine's best token is its own wherever its two best are apart."""
    path = _model(name)
    source = open_resident(path)
    options = EngineOptions(threads=1, slots=1, context_length=CONTEXT)
    apart = wrong = wrong_far = 0
    with Engine.open(source, options, kernels=kernels()) as engine:
        words, vocabulary = tokenizer.load(source.metadata), engine.architecture.vocabulary
        with LlamaModel(path, CONTEXT, vocabulary) as peer:
            for text in TEXTS:
                prompt = words.encode(text, add_special=True)
                tokens, rows = peer.greedy(prompt, 24)
                found = logits_of(engine, [*prompt, *tokens[:-1]], last=len(tokens))
                second, best = np.sort(rows, axis=1)[:, -2:].T
                other = found.argmax(axis=1) != tokens
                apart += int((best - second > 0.5).sum())
                wrong += int((other & (best - second > 0.5)).sum())
                wrong_far += int((other & (best - second > 1.0)).sum())
    source.close()
    assert apart >= 100
    assert (True, 0) == (wrong <= max(1, apart // 1000), wrong_far)


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("gemma-3-270m-q4_k_m.gguf", "France: Paris. Germany: Berlin. The capital of Italy is", " Rome"),
    ("qwen2.5-coder-0.5b.gguf", "def add(a, b):\n    return a +", " b")])
def test_sense(name: str, text: str, expected: str) -> None:
    """The next token of a text that people would go on with alike."""
    source = open_resident(_model(name))
    with Engine.open(source, EngineOptions(threads=1, slots=1, context_length=64), kernels=kernels()) as engine:
        words = tokenizer.load(source.metadata)
        token = int(logits_of(engine, words.encode(text, add_special=True), last=1)[0].argmax())
    assert words.encode(expected)[-1] == token
    source.close()
