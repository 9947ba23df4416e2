"""llama.cpp as a measured process: `python -m benchmarks.llama_server LIBRARY_FOLDER
BINDINGS_FOLDER`.

Uses the declarations in `llama_cpp.py` of llama-cpp-python without its package (which wants more
dependencies), and llama.cpp's own defaults as its llama-bench does: f16 cache, flash attention
chosen by itself, 512 tokens a pass.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import types
from typing import Any

import numpy as np

from benchmarks.serving import serve, spread

_PASS = 512


def bindings(library: str, folder: str) -> Any:
    """llama_cpp.llama_cpp for a library folder."""
    os.environ["LLAMA_CPP_LIB_PATH"] = library
    package = types.ModuleType("llama_cpp")
    package.__path__ = [folder]
    sys.modules["llama_cpp"] = package
    return importlib.import_module("llama_cpp.llama_cpp")


class Llama:
    """One model and one context."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._silent = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._silent, None)
        api.llama_backend_init()
        self._model = self._context = None
        self._path = ""
        self._depth = self._behind = (0, 0)  # sequences, positions that are filled; a text, positions

    def open(self, model: str, threads: int, context: int, slots: int) -> dict[str, Any]:
        """Load a model (again only if it is another one) and make a context."""
        api, start = self._api, time.perf_counter()
        if self._context is not None:
            api.llama_free(self._context)
        if self._path != model:
            if self._model is not None:
                api.llama_model_free(self._model)
            self._model = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
            self._path = model
        params = api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = context * slots, slots
        params.n_batch, params.n_ubatch = max(2048, context), _PASS
        params.n_threads = params.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp does not open {model}")
        self._memory = api.llama_get_memory(self._context)
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._rows = api.llama_batch_init(max(2048, context), 0, 1)
        self._depth, self._behind, self._threads = (0, 0), (0, 0), threads
        return {"seconds": time.perf_counter() - start}

    def _run(self, rows: list[tuple[int, int, int]], wanted: bool = True) -> None:
        """One call with rows (token, position, sequence); logits of each sequence's last row."""
        batch = self._rows
        last = {sequence: index for index, (_, _, sequence) in enumerate(rows)}
        batch.n_tokens = len(rows)
        for index, (token, position, sequence) in enumerate(rows):
            batch.token[index], batch.pos[index] = token, position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, sequence
            batch.logits[index] = wanted and last[sequence] == index
        if self._api.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self._api.llama_synchronize(self._context)

    def _tokens(self, count: int) -> list[int]:
        return np.random.default_rng(count).integers(3, self._vocabulary, count).tolist()

    def _fill(self, sequences: int, depth: int) -> None:
        """Bring the cache to `depth` positions in each of the first sequences."""
        if self._depth == (sequences, depth):
            for sequence in range(sequences):
                self._api.llama_memory_seq_rm(self._memory, sequence, depth, -1)
            return
        self._api.llama_memory_clear(self._memory, True)
        self._behind = (0, 0)
        for sequence in range(sequences):
            if depth:
                self._run([(token, i, sequence) for i, token in enumerate(self._tokens(depth))], wanted=False)
        self._depth = (sequences, depth)

    def first(self, tokens: int) -> dict[str, Any]:
        """Prefill in an empty context."""
        self._api.llama_memory_clear(self._memory, True)
        self._depth = self._behind = (0, 0)
        rows = [(token, i, 0) for i, token in enumerate(self._tokens(tokens))]
        start = time.perf_counter()
        self._run(rows)
        return {"seconds": time.perf_counter() - start}

    def decode(self, depth: int, tokens: int) -> dict[str, Any]:
        """Single tokens after `depth` positions."""
        return self.batch(1, depth, tokens)

    def batch(self, sequences: int, depth: int, tokens: int) -> dict[str, Any]:
        """Steps of one token for each sequence."""
        self._fill(sequences, depth)
        ids = self._tokens(tokens)
        start = time.perf_counter()
        for step, token in enumerate(ids):
            self._run([(spread(token, sequence, self._vocabulary), depth + step, sequence)
                       for sequence in range(sequences)])
        return {"seconds": time.perf_counter() - start}

    def follow(self, depth: int, tokens: int) -> dict[str, Any]:
        """As `own_server` has it. All threads read the text."""
        if self._behind[0] != depth:
            self._api.llama_set_n_threads(self._context, self._threads, len(os.sched_getaffinity(0)))
            self._fill(1, 0)
            self._run([(token, i, 0) for i, token in enumerate(self._tokens(depth))], wanted=False)
            self._api.llama_set_n_threads(self._context, self._threads, self._threads)
            self._depth, self._behind = (0, 0), (depth, depth)
        at, ids = self._behind[1], self._tokens(tokens)
        self._behind = depth, at + tokens
        start = time.perf_counter()
        for step, token in enumerate(ids):
            self._run([(token, at + step, 0)])
        return {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    serve(Llama(bindings(sys.argv[1], sys.argv[2])))
