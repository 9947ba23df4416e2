"""The attention kernels against plain numpy, for every head size, tile shape and way to cut the positions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from appliance.engine.architecture import HEAD_SIZES
from appliance.engine.kernels import table
from appliance.engine.kernels.attention_layout import BLOCK, LANES, POSITION, SPAN, WEIGHTS_NBYTES, state_nbytes
from appliance.engine.kernels.memory import Memory
from appliance.engine.kernels.registry import Kernel
from appliance.engine.kernels.signature import Signature

pytest.importorskip("numba")


@functools.cache
def probe():
    """A kernel that attends a tile of rows over positions 0..end-1, span by span, as `step` does."""
    table.load()
    from appliance.engine.kernels import attention, lower

    def attention_probe(query, rows, head_size, keys, values, stride, end, weights, part, total, out):
        spread = 4 * head_size + 128
        attention.start(total, rows, head_size)
        for first in range(0, end, SPAN):
            attention.start(part, rows, head_size)
            attention.attend(query, part, rows, head_size, keys, values, stride, first, min(first + SPAN, end), weights)
            for row in range(rows):
                attention.merge(total + spread * row, part + spread * row, head_size)
        for row in range(rows):
            attention.finish(total + spread * row, out + 4 * head_size * row, head_size)

    signature = Signature.parse("void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
    loader = lower.Loader()
    address = loader.load(Kernel("attention_probe", signature, attention_probe))
    return loader, signature.prototype(address)


def attended(query, keys, values, positions):
    """`query` (rows, E) over `keys` and `values` (P, E), each row up to its position; scores come out as log2."""
    rows, size = query.shape
    blocks = -(-len(keys) // BLOCK)
    padded = np.full((2, blocks * BLOCK, size), 7.5, np.float16)  # what lies behind the end must not matter
    padded[0, :len(keys)], padded[1, :len(keys)] = keys, values
    lanes = padded[0].reshape(-1, LANES, size).swapaxes(1, 2)
    memory = [Memory(max(64, x.nbytes)) for x in (query, lanes, padded[1], query)]
    for place, data in zip(memory[:3], (query, lanes, padded[1]), strict=True):
        place.view(data.dtype)[:] = np.ascontiguousarray(data).reshape(-1)
    states = [Memory(state_nbytes(size) * rows) for _ in range(2)]
    words = states[0].view(np.int32).reshape(rows, -1)
    words[:, POSITION // 4] = positions
    weights = Memory(4 * WEIGHTS_NBYTES)
    probe()[1](memory[0].address, rows, size, memory[1].address, memory[2].address, BLOCK * size * 2,
               max(positions) + 1, weights.address, states[0].address, states[1].address, memory[3].address)
    return memory[3].view(np.float32).reshape(rows, size).copy()


def plain(query, keys, values, positions):
    """The same in float64."""
    out = np.empty(query.shape)
    for row, position in enumerate(positions):
        k, v = (x[:position + 1].astype(np.float64) for x in (keys, values))
        scores = k @ query[row].astype(np.float64)
        weights = 2.0 ** (scores - scores.max())
        out[row] = weights @ v / weights.sum()
    return out


def inputs(size, rows, length, seed=0, spread=1.0):
    """Random queries, keys and values."""
    rng = np.random.default_rng([seed, size, rows, length])
    query = (rng.normal(0, spread, (rows, size)) / np.sqrt(size)).astype(np.float32)
    keys, values = (rng.normal(0, 1, (length, size)).astype(np.float16) for _ in range(2))
    return query, keys, values


@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 100), (9, 300)])
def test_equals_plain_attention(size, rows, length):
    """Softmax over the visible positions, to 3e-5 of the values' size, for 1 to 9 rows of different depth."""
    query, keys, values = inputs(size, rows, length, spread=8.0)
    positions = [max(0, length - 1 - 3 * row) for row in range(rows)]
    found = attended(query, keys, values, positions)
    assert np.allclose(plain(query, keys, values, positions), found, rtol=0, atol=3e-5)


@pytest.mark.parametrize("size", [32, 64, 80, 128])
def test_bits_do_not_depend_on_the_tile(size):
    """A row has the same bits alone and in a tile whose other rows see more."""
    query, keys, values = inputs(size, 7, 600)
    positions = [0, 15, 63, 64, 255, 256, 599]
    together = attended(query, keys, values, positions)
    for row, position in enumerate(positions):
        alone = attended(query[row:row + 1], keys[:position + 1], values[:position + 1], [position])
        assert np.array_equal(alone[0], together[row])


def test_extreme_scores():
    """Scores far apart neither overflow nor lose the one that counts."""
    query, keys, values = inputs(64, 2, 200)
    query *= 3000
    found = attended(query, keys, values, [199, 80])
    assert np.allclose(plain(query, keys, values, [199, 80]), found, rtol=1e-4, atol=1e-4)


def test_equal_scores_give_the_mean():
    """With a query of zeros every visible position counts the same."""
    _, keys, values = inputs(48, 1, 130)
    found = attended(np.zeros((1, 48), np.float32), keys, values, [129])
    assert np.allclose(values.astype(np.float64).mean(0), found[0], atol=1e-6)
