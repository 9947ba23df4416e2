"""The edges of model files: the last size, count and alignment that pass, and what each report says in full."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from appliance.boot.planning import inspection
from appliance.errors import FormatError, ModelError, ModelKeyError, UnsupportedError
from appliance.keys.providers import CredentialKey, Secret
from appliance.models.file import gguf, quants
from appliance.models.file.cursor import HeaderCursor
from appliance.models.file.disk import CHUNK_NBYTES, RandomFile
from appliance.models.file.metadata import describe
from appliance.sealing import digests
from tests.support.ggufs import STRING, U16, U32, Tensor, build, kv, kv_array
from tests.support.plain import open_resident

EIGHT_FLOATS = bytes(32)


def test_progress_counts_every_chunk(tmp_path: Path) -> None:
    """Progress is told after each chunk, as bytes done of bytes in all, and reaches the end exactly once."""
    path = tmp_path / "m"
    path.write_bytes(bytes(2 * CHUNK_NBYTES + 5))
    seen: list[tuple[int, int]] = []
    digests.hashes_of(path, lambda done, total: seen.append((done, total)))
    total = 2 * CHUNK_NBYTES + 5
    assert [(CHUNK_NBYTES, total), (2 * CHUNK_NBYTES, total), (total, total)] == seen
    model = tmp_path / "model"
    model.write_bytes(build([], [Tensor("w", 0, (4, 2), EIGHT_FLOATS)]))
    seen.clear()
    open_resident(model, None, lambda done, total: seen.append((done, total))).close()
    assert [(model.stat().st_size, model.stat().st_size)] == seen


def test_a_file_is_read_front_to_back(tmp_path: Path) -> None:
    """Pieces follow each other, none is read before the one in front of it is done with, a file that grew meanwhile is
    refused behind them, and the descriptor is closed at the end."""
    path = tmp_path / "m"
    data = os.urandom(2 * CHUNK_NBYTES + 5)
    path.write_bytes(data)
    with RandomFile(path) as file:
        assert data == b"".join(map(bytes, file.chunks()))
        pieces, found = file.chunks(), b""
        for _ in range(3):
            found += next(pieces)
            with path.open("r+b") as other:  # of what was read nothing is read again
                other.write(bytes(len(found)))
        assert data == found
        os.truncate(path, len(data) + 1)
        with pytest.raises(FormatError, match=f"{path} goes on after byte {len(data)}, its size when it was opened"):
            next(pieces)
    with pytest.raises(ModelError, match="was closed"):
        file.expect_end()


def test_an_error_names_its_file_once(tmp_path: Path) -> None:
    """Whatever a parser says about bytes leaves with the path in front, and what has the path already as it is."""
    path = tmp_path / "m"
    path.touch()
    for said, expected in (("byte 0: bad", f"{path}: byte 0: bad"), (f"{path} is bad", f"{path} is bad"),
                           (f"{path}x is bad", f"{path}: {path}x is bad")):
        with pytest.raises(FormatError) as caught, RandomFile(path):
            raise FormatError(said)
        assert expected == caught.value.summary


def test_a_cursor_gives_no_byte_too_many() -> None:
    """The last byte can be taken and nothing after it; a negative size is refused as well."""
    cursor = HeaderCursor(struct.pack("<IQ", 7, 9) + b"ab")
    assert (7, 9, 2) == (cursor.u32("a"), cursor.u64("b"), cursor.remaining)
    assert (b"ab", 12) == (bytes(cursor.peek()), cursor.offset)
    for wrong in (3, -1):
        with pytest.raises(FormatError, match=f"byte 12: the size of x is {wrong} bytes; allowed: at most the 2"):
            cursor.take(wrong, "x")
    assert b"ab" == bytes(cursor.take(2, "x"))
    assert (0, b"") == (cursor.remaining, bytes(cursor.take(0, "x")))


@pytest.mark.parametrize(("length", "good"), [(3, True), (4, True), (5, False)])
def test_a_text_is_as_long_as_its_limit(length: int, good: bool) -> None:
    """A string of exactly the limit is read, one byte more is refused at its length."""
    cursor = HeaderCursor(struct.pack("<Q", length) + b"x" * length)
    if good:
        assert "x" * length == cursor.text("name", 4)
        return
    with pytest.raises(FormatError, match="byte 0: the length of name is 5 bytes; allowed: at most 4"):
        cursor.text("name", 4)


def test_the_place_of_bad_text_is_its_first_bad_byte() -> None:
    """The offset in the error is that of the byte which is not UTF-8, not of the string."""
    with pytest.raises(FormatError, match="byte 10: name is not UTF-8"):
        HeaderCursor(struct.pack("<Q", 3) + b"ab\xff").text("name", 9)


@pytest.mark.parametrize(("alignment", "good"), [
    (4, False), (7, False), (8, True), (16, True), (24, False), (64, True), (65536, True), (131072, False),
    (0, False)])
def test_an_alignment_is_a_power_of_two_from_8_to_65536(alignment: int, good: bool) -> None:
    """The alignment that the file states moves the tensor data there, or the file is refused."""
    keys = [kv("general.alignment", U32, alignment)]
    if not good:
        with pytest.raises(FormatError, match=f"'general.alignment' is {alignment}; allowed: a uint32 power of two"):
            gguf.parse(build(keys))
        return
    found = gguf.parse(build(keys, [Tensor("a", 0, (8,), EIGHT_FLOATS)], alignment=alignment))
    assert (alignment, 0) == (found.alignment, found.data_offset % alignment)
    assert found.data_offset == found.tensors["a"].offset


def test_an_alignment_of_another_type_is_refused() -> None:
    """Only a uint32 states an alignment: a reader that took others would place tensors elsewhere."""
    with pytest.raises(FormatError, match=r"'general\.alignment' is 64"):
        gguf.parse(build([kv("general.alignment", U16, 64)]))


@pytest.mark.parametrize(("length", "good"), [(63, True), (64, False)])
def test_a_tensor_name_has_63_bytes(length: int, good: bool) -> None:
    """ggml holds 63 bytes of a name; a longer one would be another tensor to another reader."""
    data = build([], [Tensor("n" * length, 0, (8,), EIGHT_FLOATS)])
    if good:
        assert ["n" * length] == list(gguf.parse(data).tensors)
        return
    with pytest.raises(FormatError, match="64 bytes; allowed: at most 63"):
        gguf.parse(data)


@pytest.mark.parametrize(("dimensions", "shape", "rows"), [
    ((8,), (8,), 1), ((2, 4), (4, 2), 4), ((2, 2, 2), (2, 2, 2), 4), ((1, 2, 1, 4), (4, 1, 2, 1), 8)])
def test_shapes_are_reversed_and_rows_counted(dimensions: tuple[int, ...], shape: tuple[int, ...], rows: int) -> None:
    """The file's dimensions come fastest first, ours slowest first; rows are all but the fastest."""
    info = gguf.parse(build([], [Tensor("a", 0, dimensions, EIGHT_FLOATS)])).tensors["a"]
    assert (shape, dimensions[0], rows, 32) == (info.shape, info.columns, info.rows, info.nbytes)


def test_tensors_may_touch_and_end_with_the_file() -> None:
    """Two tensors side by side fill the file to its last byte; a file one byte shorter is refused."""
    data = build([], [Tensor("a", 0, (8,), EIGHT_FLOATS), Tensor("b", 0, (8,), EIGHT_FLOATS)])
    found = gguf.parse(data)
    assert found.tensors["a"].offset + 32 == found.tensors["b"].offset
    end = found.tensors["b"].offset + 32
    assert found.tensors == gguf.parse(data[:found.data_offset], end).tensors
    with pytest.raises(FormatError, match=f"the end of tensor 'b' is byte {end}; allowed: at most {end - 1}"):
        gguf.parse(data[:found.data_offset], end - 1)


@pytest.mark.parametrize("magic", [b"lmgg", b"fmgg", b"tjgg", b"algg"])
def test_formats_before_gguf_are_named(magic: bytes) -> None:
    """Files of the formats before GGUF are unsupported rather than malformed, with what to do."""
    with pytest.raises(UnsupportedError, match="from before GGUF") as caught:
        gguf.parse(magic + bytes(60))
    assert "conversion scripts" in str(caught.value.hint)


def test_an_inspection_says_all_that_the_file_says(tmp_path: Path) -> None:
    """Every field of an inspection is the file's own; what a field of another type holds is not taken."""
    path = tmp_path / "m"
    numbers = {"context_length": 11, "block_count": 12, "embedding_length": 13, "attention.head_count": 14,
               "attention.head_count_kv": 15}
    texts = {"general.architecture": "x", "general.name": "n", "tokenizer.ggml.model": "t", "tokenizer.ggml.pre": "p",
             "general.license.link": "l", "general.author": "a", "general.organization": "o", "general.url": "u",
             "general.source.url": "s", "general.repo_url": "r", "general.basename": "b"}
    keys = [*(kv(f"x.{key}", U32, value) for key, value in numbers.items()),
            *(kv(key, STRING, value) for key, value in texts.items()), kv("general.author.count", U32, 2)]
    path.write_bytes(build(keys, [Tensor("w", 0, (4, 2), EIGHT_FLOATS)]))
    found = inspection.inspect(path)
    assert tuple(numbers.values()) == (
        found.context_length, found.blocks, found.embedding_length, found.heads, found.kv_heads)
    assert ("x", "n", "t", "p", None, False) == (found.architecture, found.name, found.tokenizer, found.pre_tokenizer,
                                                 found.vocabulary, found.chat_template)
    assert {key: texts[key] for key in list(texts)[4:10]} == found.licence
    assert (str(path), path.stat().st_size, 3, 8, len(keys)) == (
        found.path, found.size, found.gguf_version, found.weights, found.keys)
    assert None is found.sealed
    assert not inspection.is_sealed(path)


def test_an_inspection_of_wrong_types_says_nothing(tmp_path: Path) -> None:
    """A text where a number belongs, a boolean, an array of numbers for a vocabulary: none of them is reported."""
    path = tmp_path / "m"
    keys = [kv("general.architecture", STRING, "x"), kv("x.context_length", STRING, "9"), kv("x.block_count", 7, 1),
            kv("general.name", U32, 1), kv_array("tokenizer.ggml.tokens", U32, [1, 2])]
    path.write_bytes(build(keys))
    found = inspection.inspect(path)
    assert (None, None, None, None, 0) == (
        found.context_length, found.blocks, found.name, found.vocabulary, found.weights)


@pytest.mark.parametrize(("parts", "good"), [(1, True), (2, False)])
def test_one_part_of_a_model_is_not_a_model(tmp_path: Path, parts: int, good: bool) -> None:
    """A file that says it is one of several parts is refused, with the way to join them."""
    path = tmp_path / "m"
    path.write_bytes(build([kv("split.count", U16, parts)], [Tensor("w", 0, (4, 2), EIGHT_FLOATS)]))
    if good:
        open_resident(path).close()
        return
    with pytest.raises(UnsupportedError, match="is one of 2 parts"):
        open_resident(path)


def test_more_than_three_dimensions_are_unsupported(tmp_path: Path) -> None:
    """A tensor of four dimensions is refused by its name before any memory is taken for it."""
    path = tmp_path / "m"
    path.write_bytes(build([], [Tensor("cube", 0, (2, 2, 2, 1), EIGHT_FLOATS)]))
    with pytest.raises(UnsupportedError, match="tensor 'cube' has 4 dimensions"):
        open_resident(path)


def test_vectors_in_blocks_are_unsupported(tmp_path: Path) -> None:
    """A vector whose numbers are quantised, which no converter writes, is refused by its name and format."""
    path = tmp_path / "m"
    path.write_bytes(build([], [Tensor("norm", 8, (32,), bytes(34))]))
    with pytest.raises(UnsupportedError, match="tensor 'norm' is a vector of Q8_0; supported: vectors of F32, F16 and"):
        open_resident(path)


@pytest.mark.parametrize(("ggml_id", "data"), [
    (0, "0000803f 000020c0 0000807f 0100807f"), (1, "003c 00c1 007c 017c"), (30, "803f 20c0 807f 817f")])
def test_vectors_are_decoded(ggml_id: int, data: str, tmp_path: Path) -> None:
    """1, -2.5, infinity and a NaN as F32, F16 and BF16: all are there as float32."""
    path = tmp_path / "m"
    path.write_bytes(build([], [Tensor("v", ggml_id, (4,), bytes.fromhex(data))]))
    source = open_resident(path)
    found = source.vector("v")
    assert ([1, -2.5, np.inf], True) == (found[:3].tolist(), bool(np.isnan(found[3])))
    source.close()


def test_a_closed_model_gives_nothing(tmp_path: Path) -> None:
    """After closing, twice even, neither matrices nor vectors are handed out."""
    path = tmp_path / "m"
    path.write_bytes(build([], [Tensor("w", 0, (4, 2), EIGHT_FLOATS), Tensor("v", 0, (8,), EIGHT_FLOATS)]))
    source = open_resident(path)
    assert ((2, 4), (8,)) == (source.tensors["w"].shape, source.vector("v").shape)
    source.close()
    source.close()
    with pytest.raises(ModelError, match="closed"):
        source.weight("w")
    with pytest.raises(ModelError, match="closed"):
        source.vector("v")


def test_a_row_of_blocks_has_their_bytes() -> None:
    """Row sizes by hand from ggml's block sizes: 18 bytes per 32 weights, 144 per 256."""
    assert 4 * 18 == quants.FORMATS["Q4_0"].row_nbytes(128)
    assert 2 * 144 == quants.FORMATS["Q4_K"].row_nbytes(512)
    assert 128 * 2 == quants.FORMATS["F16"].row_nbytes(128)


@pytest.mark.parametrize(("counts", "each", "what"), [((3, 0), 33, "tensors"), ((0, 3), 14, "metadata keys")])
def test_a_count_fits_into_what_remains(counts: tuple[int, int], each: int, what: str) -> None:
    """A tensor takes 33 bytes of the header at least and a key 14: one byte less than that is no room for three."""
    tail = struct.pack("<Q", counts[1]) if counts[1] else b""
    head = b"GGUF" + struct.pack("<IQ", 3, counts[0]) + tail
    with pytest.raises(FormatError, match=f"the number of {what} is 3; allowed: at most 2"):
        gguf.parse(head + bytes(3 * each - 1))
    with pytest.raises(FormatError) as caught:
        gguf.parse(head + bytes(3 * each))
    assert f"the number of {what}" not in str(caught.value)


def test_long_texts_are_described_and_short_ones_shown() -> None:
    """Forty characters of a value stand in an error, of a longer one only their number."""
    assert repr("x" * 40) == describe("x" * 40)
    assert "a string of 41 characters" == describe("x" * 41)


@pytest.mark.parametrize("data", [bytes(32), b"\x01" * 31, b"\x01" * 33, b""])
def test_a_refused_key_is_wiped(data: bytes) -> None:
    """Bytes that are no key of 32 are refused and overwritten: they may be a key with a mistake in it."""
    given = bytearray(data)
    with pytest.raises(ModelKeyError, match=f"the key has {len(data)} bytes"):
        Secret(given)
    assert not any(given)


def test_a_key_is_gone_at_the_end_of_its_block() -> None:
    """The bytes themselves are overwritten, and a wiped key cannot be used."""
    given = bytearray(range(32))
    with Secret(given) as secret:
        assert bytes(range(32)) == bytes(secret.data)
        assert "0x" not in repr(secret)
        assert "Secret(...)" == repr(secret)
    assert bytes(32) == bytes(given)
    with pytest.raises(ModelKeyError, match="was wiped"):
        assert secret.data


@pytest.mark.parametrize("name", [".", "..", "a/b", "/etc/key", "../key"])
def test_a_credential_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    """A credential's name is one name below systemd's folder, never a way out of it."""
    with pytest.raises(ModelKeyError, match="is no name of a credential"):
        CredentialKey(name, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).key()
