"""llama.cpp's own logits and greedy continuations of whole models, from the library of `fetch_llama_samplers`.

Structures are passed by value. Only their first members are set, which have kept their places; the rest is what the
library's own defaults say, in room to spare.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tests.support import require
from tests.support.fetch_llama_samplers import LIBRARY

Logits = NDArray[np.float32]


class _ModelParameters(ctypes.Structure):
    _fields_ = (("devices", ctypes.c_void_p), ("overrides", ctypes.c_void_p), ("gpu_layers", ctypes.c_int32),
                ("rest", ctypes.c_uint8 * 492))


class _ContextParameters(ctypes.Structure):
    _fields_ = (("context", ctypes.c_uint32), ("batch", ctypes.c_uint32), ("piece", ctypes.c_uint32),
                ("sequences", ctypes.c_uint32), ("rest", ctypes.c_uint8 * 496))


class _Batch(ctypes.Structure):
    _fields_ = (("tokens", ctypes.c_int32), ("words", ctypes.c_void_p * 6))


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
_said: list[str] = []


@_LOG
def _keep(_level: int, text: bytes, _data: int) -> None:
    _said.append(text.decode(errors="replace"))


@cache
def _library() -> Any:
    if not LIBRARY.is_file():
        require.absent("llama.cpp: python tests/support/fetch_llama_samplers.py")
    library = ctypes.CDLL(str(LIBRARY))
    for name, result in (("model_default_params", _ModelParameters), ("context_default_params", _ContextParameters),
                         ("batch_get_one", _Batch)):
        getattr(library, f"llama_{name}").restype = result
    for name in ("model_load_from_file", "init_from_model", "get_memory", "get_logits_ith"):
        getattr(library, f"llama_{name}").restype = ctypes.c_void_p
    library.llama_log_set(_keep, None)
    library.llama_backend_init()
    return library


class LlamaModel:
    """A model file in llama.cpp, with keys and values in binary16. Use it as a context."""

    def __init__(self, path: Path, context: int, vocabulary: int) -> None:
        """ValueError, with the last that was said, for a file that it does not load."""
        library, self._vocabulary = _library(), vocabulary
        _said.clear()
        self._model = ctypes.c_void_p(library.llama_model_load_from_file(str(path).encode(),
                                                                         library.llama_model_default_params()))
        if not self._model:
            raise ValueError("llama.cpp does not load it: " + "".join(_said[-3:]))
        parameters = library.llama_context_default_params()
        parameters.context = parameters.batch = parameters.piece = context
        parameters.sequences = 1
        self._context = ctypes.c_void_p(library.llama_init_from_model(self._model, parameters))
        if not self._context:
            raise ValueError("llama.cpp makes no context: " + "".join(_said[-3:]))
        library.llama_set_n_threads(self._context, 1, 1)  # several would spin while they wait for each other

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _library().llama_free(self._context)
        _library().llama_model_free(self._model)

    def _next(self, tokens: Sequence[int]) -> Logits:
        """Read tokens on; logits after the last."""
        library = _library()
        words = (ctypes.c_int32 * len(tokens))(*tokens)
        if library.llama_decode(self._context, library.llama_batch_get_one(words, len(tokens))):
            raise ValueError("llama.cpp does not read a batch: " + "".join(_said[-3:]))
        address = library.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array((ctypes.c_float * self._vocabulary).from_address(address)).copy()

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[list[int], Logits]:
        """The `count` tokens that it chooses after a prompt, and the logits (count, vocabulary) that it chose by."""
        library = _library()
        library.llama_memory_clear(ctypes.c_void_p(library.llama_get_memory(self._context)), True)
        tokens: list[int] = []
        rows = [self._next(prompt)]
        while True:
            tokens.append(int(rows[-1].argmax()))
            if len(tokens) == count:
                return tokens, np.stack(rows)
            rows.append(self._next(tokens[-1:]))
