"""A known answer, each of its tokens chosen anew, in passes with as many rows as a prompt's: so
checking costs what a prompt of this length does. The image has no use for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.engine import Engine


def recheck(engine: Engine, request: GenerationRequest, tokens: list[int]) -> Iterator[Advance]:
    """The advances of an answer whose tokens are known, with the token that ends it. The first that
    chooses another token is the last."""
    generation, batcher = engine.generation(request), engine.acquire()
    try:
        running, limits = batcher.add(generation), batcher.seats.limits
        known, first, done = [*running.todo, *tokens[:-1]], len(running.todo) - 1, 0
        while done < len(known):
            most = min(limits.rows, max(first - done, 0) + limits.wanted)
            rows = known[done:done + most]
            choosing = range(max(first - done, 0), len(rows))
            logits = batcher.forward.run(rows, range(done, done + len(rows)), [running.slot] * len(rows),
                                         list(choosing))
            running.position = done + len(rows)
            for place, row in zip(choosing, logits, strict=False):
                advance = generation.advance(row)
                yield advance
                if advance.token != tokens[done + place - first] or advance.finish_reason is not None:
                    return
            done += len(rows)
    finally:
        engine.release()
