"""Kernel order of weights: exact inverse, padding, and the place of single bytes as the docstrings say."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from appliance.errors import FormatError
from appliance.models.file import layout, quants
from appliance.models.sealed import order as kernel_order
from tests.support.kernel_order import deinterleave


def _random(name: str, rows: int, columns: int) -> np.ndarray:
    nbytes = rows * quants.FORMATS[name].row_nbytes(columns)
    return np.random.default_rng(7).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 80])
@pytest.mark.parametrize("name", quants.FORMATS)
def test_deinterleave_is_the_inverse(name: str, rows: int) -> None:
    """Any bytes come back as they were, whether or not the last group is full."""
    block_format, columns = quants.FORMATS[name], 768
    data = _random(name, rows, columns)
    order = kernel_order.interleave(block_format, data, rows, columns)
    assert layout.interleaved_nbytes(block_format, rows, columns) == len(order)
    assert data.tobytes() == deinterleave(block_format, order, rows, columns)


@pytest.mark.parametrize("name", quants.FORMATS)
def test_interleave_is_one_to_one(name: str) -> None:
    """For full groups, kernel order to GGUF and back is the identity too: no byte is dropped or doubled."""
    block_format, rows, columns = quants.FORMATS[name], 32, 512
    order = _random(name, rows, columns)
    gguf = deinterleave(block_format, order, rows, columns)
    assert order.tobytes() == kernel_order.interleave(block_format, gguf, rows, columns)


@pytest.mark.parametrize("name", quants.FORMATS)
def test_slabs_do_not_show(name: str) -> None:
    """A matrix larger than the slab that is worked on at a time equals its groups done one by one."""
    block_format, columns = quants.FORMATS[name], 4096
    rows = 16 * (2 * kernel_order._SLAB // layout.group_nbytes(block_format, columns) + 1) + 5
    data = _random(name, rows, columns)
    size = block_format.row_nbytes(columns)
    whole = hashlib.sha256(kernel_order.interleave(block_format, data, rows, columns))
    pieces = hashlib.sha256()
    for first in range(0, rows, 16):
        part = data[first * size:(first + 16) * size]
        pieces.update(kernel_order.interleave(block_format, part, len(part) // size, columns))
    assert pieces.digest() == whole.digest()


@pytest.mark.parametrize("name", quants.FORMATS)
def test_padding_is_rows_of_zero_bytes(name: str) -> None:
    """The last group's missing rows are what rows of zero bytes become."""
    block_format, columns = quants.FORMATS[name], 256
    data = _random(name, 5, columns)
    padded = np.concatenate([data, np.zeros(11 * block_format.row_nbytes(columns), np.uint8)])
    expected = kernel_order.interleave(block_format, padded, 16, columns)
    assert expected == kernel_order.interleave(block_format, data, 5, columns)


# format, row, byte of the second block of that row -> byte of the second record, value there
PLACES = [
    ("Q8_0", 3, 0, 2 * 3, 0x5A),                          # scale
    ("Q8_0", 3, 2 + 9, 32 + 64 * 2 + 4 * 3 + 1, 0xDA),    # quant 9: unit 2, byte 1, flipped
    ("Q4_K", 15, 4 + 5, 64 + 64 * 1 + 4 * 15 + 1, 0x5A),  # byte 5 of the scales
    ("Q4_K", 0, 16 + 127, 256 + 64 * 31 + 3, 0x5A),       # last quant
    ("Q6_K", 1, 192 + 13, 32 + 832 * 3 + 4 * 1 + 2, 0x5A),       # scale 8 n + h + 2 i, n = 1, h = 1, i = 2
    ("Q6_K", 2, 64 + 32 + 16 + 5, 32 + 832 * 3 + 576 + 64 + 4 * 2 + 1, 0x5A),  # low bits: n = 1, second set, h = 1
    ("F16", 7, 1, 2 * 7 + 1, 0x5A),
    ("Q4_1", 9, 2, 32 + 2 * 9, 0x5A),                     # minimum
]


@pytest.mark.parametrize(("name", "row", "offset", "place", "value"), PLACES)
def test_place_of_a_byte(name: str, row: int, offset: int, place: int, value: int) -> None:
    """One byte of a GGUF block is found where the layout says."""
    block_format = quants.FORMATS[name]
    columns = max(2 * block_format.elements, 2)
    data = np.zeros((16, columns // block_format.elements, block_format.nbytes), np.uint8)
    data[row, 1, offset] = 0x5A
    records = np.frombuffer(kernel_order.interleave(block_format, data, 16, columns), np.uint8)
    second = records[16 * block_format.nbytes:32 * block_format.nbytes]
    assert value == second[place]


# format, byte and bit of the block -> byte and bit of row 0 in the record
BITS = [
    ("Q5_0", 2 + 1, 1, 32 + 1, 2),             # weight 9 = 4 * 2 + 1: byte 1, bit 2
    ("Q5_1", 4 + 3, 7, 64 + 3, 7),             # weight 31 = 4 * 7 + 3: byte 3, bit 7
    ("Q5_K", 16 + 22, 5, 256 + 64 * 5 + 2, 5),  # p = 2, j = 1, c = 5, x = 2: word 4 + 1, bit 4 + 1
    ("Q3_K", 0 + 31, 6, 224 + 64 * 7 + 3, 6),  # n = 1, i = 2, h = 1, c = 3, x = 3: word 4 + 2 + 1, bit 4 + 2
]


@pytest.mark.parametrize(("name", "offset", "bit", "place", "moved"), BITS)
def test_place_of_a_bit(name: str, offset: int, bit: int, place: int, moved: int) -> None:
    """One bit of a plane is found where the layout says."""
    block_format = quants.FORMATS[name]
    data = np.zeros((16, block_format.nbytes), np.uint8)
    data[0, offset] = 1 << bit
    record = np.frombuffer(kernel_order.interleave(block_format, data, 16, block_format.elements), np.uint8)
    assert 1 << moved == record[place]


@pytest.mark.parametrize("name", quants.FORMATS)
def test_runs_cover_a_block_once(name: str) -> None:
    """The runs of a layout take every byte of a block exactly once, and its bit order every bit."""
    taken = np.zeros(quants.FORMATS[name].nbytes, int)
    for run in layout.LAYOUTS[name]:
        for byte in range(run.nbytes):
            taken[run.offset + run.step * byte] += 1
        assert sorted(run.bits) == list(range(8 * run.nbytes if run.bits else 0))
    assert [1] * len(taken) == taken.tolist()


def test_wrong_sizes_are_refused() -> None:
    """Too few bytes, too little room, or part of a block."""
    q4_k = quants.FORMATS["Q4_K"]
    with pytest.raises(FormatError, match="143 bytes; needed: 144"):
        kernel_order.interleave(q4_k, bytes(143), 1, 256)
    with pytest.raises(FormatError, match="kernel-order buffer: 144 bytes; needed: 2304"):
        kernel_order.interleave_into(q4_k, bytes(144), 1, 256, bytearray(144))
    with pytest.raises(FormatError, match="100 columns"):
        kernel_order.interleave(q4_k, bytes(144), 1, 100)
