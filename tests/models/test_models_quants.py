"""Block formats: every decoder against the public `gguf` package, every size against ggml's own table."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from appliance.errors import FormatError, UnsupportedError
from appliance.mistakes import formats
from appliance.models.file import quants
from tests.support import decoders

# Q8_1 is the one the package has wrong (40 bytes) and cannot decode; ggml-common.h says 2 + 2 + 32.
PACKAGE_FORMATS = [name for name in quants.FORMATS if name != "Q8_1"]


def _random_blocks(name: str, rows: int, columns: int) -> np.ndarray:
    """Rows of random bytes of a format, with scales that are finite floats."""
    block_format = quants.FORMATS[name]
    random = np.random.default_rng(block_format.ggml_id)
    nbytes = rows * block_format.row_nbytes(columns)
    blocks = random.integers(0, 256, nbytes, dtype=np.uint8).view(quants.layout(block_format)).copy()
    for field in ("d", "dmin", "m", "x"):
        if field in (blocks.dtype.names or ()) and blocks.dtype[field].kind == "f":
            blocks[field] = random.normal(size=len(blocks))
    return blocks.view(np.uint8)


@pytest.mark.parametrize("name", PACKAGE_FORMATS)
def test_decoder_equals_gguf_package(name: str) -> None:
    """Random blocks decode to the bits that the gguf package decodes them to."""
    rows, columns = 7, 512
    data = _random_blocks(name, rows, columns)
    expected = gguf.dequantize(data.reshape(rows, -1), gguf.GGMLQuantizationType[name])
    got = decoders.dequantise(quants.FORMATS[name], data.tobytes(), rows, columns)
    np.testing.assert_array_equal(expected.view(np.uint32), got.view(np.uint32))


def test_q8_1_decodes_scale_times_value() -> None:
    """A Q8_1 block is a scale, the sum of its values times the scale, and 32 signed bytes."""
    block = np.zeros(1, quants.layout(quants.FORMATS["Q8_1"]))
    block["d"], block["s"], block["qs"][0] = 0.5, 99.0, np.arange(-16, 16)
    got = decoders.dequantise(quants.FORMATS["Q8_1"], block.tobytes(), 1, 32)
    np.testing.assert_array_equal(np.arange(-16, 16, dtype=np.float32)[None] * 0.5, got)


@pytest.mark.parametrize("name", PACKAGE_FORMATS)
def test_sizes_equal_gguf_package(name: str) -> None:
    """The id, elements and bytes of each block are those of the gguf package."""
    kind = gguf.GGMLQuantizationType[name]
    block_format = quants.FORMATS[name]
    assert (int(kind), *gguf.GGML_QUANT_SIZES[kind]) == (
        block_format.ggml_id, block_format.elements, block_format.nbytes)


def test_q8_1_has_the_size_of_ggml() -> None:
    """Q8_1 is two half floats and 32 bytes."""
    assert quants.BlockFormat("Q8_1", ggml_id=9, elements=32, nbytes=36) == quants.FORMATS["Q8_1"]


@pytest.mark.parametrize("kind", [kind for kind in gguf.GGMLQuantizationType if kind.name not in quants.FORMATS])
def test_other_formats_are_refused_by_name(kind: gguf.GGMLQuantizationType) -> None:
    """A format that ggml has and that does not run here is refused by its name, with the list of those that do."""
    with pytest.raises(UnsupportedError, match=rf"^tensor x: block format {kind.name} .*Q4_K, Q5_K") as caught:
        quants.by_id(int(kind), "tensor x")
    assert "model-unsupported" == caught.value.code


@pytest.mark.parametrize("number", [43, 1000, 0xFFFFFFFF])
def test_unknown_number_is_malformed(number: int) -> None:
    """A number that no version of ggml used is malformed, not merely unsupported."""
    with pytest.raises(FormatError, match=f"number {number} does not exist"):
        quants.by_id(number, "tensor x")


@pytest.mark.parametrize(("name", "columns"), [("Q4_0", 48), ("Q4_K", 128), ("F32", 0), ("Q8_0", -32)])
def test_rows_must_hold_whole_blocks(name: str, columns: int) -> None:
    """A row that would end inside a block is refused."""
    with pytest.raises(FormatError, match=f"row has {columns} columns; allowed: a multiple of"):
        quants.FORMATS[name].row_nbytes(columns)


def test_wrong_byte_count_is_refused() -> None:
    """Data of another size than the shape says is refused with both sizes."""
    with pytest.raises(FormatError, match="17 bytes for 1 x 32 Q4_0 weights; needed: 18"):
        decoders.dequantise(quants.FORMATS["Q4_0"], bytes(17), 1, 32)


def test_a_refused_format_names_the_nearest_that_runs() -> None:
    """Every format that ggml has or had and that no kernel multiplies says what to use; integers say why not."""
    refused = {**formats.UNSIZED, **{number: name for number, (name, _, _) in formats.SIZES.items()}}
    for number, name in refused.items():
        with pytest.raises(UnsupportedError, match=f"block format {name} is not supported") as raised:
            quants.by_id(number, "tensor 'a'")
        nearest = formats._NEAREST.get(name)
        assert (nearest is None) == name.startswith("I") - name.startswith("IQ")
        assert nearest is None or (nearest in quants.FORMATS and f"quantised to {nearest}, the" in raised.value.hint)
