"""Engines for tests: kernels are compiled or loaded once for the whole run."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.boot.planning.footprint import known_roles
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.forward import ROWS
from appliance.kernels.runtime import table as kernel_table
from appliance.kernels.runtime.table import KernelTable
from appliance.models.sources.resident import ResidentSource
from tests.support import synthetic
from tests.support.plain import open_resident


@functools.cache
def kernels() -> KernelTable:
    """The kernels of this CPU."""
    return kernel_table.load()


@functools.cache
def synthetic_model(name: str) -> bytes:
    """The GGUF file of a synthetic variant."""
    return synthetic.model(synthetic.VARIANTS[name])


@contextmanager
def opened(data: bytes, *, guesses: bool = False) -> Iterator[ResidentSource]:
    """A resident source of a file's bytes. `guesses`: with the layer that guesses."""
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(data)
        file.flush()
        source = open_resident(Path(file.name), roles=functools.partial(known_roles, guesses=guesses))
    try:
        yield source
    finally:
        source.close()


@contextmanager
def running(name: str, *, threads: int = 1, slots: int = 4, context: int | None = None, kv_cache: str = "f16",
            speculate: bool = True, table: KernelTable | None = None, rows: int = ROWS,
            prefix_nbytes: int = 0) -> Iterator[Engine]:
    """An engine on a synthetic variant; `table`: kernels other than those of this CPU."""
    with opened(synthetic_model(name)) as source, Engine.open(
            source, EngineOptions(threads=threads, slots=slots, context_length=context, kv_cache=kv_cache,
                                  speculate=speculate, rows=rows, prefix_nbytes=prefix_nbytes),
            kernels=table or kernels()) as engine:
        yield engine
