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
    """SHA-256 of the logits of 300 positions, with each format of the cache."""
    found = []
    for kind in CACHE_FORMATS:
        source = open_resident(model)
        with Engine.open(
                source, EngineOptions(threads=threads, slots=1, context_length=512, kv_cache=kind),
                kernels=kernels) as engine:
            ids = [token % engine.architecture.vocabulary for token in IDS]
            found.append(hashlib.sha256(logits_of(engine, ids).tobytes()).hexdigest())
        source.close()
    return found


if __name__ == "__main__":
    loaded = table.load(sys.argv[1], *([] if sys.argv[2] == "-" else [Path(sys.argv[2])]))
    print(*(digest for model in sys.argv[3:] for digest in digests(Path(model), 1, loaded)))
