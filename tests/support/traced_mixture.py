"""A streamed mixture that reads and answers prompts of one length, for whoever watches the process from outside:
`python -m tests.support.traced_mixture FOLDER ACCESS COUNT`.

The folder has `model.sealed`, or gets it. A line is written to standard error before each prompt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from appliance.engine.engine import Engine, EngineOptions
from appliance.models.sources.source import Access
from appliance.models.sources.streamed import StreamedSource
from tests.support import family_models
from tests.support.engines import kernels
from tests.support.streams import stored

NAME, PROMPT, ANSWER, TILE_NBYTES = "qwen3moe", 6, 3, 1 << 16
EXPERTS = frozenset(name for name in family_models._shapes(NAME) if name.endswith("_exps.weight"))
MARK = "prompt"


def prompts(count: int) -> list[list[int]]:
    """Texts of one length, of random tokens."""
    random = np.random.default_rng(7)
    return [random.integers(3, family_models.VOCABULARY, PROMPT + ANSWER).tolist() for _ in range(count)]


@contextmanager
def running(kind: str, folder: Path, access: Access, **how: object) -> Iterator[tuple[Engine, StreamedSource]]:
    """The mixture, on one thread; `kind` as of `streams.stored`."""
    _, make = stored(kind, folder, family_models.model(NAME), TILE_NBYTES)
    with closing(make(access=access, **how)) as source, Engine.open(
            source, EngineOptions(threads=1, slots=2), kernels=kernels()) as engine:
        yield engine, source


def answer(engine: Engine, tokens: list[int]) -> None:
    """A pass that reads the prompt, and one for each token of the answer."""
    forward = engine._forward
    forward.boundary.forget(0)
    forward.run(tokens[:PROMPT], range(PROMPT), [0] * PROMPT, [PROMPT - 1])
    for position in range(PROMPT, len(tokens)):
        forward.run([tokens[position]], [position], [0], [0])


def main() -> None:
    """Answer the prompts."""
    folder, access, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with running("compiled sealed", folder, access) as (engine, _):  # type: ignore[arg-type]
        for tokens in prompts(count):
            os.write(2, f"{MARK}\n".encode())
            answer(engine, tokens)
        os.write(2, f"{MARK}\n".encode())


if __name__ == "__main__":
    main()
