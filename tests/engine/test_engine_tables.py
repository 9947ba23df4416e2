"""Block formats whose weights are numbers of a table, beside llama.cpp: its quantiser's files, values and choices."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.models.file.quants import FORMATS
from tests.support import decoders, family_models, quantisers, require
from tests.support.engines import kernels, opened
from tests.support.fetch_llama_samplers import LIBRARY
from tests.support.llama_models import LlamaModel
from tests.support.logits import logits_of

NAMES = ("IQ4_NL", "IQ4_XS", "MXFP4")


def _quantised(name: str, weights: np.ndarray) -> bytes:
    """Rows of weights (rows, columns) by llama.cpp's own quantiser."""
    if not LIBRARY.is_file():
        require.absent("llama.cpp: python tests/support/fetch_llama_samplers.py")
    library = ctypes.CDLL(str(LIBRARY))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    weights, (rows, columns) = np.ascontiguousarray(weights, np.float32), weights.shape
    out = ctypes.create_string_buffer(rows * FORMATS[name].row_nbytes(columns))
    used = library.ggml_quantize_chunk(
        FORMATS[name].ggml_id, weights.ctypes.data_as(ctypes.c_void_p), out, ctypes.c_int64(0), ctypes.c_int64(rows),
        ctypes.c_int64(columns), None)
    assert len(out) == used
    return out.raw


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    """What llama.cpp's quantiser makes is read bit for bit as by the gguf package's decoder."""
    weights = np.random.default_rng(3).standard_normal((37, 512)).astype(np.float32)
    data = _quantised(name, weights)
    theirs = gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(37, -1), gguf.GGMLQuantizationType[name])
    ours = decoders.dequantise(FORMATS[name], data, 37, 512)
    assert theirs.view("u4").tolist() == ours.view("u4").tolist()
    assert 0.05 < np.abs(weights - ours).mean() < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpps_choices(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose matrices are all of the format, made by llama.cpp's quantiser: fed its greedy continuations, the
    engine's best token is its own wherever its two best are apart."""
    monkeypatch.setattr(family_models, "quantise", lambda kind, weights: _quantised(kind, weights)
                        if kind == name else quantisers.quantise(kind, weights))
    data = family_models.model.__wrapped__("llama.wide", (name,))
    (tmp_path / "model.gguf").write_bytes(data)
    with LlamaModel(tmp_path / "model.gguf", family_models.CONTEXT, family_models.VOCABULARY) as peer:
        theirs = [(prompt, *peer.greedy(prompt, 40)) for prompt in family_models.prompts()]
    apart = wrong = 0
    with opened(data) as source, Engine.open(source, EngineOptions(
            threads=2, slots=1, context_length=family_models.CONTEXT), kernels=kernels()) as engine:
        assert {name} == {info.format.name for info in source.tensors.values() if len(info.shape) == 2}
        for prompt, tokens, rows in theirs:
            found = logits_of(engine, [*prompt, *tokens[:-1]], last=len(tokens))
            second, best = np.sort(rows, axis=1)[:, -2:].T
            apart += int((best - second > 0.5).sum())
            wrong += int(((found.argmax(axis=1) != tokens) & (best - second > 0.5)).sum())
    assert apart >= 100
    assert wrong <= apart / 1000
