"""Quantisers and row lookup: bit for bit what plain numpy and the gguf package give."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import table
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import quants
from tests.support import decoders, kernel_reference
from tests.support.kernel_cases import fields, packed, quantised, random_weights


@pytest.fixture(scope="module")
def kernels() -> KernelTable:
    """The kernels of this CPU's best target."""
    return table.load()


def _cases(columns: int) -> np.ndarray:
    """Tokens with every kind of block: normal, ties, zeros, one value, huge, tiny, and opposite extremes."""
    random = np.random.default_rng(3)
    x = random.standard_normal((17, columns)).astype(np.float32)
    x[1] *= np.float32(1e30)
    x[2] *= np.float32(1e-30)
    x[3] = 0.0
    x[4, ::7] = 0.0
    x[5] = random.integers(-254, 255, columns) / np.float32(2.0)  # 127 is the extreme: halves are ties
    x[5, ::32] = 127.0
    x[6] = np.float32(-0.0)
    x[7], x[7, 100] = 0.0, -3.0
    x[8, 10], x[8, 20] = 9.0, -9.0   # the first of equal magnitudes decides the sign
    x[9, 10], x[9, 20] = -9.0, 9.0
    x[10] = np.abs(x[10])
    return x


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 6, 7, 11, 12, 17])
def test_q8_32_is_the_twins(tokens: int, kernels: KernelTable) -> None:
    """Bytes, multiples of sums, scale and scaled sum, for every tile plan."""
    columns = 256
    x = _cases(columns)[17 - tokens:]
    expected = kernel_reference.quantise_q8_32(x)
    got = fields("q8_32", quantised(kernels, "q8_32", x), columns, tokens)
    values = np.ascontiguousarray(got[:, :, :8]).view(np.int8).reshape(tokens, columns)
    np.testing.assert_array_equal(expected.values, values)
    sums = expected.values.reshape(tokens, -1, 32).sum(axis=2, dtype=np.int32)
    for field, factor in ((shapes.Q32_MINUS8, -8), (shapes.Q32_MINUS16, -16), (shapes.Q32_MINUS128, -128)):
        np.testing.assert_array_equal(factor * sums, got[:, :, field])
    np.testing.assert_array_equal(expected.scales.view(np.int32), got[:, :, shapes.Q32_SCALE])
    np.testing.assert_array_equal(expected.sums, got[:, :, shapes.Q32_SUM].view(np.float32))


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 6, 7, 11, 12, 17])
def test_q8_256_is_the_twins(tokens: int, kernels: KernelTable) -> None:
    """Bytes, sums in all three forms, and scale, for every tile plan."""
    columns = 768
    x = _cases(columns)[17 - tokens:]
    expected = kernel_reference.quantise_q8_256(x)
    got = fields("q8_256", quantised(kernels, "q8_256", x), columns, tokens)
    values = np.ascontiguousarray(got[:, :, :64]).view(np.int8).reshape(tokens, columns)
    np.testing.assert_array_equal(expected.values, values)
    np.testing.assert_array_equal(expected.scales.view(np.int32), got[:, :, shapes.Q256_SCALE])
    sums = expected.values.reshape(tokens, -1, 16, 16).sum(axis=3, dtype=np.int32)
    np.testing.assert_array_equal(-32 * sums, got[:, :, shapes.Q256_MINUS32:shapes.Q256_MINUS32 + 16])
    for high, low, found in ((shapes.Q256_HIGH16, shapes.Q256_LOW16, sums),
                             (shapes.Q256_HIGH32, shapes.Q256_LOW32, sums.reshape(tokens, -1, 8, 2).sum(axis=3))):
        count = found.shape[2]
        highs = np.ascontiguousarray(got[:, :, high:high + count // 4]).view(np.int8)
        lows = np.ascontiguousarray(got[:, :, low:low + count // 4]).view(np.int8)
        np.testing.assert_array_equal(found, 128 * highs.astype(np.int32) + lows)
        assert lows.min() >= 0


def test_f32_is_a_copy(kernels: KernelTable) -> None:
    """Unquantised activations keep their bits."""
    x = _cases(144)
    got = fields("f32", quantised(kernels, "f32", x), 144, len(x))
    np.testing.assert_array_equal(x.view(np.int32), got[:, :, 0])


@pytest.mark.parametrize("kind", shapes.ACTIVATIONS)
def test_threads_may_share_the_tokens(kind: str, kernels: KernelTable) -> None:
    """Ranges of tokens quantised in separate calls, out of order, give the bytes of one call."""
    columns, tokens = 512, 17
    x = _cases(columns)
    whole, parts = quantised(kernels, kind, x), quantised(kernels, kind, x)
    parts.wipe()
    function = kernels.function(f"quantise_{kind}")
    for first, last in ((9, 17), (0, 4), (4, 9)):
        function(x.ctypes.data, x.strides[0], columns, parts.address, first, last, tokens)
    assert whole.view("u1").tobytes() == parts.view("u1").tobytes()


@pytest.mark.parametrize("kind", ["q8_32", "q8_256"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38, 1e-45])
def test_bytes_stay_within_127(kind: str, value: float, kernels: KernelTable) -> None:
    """Whatever the input, no byte is -128: integer sums keep their bounds."""
    x = _cases(256)
    x[::2, ::5] = np.float32(value)
    got = fields(kind, quantised(kernels, kind, x), 256, len(x))
    count = shapes.ACTIVATIONS[kind].elements // 4
    assert np.ascontiguousarray(got[:, :, :count]).view(np.int8).min() >= -127


@pytest.mark.parametrize("name", [name for name in quants.FORMATS if name != "Q8_1"])
def test_gather_is_the_gguf_packages_decoder(name: str, kernels: KernelTable) -> None:
    """Every row of a matrix in kernel order decodes to the bits that the gguf package gives for the GGUF row."""
    rows, columns = 35, 512
    data = random_weights(name, rows, columns)
    expected = gguf.dequantize(data.reshape(rows, -1), gguf.GGMLQuantizationType[name])
    weights, got = packed(name, data, rows, columns), np.full((rows, columns + 16), np.nan, np.float32)
    function = kernels.function(f"gather_{name.lower()}")
    for row in range(rows):
        function(weights.address, columns, row, got[row].ctypes.data)
    np.testing.assert_array_equal(expected.view(np.uint32), got[:, :columns].view(np.uint32))
    assert np.isnan(got[:, columns:]).all()


def test_gather_of_q8_1_is_the_decoder_of_quants(kernels: KernelTable) -> None:
    """The one format that the gguf package does not decode."""
    data = random_weights("Q8_1", 16, 64)
    expected = decoders.dequantise(quants.FORMATS["Q8_1"], data, 16, 64)
    weights, got = packed("Q8_1", data, 16, 64), np.empty((16, 64), np.float32)
    for row in range(16):
        kernels.function("gather_q8_1")(weights.address, 64, row, got[row].ctypes.data)
    np.testing.assert_array_equal(expected.view(np.uint32), got.view(np.uint32))


def test_sizes() -> None:
    """Sizes of `shapes` are those of the layout and of ggml's blocks."""
    from appliance.models.file import layout
    for name, shape in shapes.SHAPES.items():
        block_format = quants.FORMATS[name]
        assert (block_format.elements, block_format.nbytes) == (shape.elements, shape.nbytes)
        assert layout.group_nbytes(block_format, 1024) == shapes.group_nbytes(name, 1024)
    with pytest.raises(ValueError, match="multiple of 256"):
        shapes.group_nbytes("Q4_K", 128)
    with pytest.raises(ValueError, match="multiple of 16"):
        shapes.group_nbytes("F16", 24)
    with pytest.raises(ValueError, match="whole blocks of 32"):
        shapes.token_nbytes("q8_32", 40)
