"""Activations of the feed-forward network against float64."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.layouts.step import GELU, RELU2, SILU, SWIGLU_OAI
from appliance.kernels.runtime import table
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.signature import CSignature
from examples import plain_engine

pytest.importorskip("numba")


@functools.cache
def _probe() -> tuple[Any, Any]:
    table.load()
    from appliance.kernels.code.rows.activation import activate
    from appliance.kernels.compiler import lower

    def activation_probe(kind: int, gate: int, up: int, count: int) -> None:
        activate(kind, gate, up, count)

    signature, loader = CSignature.parse("void(i8,i8,i8,i8)"), lower.Loader()
    return loader, signature.prototype(loader.load(Kernel("activation_probe", signature, activation_probe)))


def _activated(kind: int, gate: np.ndarray, up: np.ndarray | None) -> np.ndarray:
    memory = [Memory(gate.nbytes) for _ in range(2)]
    for part, values in zip(memory, (gate, up), strict=True):
        if values is not None:
            part.view(np.float32)[:] = values
    _probe()[1](kind, memory[0].address, 0 if up is None else memory[1].address, len(gate))
    return memory[0].view(np.float32).copy()


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def _expected(kind: int, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    gate, up = gate.astype(np.float64), up.astype(np.float64)
    if kind == SWIGLU_OAI:  # as ggml_swiglu_oai and GptOssExperts of transformers
        gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
        return np.asarray((up + 1) * (gate * _sigmoid(1.702 * gate)))
    if kind == RELU2:
        return np.square(np.maximum(gate, 0.0)) * up
    if kind == SILU:
        return np.asarray(gate * _sigmoid(gate) * up)
    return np.asarray(0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up)


@pytest.mark.parametrize("kind", [SILU, GELU, SWIGLU_OAI, RELU2])
def test_activations(kind: int) -> None:
    """To a few units in the last place, also beyond the limits of gpt-oss' own."""
    random = np.random.default_rng(kind)
    gate, up = (random.normal(0, 6, 4096).astype(np.float32) for _ in range(2))
    gate[:8], up[:8] = [7, 7.5, -7, 0, 1e4, -1e4, -60, 6.9], [7, -7, -7.5, 0, -1e4, 1e4, 8, 6.9]
    found, expected = _activated(kind, gate, up), _expected(kind, gate, up)
    assert np.allclose(expected, found, rtol=2e-6 if kind != GELU else 2e-5, atol=1e-5)


def test_clamps_of_gpt_oss() -> None:
    """A gate is clamped above, the other factor on both sides; the plain engine has the same bits."""
    gate, up = (np.linspace(*ends, 4096, dtype=np.float32) for ends in ((-12, 12), (15, -15)))
    found = _activated(SWIGLU_OAI, gate, up)
    assert np.array_equal(plain_engine.clamped(gate, up).view(np.uint32), found.view(np.uint32))
    most = _activated(SWIGLU_OAI, np.full(16, 7, np.float32), np.full(16, 7, np.float32))[0]
    beyond = [_activated(SWIGLU_OAI, np.full(16, g, np.float32), np.full(16, u, np.float32))[0]
              for g, u in ((8.0, 7.0), (1e9, 1e9), (7.0, 9.0))]
    assert [most] * 3 == beyond
    assert 0.0 == _activated(SWIGLU_OAI, np.full(16, 3.0, np.float32), np.full(16, -1.0, np.float32))[0]


def test_what_is_no_number_stays_so() -> None:
    """No clamp hides it."""
    gate, up = np.ones(16, np.float32), np.ones(16, np.float32)
    gate[3], up[7] = np.nan, np.nan
    assert {3, 7} == set(np.flatnonzero(np.isnan(_activated(SWIGLU_OAI, gate, up))))
    assert {3} == set(np.flatnonzero(np.isnan(_activated(RELU2, gate, None))))
