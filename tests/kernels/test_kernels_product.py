"""Product kernels: near their plain twins, the same bits for every tile, batch, range and target, hostile scales."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from appliance.kernels.code.product.patch import split
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table, targets
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import quants
from tests.support import decoders, kernel_reference, libraries
from tests.support.kernel_bits import bits
from tests.support.kernel_cases import Product, largest_weights, random_weights

FORMATS = list(shapes.SHAPES)
OTHERS = [target.name for target in targets.supported()[1:]]


@pytest.fixture(scope="module")
def kernels() -> KernelTable:
    """The kernels of this CPU's best target."""
    return table.load()


@pytest.mark.parametrize("count", [0, 1, 3, 9, 53])
@pytest.mark.parametrize("parts", [1, 2, 8, 16])
def test_shares_of_what_is_prefetched_are_even_and_lack_nothing(count: int, parts: int) -> None:
    """Every line is asked for once, in order, and no step asks for two more than another."""
    lines = range(0, 64 * count, 64)
    shares = [list(split(lines, part, parts)) for part in range(parts)]
    assert list(lines) == [line for share in shares for line in share]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def _activations(tokens: int, columns: int) -> np.ndarray:
    return np.random.default_rng([tokens, columns]).standard_normal((tokens, columns)).astype(np.float32)


def _twin(name: str, data: np.ndarray, rows: int, columns: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the plain twin gives, and the magnitude of the terms; minima of Q4_1 and Q5_1 multiply rounded sums."""
    block_format = quants.FORMATS[name]
    minima = None
    if name in ("Q4_1", "Q5_1"):
        blocks = data.copy().view(quants.layout(block_format))
        minima = blocks["m"].astype(np.float32).reshape(rows, -1)
        blocks["m"] = 0
        data = blocks.view(np.uint8)
    weights = decoders.dequantise(block_format, data, rows, columns)
    magnitude = kernel_reference.magnitude(name, weights, x)
    if minima is not None:
        magnitude += np.abs(x).reshape(len(x), -1, 32).sum(axis=2) @ np.abs(minima).T
    return kernel_reference.product(name, weights, x, minima), magnitude


@pytest.mark.parametrize("name", FORMATS)
def test_product_is_near_its_twin(name: str, kernels: KernelTable) -> None:
    """Within 1e-5 of the largest result and 2e-6 of the magnitude of a result's terms, for every tile of tokens."""
    rows, columns = 37, 1280
    data, x = random_weights(name, rows, columns), _activations(53, columns)
    expected, magnitude = _twin(name, data, rows, columns, x)
    got = Product(kernels, name, data, rows, columns)(x)[:, :rows]
    assert 1e-5 * np.abs(expected).max() > np.abs(expected - got).max()
    assert (2e-6 * magnitude > np.abs(expected - got)).all()


@pytest.mark.parametrize("name", ["Q2_K", "Q4_K", "Q6_K", "Q4_1", "Q8_0", "F16"])
def test_long_rows(name: str, kernels: KernelTable) -> None:
    """Rows of 33 times 1024 columns stay as near: integer sums do not overflow, float sums do not drift."""
    rows, columns = 16, 33 * 1024
    data, x = random_weights(name, rows, columns), _activations(34, columns)
    expected, magnitude = _twin(name, data, rows, columns, x)
    got = Product(kernels, name, data, rows, columns)
    assert (2e-6 * magnitude > np.abs(expected - got(x))).all()
    np.testing.assert_array_equal(got(x[:2]).view(np.uint32), got(x)[:2].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_extreme_quants_do_not_overflow(name: str, kernels: KernelTable) -> None:
    """All weights' bits set, activations all +1 or -1 (quantised to 127): the largest sums there are."""
    rows, columns = 16, 1024
    data = np.full(rows * quants.FORMATS[name].row_nbytes(columns), 0xFF, np.uint8)
    blocks = data.view(quants.layout(quants.FORMATS[name]))
    for field in {"d", "dmin", "m", "s", "x"} & set(blocks.dtype.names or ()):
        blocks[field] = 0x3F80 if name == "BF16" else 1.0
    if "e" in (blocks.dtype.names or ()):
        blocks["e"] = 128  # a power of two by its exponent; 255 is beyond all numbers
    x = np.ones((36, columns), np.float32)
    x[1::3], x[2::3, ::2] = -1.0, -1.0
    expected, magnitude = _twin(name, data, rows, columns, x)
    got = Product(kernels, name, data, rows, columns)(x)
    assert (2e-6 * magnitude + 1e-3 > np.abs(expected - got)).all()


@pytest.mark.parametrize("name", FORMATS)
def test_bits_do_not_depend_on_the_batch(name: str, kernels: KernelTable) -> None:
    """A token's results are the same bits alone and in every number of tokens, at every place of a tile."""
    rows, columns = 80, 768
    product, x = Product(kernels, name, random_weights(name, rows, columns), rows, columns), _activations(115, columns)
    alone = np.concatenate([product(x[t:t + 1]) for t in range(len(x))])
    for tokens in (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 26, 31, 32, 33, 47, 64, 115):
        np.testing.assert_array_equal(alone[:tokens].view(np.uint32), product(x[:tokens]).view(np.uint32))
    for first, last in ((3, 22), (9, 73)):
        np.testing.assert_array_equal(alone[first:last].view(np.uint32), product(x[first:last]).view(np.uint32))


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_sums_of_a_block_are_rounded_once(name: str, kernels: KernelTable) -> None:
    """The largest sums give the bits of Python's integers, rounded to float32 once, for every tile of tokens. (Q4_K and
    Q5_K have minima, which are zero here.)"""
    rows, columns = 41, 256
    data = largest_weights(name, rows, columns)
    blocks = data.view(quants.layout(quants.FORMATS[name]))
    blocks["d"] = 1.0
    if "dmin" in (blocks.dtype.names or ()):
        blocks["dmin"] = 0.0
    x = 1 - np.abs(_activations(51, columns)) / 100
    quantised = kernel_reference.quantise_q8_256(x)
    weights = decoders.dequantise(quants.FORMATS[name], data, rows, columns).astype(np.int64)
    exact = quantised.values.astype(np.int64) @ weights.T
    expected = exact.astype(np.float32) * quantised.scales
    product = Product(kernels, name, data, rows, columns)
    assert (np.abs(exact).max() > 2 ** 24) == (name in ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS"))
    for tokens in (1, 2, 3, 6, 15, 16, 35, 51):
        np.testing.assert_array_equal(expected[:tokens], product(x[:tokens])[:, :rows])


@pytest.mark.parametrize("name", FORMATS)
def test_bits_do_not_depend_on_the_split(name: str, kernels: KernelTable) -> None:
    """Groups multiplied in any ranges, and in any number of calls, give the bits of one call."""
    rows, columns = 7 * 16 - 3, 2304
    product = Product(kernels, name, random_weights(name, rows, columns), rows, columns)
    for tokens in (1, 3, 14, 35):
        x = _activations(tokens, columns)
        whole = product(x).view(np.uint32)
        for groups in ([(0, 3), (3, 7)], [(6, 7), (0, 1), (1, 6)]):
            np.testing.assert_array_equal(whole, product(x, groups=groups).view(np.uint32))


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "F16"])
def test_no_weights_stay_on_the_stack(name: str, kernels: KernelTable) -> None:
    """What a product unpacks in its frame, it overwrites: neither bytes of weights nor signed ones are found there, nor
    floats."""
    rows, columns = 48, 1024
    data, x = random_weights(name, rows, columns), _activations(70, columns)
    product = Product(kernels, name, data, rows, columns)
    product(x)
    maps = Path("/proc/self/maps").read_text().splitlines()
    area = next(line.split()[0] for line in maps if line.endswith("[stack]"))
    first, last = (int(part, 16) for part in area.split("-"))
    with Path("/proc/self/mem").open("rb") as memory:
        memory.seek(first)
        stack = memory.read(last - first)
    for group in range(0, rows, 16):
        for row in _unpacked(name, data, group, columns):
            assert row not in stack


def _unpacked(name: str, data: np.ndarray, group: int, columns: int) -> list[bytes]:
    """64 bytes for every 4 columns of 16 rows, as `amx_blocks` and `amx_superblocks` have them in scratch memory; for
    every column, as `widen` has."""
    nbytes = quants.FORMATS[name].row_nbytes(columns)
    matrix = data.view(np.uint8).reshape(-1, nbytes)[group:group + 16]
    if name == "F16":
        return [each.tobytes() for each in matrix.view(np.float16).astype(np.float32).T]
    if name == "Q8_0":
        quads = matrix.reshape(16, -1, 34)[:, :, 2:].reshape(16, -1, 4)
        return [each.tobytes() for each in quads.swapaxes(0, 1)]
    blocks = np.ascontiguousarray(matrix).view(quants.layout(quants.FORMATS[name]))
    scales = decoders.scale_min_k(blocks["scales"].reshape(-1, 12))[0].astype(np.uint8).reshape(16, -1, 4, 2, 1)
    pairs = blocks["qs"].reshape(16, -1, 4, 32)
    quants4 = np.stack([pairs & 15, pairs >> 4], axis=3)
    return [each.tobytes() for part in (scales & 7, scales >> 3)
            for each in (quants4 * part).reshape(16, -1, 4).swapaxes(0, 1) if each.any()]


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q8_0"])
def test_bits_do_not_depend_on_the_runs_of_groups(name: str, kernels: KernelTable) -> None:
    """More weights than stay in cache beside some tokens, in numbers that are multiplied at once and in two parts."""
    rows, columns = 1136, 2048  # 71 groups
    product, x = Product(kernels, name, random_weights(name, rows, columns), rows, columns), _activations(41, columns)
    alone = np.concatenate([product(x[t:t + 1]) for t in range(len(x))])
    for tokens in (8, 16, 24, 41):
        np.testing.assert_array_equal(alone[:tokens].view(np.uint32), product(x[:tokens]).view(np.uint32))


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0"])
def test_bits_do_not_depend_on_the_blocks_of_tokens(name: str, kernels: KernelTable) -> None:
    """More tokens than are done at a time, and more columns than stay in cache."""
    rows, columns = 48, 4096
    product = Product(kernels, name, random_weights(name, rows, columns), rows, columns)
    x = _activations(401, columns)
    whole = product(x)
    for t in (0, 127, 128, 191, 192, 255, 256, 397, 400):
        np.testing.assert_array_equal(whole[t].view(np.uint32), product(x[t:t + 1])[0].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_accumulate_adds_to_what_is_there(name: str, kernels: KernelTable) -> None:
    """Starting from y the sum goes on from y's value; the bits again do not depend on the batch."""
    rows, columns = 20, 512
    product, x = Product(kernels, name, random_weights(name, rows, columns), rows, columns), _activations(15, columns)
    start = np.random.default_rng(1).standard_normal((15, 32)).astype(np.float32)
    expected, got = start.astype(np.float64) + product(x), product(x, start=start)
    np.testing.assert_allclose(expected, got, rtol=0, atol=1e-5 * np.abs(expected).max())
    for t in (0, 8, 14):
        single = product(x[t:t + 1], start=start[t:t + 1])
        np.testing.assert_array_equal(got[t].view(np.uint32), single[0].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_only_the_given_groups_are_written(name: str, kernels: KernelTable) -> None:
    """Rows outside of the range keep their bytes, for one token, a tile and a rest."""
    rows, columns = 64, 256
    product = Product(kernels, name, random_weights(name, rows, columns), rows, columns)
    for tokens in (1, 9, 13):
        got = product(_activations(tokens, columns), groups=[(1, 3)])
        assert np.isnan(got[:, :16]).all()
        assert np.isfinite(got[:, 16:48]).all()
        assert np.isnan(got[:, 48:]).all()


def test_every_scale_that_is_a_power_of_two(kernels: KernelTable) -> None:
    """MXFP4's 256 scales, the subnormal and the largest among them, as products and as decoded weights; Python's
    `ldexp` has the numbers."""
    rows, columns = 256, 256
    data = np.zeros(rows * quants.FORMATS["MXFP4"].row_nbytes(columns), np.uint8)
    blocks = data.view(quants.layout(quants.FORMATS["MXFP4"])).reshape(rows, -1)
    blocks["e"], blocks["qs"][:, 0, 0] = np.arange(rows)[:, None], 1  # E2M1's 0.5, which counts as 1
    x = np.zeros((14, columns), np.float32)
    x[:, 0] = 127.0
    expected = np.array([math.ldexp(1.0, e - 128) for e in range(rows)])
    product = Product(kernels, "MXFP4", data, rows, columns)
    with np.errstate(over="ignore"):
        wanted = (expected * 127).astype(np.float32)
    for tokens in (1, 2, 4, 14):
        np.testing.assert_array_equal(np.tile(wanted, (tokens, 1)), product(x[:tokens]))
    out = np.empty(columns, np.float32)
    for e in range(rows):
        kernels.function("gather_mxfp4")(product.weights.address, columns, e, out.ctypes.data)
        assert expected[e] == out[0]


HOSTILE = [0x7C00, 0xFC00, 0x7C01, 0xFE00]  # binary16 infinities and NaNs


@pytest.mark.parametrize("name", [name for name in FORMATS if "d" in (quants.layout(quants.FORMATS[name]).names or ())])
def test_hostile_scales_stay_in_their_row(name: str, kernels: KernelTable) -> None:
    """A block scale that is infinite or NaN makes its own row infinite or NaN, and no other."""
    rows, columns = 32, 512
    data = random_weights(name, rows, columns)
    clean = Product(kernels, name, data.copy(), rows, columns)
    blocks = data.view(quants.layout(quants.FORMATS[name])).reshape(rows, -1)
    for row, value in enumerate(HOSTILE):
        blocks["d"][7 * row, 1] = np.array(value, np.uint16).view(np.float16)
    x = _activations(13, columns)
    got, expected = Product(kernels, name, data, rows, columns)(x), clean(x)
    hostile = [7 * row for row in range(len(HOSTILE))]
    others = [row for row in range(rows) if row not in hostile]
    assert not np.isfinite(got[:, hostile]).any()
    np.testing.assert_array_equal(expected[:, others].view(np.uint32), got[:, others].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_hostile_activations_stay_with_their_token(name: str, kernels: KernelTable) -> None:
    """A token with NaN or infinity has no finite result; with the largest and the smallest numbers it does not crash.
    No other token changes."""
    rows, columns = 32, 512
    product, x = Product(kernels, name, random_weights(name, rows, columns), rows, columns), _activations(9, columns)
    expected = product(x)
    for place, value in enumerate((np.nan, np.inf, -np.inf, 3.4e38, 1e-45)):
        hostile = x.copy()
        hostile[4, 40 * place:40 * place + 3] = np.float32(value)
        got = product(hostile)
        if not np.isfinite(value):
            assert not np.isfinite(got[4]).any()
        keep = [t for t in range(9) if t != 4]
        np.testing.assert_array_equal(expected[keep].view(np.uint32), got[keep].view(np.uint32))


@pytest.mark.parametrize("name", FORMATS)
def test_zero_activations_give_zero(name: str, kernels: KernelTable) -> None:
    """Blocks of zeros have scale 0 and no NaN comes of it."""
    rows, columns = 16, 512
    got = Product(kernels, name, random_weights(name, rows, columns), rows, columns)(np.zeros((7, columns), np.float32))
    np.testing.assert_array_equal(np.zeros((7, 16), np.float32), got)


@pytest.mark.guests
@pytest.mark.parametrize("name", OTHERS)
def test_every_target_gives_the_same_bits(name: str, kernels: KernelTable) -> None:
    """Products of every format and all quantisers, compiled for another target, bit for bit."""
    assert bits(kernels, FORMATS) == bits(table.load(name, libraries.library(name)), FORMATS)
