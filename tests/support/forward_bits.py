"""Digests of whole passes with one target's kernels: `python -m tests.support.forward_bits TARGET LIBRARY MODEL...`
(LIBRARY -: none).

A process compiles kernels for one target only, so tests of another target run this as a process of its own; it needs
nothing but what the appliance needs.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np

from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.layouts.attention import CACHE_FORMATS
from appliance.kernels.runtime import table
from appliance.kernels.runtime.table import KernelTable
from tests.support.logits import logits_of
from tests.support.plain import open_resident

IDS = [1, *np.random.default_rng(3).integers(3, 512, 299).tolist()]


def digests(model: Path, threads: int, kernels: KernelTable) -> list[str]:
    """SHA-256 of the logits of 300 positions, with each format of the cache; where layers have states, also of guesses
    and of what comes after them."""
    found = []
    for kind in CACHE_FORMATS:
        source = open_resident(model)
        with Engine.open(
                source, EngineOptions(threads=threads, slots=1, context_length=512, kv_cache=kind),
                kernels=kernels) as engine:
            ids = [token % engine.architecture.vocabulary for token in IDS]
            found.append(hashlib.sha256(logits_of(engine, ids).tobytes() + guessed(engine, ids)).hexdigest())
        source.close()
    return found


def guessed(engine: Engine, ids: list[int]) -> bytes:
    """Logits of passes with five guesses each, of which so many are right; nothing where no layer has a state."""
    forward, seats, found, position = engine._forward, engine._seats, b"", 33
    if not engine.architecture.stateful:
        return found
    with seats.claim([300]) as [slot]:
        forward.run(ids[:position], range(position), [slot] * position, [])
        for right in (5, 0, 3, 1, 4, 2):
            seats.expect_guesses(slot, 5)
            rows = range(position, position + 6)
            found += forward.run(ids[position:position + 6], rows, [slot] * 6, range(6)).tobytes()
            position += 1 + right
            seats.commit(slot, position, right)
        found += forward.run(ids[position:position + 20], range(position, position + 20), [slot] * 20, [19]).tobytes()
        seats.give_back(slot)
    return found


if __name__ == "__main__":
    loaded = table.load(sys.argv[1], *([] if sys.argv[2] == "-" else [Path(sys.argv[2])]))
    print(*(digest for model in sys.argv[3:] for digest in digests(Path(model), 1, loaded)))
