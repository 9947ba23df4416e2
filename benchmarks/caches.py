"""Answers with keys and values of few bits: `python -m benchmarks.caches MODEL.gguf ...`.

A model's own greedy continuations of ten texts, with 16 bits, are read again with 8, with 4, and
with keys of 8 beside values of 4. For each format is printed: the mean Kullback-Leibler divergence
of the distributions from those with 16 bits, in nats, and at how many positions the best token is
the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from tests.support.logits import logits_of
from tests.support.plain import open_resident

TEXTS = (
    "The capital of Italy is", "def fibonacci(n):\n    ", "Water boils at", "Once upon a time there was a",
    "import numpy as np\n\n\ndef mean(x):\n", "The three primary colours are", "To be or not to be,",
    "A list of the planets, from the sun outwards:", "for i in range(10):\n    print(", "In 1969, humans first")
TOKENS = 24  # of each continuation
Rows = NDArray[np.float64]


@contextmanager
def _engine(path: Path, kind: str) -> Iterator[Engine]:
    """A model with keys and values in a format."""
    with closing(open_resident(path)) as source, Engine.open(
            source, EngineOptions(slots=1, context_length=256, kv_cache=kind)) as engine:
        yield engine


def _greedy(engine: Engine, prompt: list[int]) -> tuple[list[int], NDArray[np.float32]]:
    """The continuation of a prompt, and the logits of each of its tokens."""
    asked = GenerationRequest(prompt, TOKENS, Sampling(temperature=0.0), ignore_end=True)
    tokens = [advance.token for advance in engine.generate(asked) if advance.token is not None]
    return tokens, logits_of(engine, [*prompt, *tokens[:-1]], last=TOKENS)


def _logarithms(rows: NDArray[np.float32]) -> Rows:
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))


def measure(path: Path) -> dict[str, tuple[float, int, int]]:
    """Mean divergence, positions with the same best token, and positions, by format."""
    with _engine(path, "f16") as engine:
        prompts = [engine.tokenizer.encode(text, add_special=True) for text in TEXTS]
        own = [(prompt, *_greedy(engine, prompt)) for prompt in prompts]
    found = {}
    for kind in ("q8", "q8q4", "q4"):
        divergences, same = list[float](), 0
        with _engine(path, kind) as engine:
            for prompt, tokens, rows in own:
                expected = _logarithms(rows)
                other = _logarithms(logits_of(engine, [*prompt, *tokens[:-1]], last=TOKENS))
                divergences += (np.exp(expected) * (expected - other)).sum(axis=1).tolist()
                same += int((expected.argmax(axis=1) == other.argmax(axis=1)).sum())
        found[kind] = float(np.mean(divergences)), same, len(divergences)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row for each model and format."""
    parser = argparse.ArgumentParser(description="how far answers stray where keys and values have few bits")
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+", help="a GGUF file")
    for path in parser.parse_args(arguments).models:
        for kind, (divergence, same, count) in measure(path).items():
            print(f"| {path.stem} | {kind} | {divergence:.4f} | {same} of {count} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
