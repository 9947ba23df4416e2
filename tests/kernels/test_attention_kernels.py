"""The attention kernels against plain numpy, for every head size, bundle and way to cut the positions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from appliance.families.architecture import HEAD_SIZES
from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.layouts.attention import (
    CACHE_FORMATS,
    FIRST,
    PAGE,
    POSITION,
    SCRATCH_NBYTES,
    SPAN,
    head_nbytes,
    state_nbytes,
)
from appliance.kernels.runtime import table
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.signature import CSignature
from tests.support import caches
from tests.support.engines import kernels

pytest.importorskip("numba")


@functools.cache
def probe():
    """A kernel that attends a tile of rows over positions 0..end-1, span by span, as `step` does."""
    table.load()
    from appliance.kernels.code.attention import attention
    from appliance.kernels.compiler import lower
    from appliance.kernels.compiler.vector import get_f32, pointer_call

    call_attend = pointer_call(attention.SIGNATURE)

    def attention_probe(attend, query, rows, head_size, keys, values, pages, end, scratch, part, total, out,
                        sinks):
        spread = 4 * head_size + 128
        attention.start(total, rows, head_size)
        for row in range(rows if sinks else 0):
            attention.sink(total + spread * row, get_f32(sinks + 4 * row))
        for first in range(0, end, SPAN):
            attention.start(part, rows, head_size)
            call_attend(attend, query, part, rows, head_size, keys, values, pages, first, min(first + SPAN, end),
                        scratch, 64 if first + SPAN < end else 0)
            for row in range(rows):
                attention.merge(total + spread * row, part + spread * row, head_size)
        for row in range(rows):
            attention.finish(total + spread * row, out + 4 * head_size * row, head_size)

    signature = CSignature.parse("void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)")
    loader = lower.Loader()
    address = loader.load(Kernel("attention_probe", signature, attention_probe))
    return loader, signature.prototype(address)


def placed(data):
    """An array's bytes in aligned memory."""
    data = np.ascontiguousarray(data)
    memory = Memory(max(64, data.nbytes))
    memory.view(np.uint8, count=data.nbytes)[:] = data.reshape(-1).view(np.uint8)
    return memory


def attended(query, keys, values, positions, kind="f16", *, sinks=None, window=0):
    """`query` (rows, E) over `keys` and `values` (P, E), each row up to its position; scores come out as log2.

    `sinks` (rows,) are natural ones; `window`: positions that a row sees, 0: all."""
    rows, size = query.shape
    padding = ((0, -len(keys) % PAGE), (0, 0))  # what lies behind the end must not matter
    blocks = [caches.blocks(caches.form(kind, keys=x is keys),
                            np.pad(x.astype(np.float32), padding, constant_values=7.5), keys=x is keys)
              for x in (keys, values)]
    stride = max(head_nbytes(kind, size))  # of keys and values alike
    order = np.random.default_rng(len(keys)).permutation(len(blocks[0]))  # where each page lies
    cache = [placed(np.pad(each[np.argsort(order)], ((0, 0), (0, stride - each.shape[1])))) for each in blocks]
    pages = placed(order.astype(np.int64) * stride)
    asked, out, scratch = placed(query), placed(query), Memory(SCRATCH_NBYTES)
    if kind != "f16":
        kernels().function("query_q8")(asked.address, rows, size)
    states = [Memory(state_nbytes(size) * rows) for _ in range(2)]
    words = states[0].view(np.int32).reshape(rows, -1)
    words[:, POSITION // 4] = positions
    words[:, FIRST // 4] = [max(0, position + 1 - window) if window else 0 for position in positions]
    sinking = None if sinks is None else placed(sinks.astype(np.float32))
    probe()[1](kernels().address(f"attend_{kind}"), asked.address, rows, size, cache[0].address, cache[1].address,
               pages.address, max(positions) + 1, scratch.address, states[0].address, states[1].address,
               out.address, 0 if sinking is None else sinking.address)
    return out.view(np.float32).reshape(rows, size).copy()


def plain(query, keys, values, positions, kind="f16", *, sinks=None, window=0):
    """The same in float64, from the same rounded keys, values and queries."""
    out = np.empty(query.shape)
    asked = caches.query(kind, query)
    for row, position in enumerate(positions):
        seen = slice(max(0, position + 1 - window) if window else 0, position + 1)
        k, v = (caches.decoded(caches.form(kind, keys=x is keys), x[seen].astype(np.float32)).astype(np.float64)
                for x in (keys, values))
        scores = k @ asked[row] * np.log(2)
        every = scores if sinks is None else np.append(scores, sinks[row])
        weights = np.exp(scores - every.max())
        out[row] = weights @ v / np.exp(every - every.max()).sum()
    return out


def inputs(size, rows, length, seed=0, spread=1.0):
    """Random queries, keys and values."""
    rng = np.random.default_rng([seed, size, rows, length])
    query = (rng.normal(0, spread, (rows, size)) / np.sqrt(size)).astype(np.float32)
    keys, values = (rng.normal(0, 1, (length, size)).astype(np.float16) for _ in range(2))
    return query, keys, values


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("size", HEAD_SIZES)
def test_stored_bytes(size, kind):
    """Keys, values and queries have the bytes that plain numpy gives them, hostile numbers included."""
    rng = np.random.default_rng(size)
    x = (rng.normal(0, 1, (2, PAGE + 5, size)) * 10.0 ** rng.integers(-9, 7, (2, PAGE + 5, 1))).astype(np.float32)
    x[:, 3] = 0.0
    x[1, 5:7, 1], x[:, 7, 1], x[0, 8, 2], x[:, 9, 0] = [np.inf, -np.inf], 1e30, 1e-42, np.float32(-65504)
    x[:, 10] = rng.choice([-3.0, 3.0], size)
    x[0, 11, -2:], x[1, 12, 5], x[:, 49, 2:4] = np.nan, np.nan, np.nan
    found = [Memory(2 * nbytes) for nbytes in head_nbytes(kind, size)]
    for position in range(PAGE + 5):
        key, value = placed(x[0, position]), placed(x[1, position])
        to = [memory.address + position // PAGE * nbytes
              for memory, nbytes in zip(found, head_nbytes(kind, size), strict=True)]
        kernels().function(f"remember_{kind}")(key.address, value.address, *to, position % PAGE, size)
    for memory, rows, keys in zip(found, x, (True, False), strict=True):
        expected = caches.blocks(caches.form(kind, keys=keys), rows, keys=keys, values=x[1])
        assert np.array_equal(expected, memory.view(np.uint8).reshape(2, -1))


@pytest.mark.parametrize("size", HEAD_SIZES)
def test_queries_of_8_bits(size):
    """A quantised query has numpy's bytes; a row of zeros has scale 0."""
    query = inputs(size, 5, 1)[0]
    query[2] = 0.0
    memory = placed(query)
    kernels().function("query_q8")(memory.address, 5, size)
    assert caches.query_bytes(query) == memory.view(np.uint8, count=query.nbytes).tobytes()


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("size", HEAD_SIZES)
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (3, 100), (9, 300)])
def test_equals_plain_attention(size, rows, length, kind):
    """Softmax over the visible positions, to 3e-5 of the values' size, for 1 to 9 rows of different depth."""
    query, keys, values = inputs(size, rows, length, spread=8.0)
    positions = [max(0, length - 1 - 3 * row) for row in range(rows)]
    found = attended(query, keys, values, positions, kind)
    assert np.allclose(plain(query, keys, values, positions, kind), found, rtol=0, atol=3e-5)


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("window", [0, 128])
@pytest.mark.parametrize("length", [1, 70, 600])
def test_sinks_take_part_in_the_sum(length, window, kind):
    """A softmax over the visible positions and one more score, whose share is dropped; whatever that score is."""
    query, keys, values = inputs(64, 9, length, spread=4.0)
    positions, sinks = [max(0, length - 1 - 7 * row) for row in range(9)], np.array([0, 1, -1, 5, -5, 20, -200, 300, 2])
    found = attended(query, keys, values, positions, kind, sinks=sinks, window=window)
    expected = plain(query, keys, values, positions, kind, sinks=sinks, window=window)
    assert np.allclose(expected, found, rtol=0, atol=3e-5)
    without = attended(query, keys, values, positions, kind, window=window)
    assert np.array_equal(without[6], found[6])  # its sink is far below any score
    assert np.abs(found[7]).max() < 1e-30 < np.abs(without[7]).max()  # its sink is far above all


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("size", [32, 64, 80, 128])
def test_bits_do_not_depend_on_the_tile(size, kind):
    """A row has the same bits alone and in a tile whose other rows see more."""
    query, keys, values = inputs(size, 7, 600)
    positions = [0, 15, 63, 64, 255, 256, 599]
    together = attended(query, keys, values, positions, kind)
    for row, position in enumerate(positions):
        alone = attended(query[row:row + 1], keys[:position + 1], values[:position + 1], [position], kind)
        assert np.array_equal(alone[0], together[row])


@pytest.mark.parametrize("kind", CACHE_FORMATS)
def test_extreme_scores(kind):
    """Scores far apart neither overflow nor lose the one that counts."""
    query, keys, values = inputs(64, 2, 200)
    query *= 3000
    found = attended(query, keys, values, [199, 80], kind)
    assert np.allclose(plain(query, keys, values, [199, 80], kind), found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("bad", [0, 63, 100, 255, 256, 300])
def test_what_is_no_number_is_seen(kind, bad):
    """A key that is marked makes those rows NaN that see it, and no other row of the tile; so does a query its own."""
    query, keys, values = inputs(64, 9, 301)
    positions = [0, 62, 99, 101, 254, 256, 257, 299, 300]
    expected = attended(query, keys, values, positions, kind)
    wrong, asked = keys.copy(), query.copy()
    wrong[bad, 0], asked[3, 17] = np.nan, np.nan
    found = attended(asked, wrong, values, positions, kind)
    for row, position in enumerate(positions):
        if position >= bad or row == 3:
            assert np.isnan(found[row]).all()
        else:
            assert np.array_equal(expected[row], found[row])


@pytest.mark.parametrize("kind", CACHE_FORMATS)
def test_equal_scores_give_the_mean(kind):
    """With a query of zeros every visible position counts the same."""
    _, keys, values = inputs(48, 1, 130)
    found = attended(np.zeros((1, 48), np.float32), keys, values, [129], kind)
    kept = caches.decoded(caches.form(kind, keys=False), values.astype(np.float32)).astype(np.float64)
    assert np.allclose(kept.mean(0), found[0], atol=1e-6)
