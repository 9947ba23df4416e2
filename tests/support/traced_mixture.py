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
from appliance.secure.locked import address
from tests.support import family_models
from tests.support.engines import kernels
from tests.support.page_traces import PAGE
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


def ciphertext(source: StreamedSource) -> list[tuple[int, int]]:
    """The memory with the records of experts and the pieces of the embedding, by its addresses and bytes."""
    pages = [source.reader.records.pages, *([source._embedding._pages] if source._embedding else [])]
    return [(address(each), len(each)) for each in pages if each is not None]


def working(engine: Engine, source: StreamedSource) -> list[tuple[int, int]]:
    """All memory that a pass works in, in whole pages: its rows, lists of experts, results, logits, vectors, keys and
    values, what is decrypted, and ciphertext. (Tables of less than a page lie among other things.)"""
    forward, worker = engine._forward, source.workers[0]
    memories = [*forward._memories, *forward._kept, forward._cache._memory]
    ranges = [*((each.address, each.nbytes) for each in memories if each is not None),
              *((place, len(tile)) for place, tile in zip(worker.addresses, worker.tiles, strict=True))]
    whole = [(-(-start // PAGE) * PAGE, (start + nbytes) // PAGE * PAGE) for start, nbytes in ranges]
    return [*((start, end - start) for start, end in whole if start < end), *ciphertext(source)]


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
