"""GGUF parsing: files that are well formed, and every way we know in which they are not."""

from __future__ import annotations

import struct
import tempfile
import tracemalloc
from pathlib import Path

import gguf as package
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.models.file import gguf
from tests.support.ggufs import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    Tensor,
    build,
    kv,
    kv_array,
    string,
    tensor_entry,
)

ONE = Tensor("a", 0, (4, 2), bytes(32))


@pytest.mark.parametrize("version", [2, 3])
def test_scalars_arrays_and_tensors(version: int) -> None:
    """Every kind of value, and a tensor table, come back as written."""
    numbers = {U8: 255, I8: -128, U16: 65535, I16: -3, U32: 2**32 - 1, I32: -2**31, U64: 2**64 - 1, I64: -2**63,
               F32: 0.5, F64: 0.1, BOOL: True}
    keys = [kv(f"s{kind}", kind, value) for kind, value in numbers.items()]
    keys += [kv_array(f"a{kind}", kind, [value, value]) for kind, value in numbers.items()]
    keys += [kv("text", STRING, "grüße"), kv_array("texts", STRING, ["a", "", "日本"]), kv_array("none", STRING, [])]
    tensors = [Tensor("w", 2, (64, 3), bytes(3 * 36)), Tensor("v", 0, (5,), bytes(20))]
    found = gguf.parse(build(keys, tensors, version=version))
    assert version == found.version
    for kind, value in numbers.items():
        assert value == found.metadata[f"s{kind}"]
        assert [value, value] == found.metadata[f"a{kind}"].tolist()
    assert "grüße" == found.metadata["text"]
    assert ["a", "", "日本"] == list(found.metadata["texts"])
    assert [] == list(found.metadata["none"])
    weight, vector = found.tensors["w"], found.tensors["v"]
    assert ((3, 64), "Q4_0", 108, found.data_offset) == (
        weight.shape, weight.format.name, weight.nbytes, weight.offset)
    assert ((5,), 20, found.data_offset + 128) == (vector.shape, vector.nbytes, vector.offset)
    assert (3, 64, 1, 5) == (weight.rows, weight.columns, vector.rows, vector.columns)


def test_agrees_with_gguf_package(tmp_path: Path) -> None:
    """A file of the gguf package's own writer parses to what went in, and to the offsets its reader sees."""
    path = tmp_path / "m.gguf"
    writer = package.GGUFWriter(path, "llama")
    writer.add_context_length(2048)
    writer.add_custom_alignment(64)
    writer.add_token_list(["<unk>", "a", "ü"])
    writer.add_token_scores([0.0, -1.0, -2.5])
    for name, shape in [("x", (3, 5)), ("y", (7,)), ("z", (2, 3, 4))]:
        writer.add_tensor(name, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found, reader = gguf.parse(path.read_bytes()), package.GGUFReader(path)
    assert 64 == found.alignment
    assert ["<unk>", "a", "ü"] == found.metadata["tokenizer.ggml.tokens"]
    assert [0.0, -1.0, -2.5] == found.metadata["tokenizer.ggml.scores"].tolist()
    for tensor in reader.tensors:
        mine = found.tensors[tensor.name]
        assert (tensor.data_offset, tensor.n_bytes, tuple(tensor.data.shape)) == (
            mine.offset, mine.nbytes, mine.shape)


# what is wrong -> (file, what the error says)
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "byte 0: this is an empty file; needed: a GGUF file"),
    "other magic": (build(magic=b"GGUX"), "the magic is b'GGUX'"),
    "cut in version": (b"GGUF\3\0", "the size of the version is 4 bytes; allowed: at most the 2"),
    "version 0": (build(version=0), "byte 4: the version is 0; allowed: 2 and 3"),
    "version 4": (build(version=4), "byte 4: the version is 4; allowed: 2 and 3"),
    "tensor count": (build(tensor_count=2**63), "byte 8: the number of tensors is 9223372036854775808"),
    "key count": (build(key_count=2**64 - 1), "byte 16: the number of metadata keys is 18446744073709551615"),
    "tensor count near": (build(tensor_count=3) + bytes(65), "number of tensors is 3; allowed: at most 2 (73 bytes"),
    "key count near": (build(key_count=3) + bytes(30), "metadata keys is 3; allowed: at most 2 (30 bytes remain)"),
    "key count limit": (build(key_count=65537) + bytes(1 << 20), "is 65537; allowed: at most 65536"),
    "tensor count limit": (build(tensor_count=65537) + bytes(3 << 20), "is 65537; allowed: at most 65536"),
    "key length": (build([struct.pack("<Q", 2**60) + bytes(64)]), "the length of the name of key 0"),
    "key cut": (build([struct.pack("<Q", 60000) + bytes(64)]), "the size of the name of key 0 is 60000 bytes"),
    "key not UTF-8": (build([kv(b"ab\xff", U8, 1)]), "byte 34: the name of key 0 is not UTF-8"),
    "key empty": (build([kv("", U32, 1)]), "the name of key 0 is empty"),
    "key twice": (build([kv("a", U32, 1), kv("a", U32, 2)]), "'a' again; allowed: each name once"),
    "value type": (build([string("a") + struct.pack("<II", 13, 1)]), "byte 33: the type of 'a' is 13"),
    "value cut": (build([string("a") + struct.pack("<II", U64, 1)]), "the size of 'a' is 8 bytes"),
    "boolean 2": (build([string("a") + struct.pack("<IB", BOOL, 2)]), "the boolean 'a' is 2; allowed: 0 and 1"),
    "boolean 2 in array": (
        build([string("a") + struct.pack("<IIQBB", ARRAY, BOOL, 2, 1, 2)]), "byte 50: a boolean of 'a' is 2"),
    "text not UTF-8": (build([kv("a", STRING, b"\xc3\x28")]), "byte 45: 'a' is not UTF-8"),
    "text surrogate": (build([kv("a", STRING, b"\xed\xa0\x80")]), "'a' is not UTF-8"),
    "text length": (build([string("a") + struct.pack("<IQ", STRING, 2**40)]), "the length of 'a' is 1099511627776"),
    "array length": (build([string("a") + struct.pack("<IIQ", ARRAY, U64, 2**61)]),
                     "the length of 'a' is 2305843009213693952 items of 8 bytes; allowed: at most the 0"),
    "array length near": (build([string("a") + struct.pack("<IIQ", ARRAY, U16, 3) + bytes(5)]), "3 items of 2 bytes"),
    "array of bytes": (build([string("a") + struct.pack("<IIQ", ARRAY, U8, 2**63)]), "items of 1 bytes"),
    "array of strings": (build([string("a") + struct.pack("<IIQ", ARRAY, STRING, 2**40)]), "at most 0 strings"),
    "string in array": (build([string("a") + struct.pack("<IIQQ", ARRAY, STRING, 1, 2**63)]),
                        "byte 49: the size of string 0 of 'a' is past the end of the file; allowed: at most the 0"),
    "string in array cut": (build([string("a") + struct.pack("<IIQQQQ", ARRAY, STRING, 2, 0, 9, 7)]),
                            "byte 57: the size of string 1 of 'a' is past the end of the file; allowed: at most the 8"),
    "string's length cut": (build([string("a") + struct.pack("<IIQQQ", ARRAY, STRING, 2, 5, 7)]),
                            "byte 62: the size of string 1 of 'a' is past the end of the file; allowed: at most the 0"),
    "string in array not UTF-8": (build([kv_array("a", STRING, [b"x", b"\x80"])]), "string 1 of 'a' is not UTF-8"),
    "array item type": (build([string("a") + struct.pack("<IIQ", ARRAY, 99, 0)]), "the item type of 'a' is 99"),
    "alignment 0": (build([kv("general.alignment", U32, 0)]), "'general.alignment' is 0"),
    "alignment 24": (build([kv("general.alignment", U32, 24)]), "a uint32 power of two from 8"),
    "alignment huge": (build([kv("general.alignment", U32, 1 << 31)]), "'general.alignment' is 2147483648"),
    "alignment type": (build([kv("general.alignment", U64, 64)]), "'general.alignment' is 64; allowed: a uint32"),
    "tensor twice": (build([], [ONE, ONE]), "'a' again"),
    "tensor name long": (build([], [Tensor("n" * 64, 0, (4,), bytes(16))]), "the length of the name of tensor 0 is 64"),
    "tensor name empty": (build([], [Tensor("", 0, (4,), bytes(16))]), "the name of tensor 0 is empty"),
    "no dimensions": (build([], [Tensor("a", 0, (), bytes(64))]), "dimensions of tensor 'a' is 0; allowed: 1 to 4"),
    "five dimensions": (build([], [Tensor("a", 0, (1,) * 5, bytes(64))]), "is 5; allowed: 1 to 4"),
    "dimension 0": (build([], [Tensor("a", 0, (4, 0), bytes(64))]), "a dimension of tensor 'a' is 0"),
    "dimensions overflow": (build([], [Tensor("a", 0, (2**32, 2**32), bytes(64))]), "is byte 73786976294838206560"),
    "dimensions overflow twice": (build([], [Tensor("a", 0, (2**63,) * 4, bytes(64))]), "the end of tensor 'a'"),
    "format number": (build([], [Tensor("a", 99, (4,), bytes(64))]), "byte 45: tensor 'a': block format number 99"),
    "row not whole": (build([], [Tensor("a", 2, (48,), bytes(64))]),
                      "byte 37: the row length of tensor 'a' is 48; allowed: a multiple of 32 for Q4_0"),
    "offset unaligned": (build([], [Tensor("a", 0, (4,), bytes(64), offset=8)]), "is 8; allowed: a multiple of 32"),
    "offset outside": (build([], [Tensor("a", 0, (4,), bytes(64), offset=64)]), "the end of tensor 'a' is byte"),
    "offset huge": (build([], [Tensor("a", 0, (4,), bytes(64), offset=2**64 - 32)]), "the end of tensor 'a' is byte"),
    "overlap": (build([], [ONE, Tensor("b", 0, (4,), bytes(16), offset=0)]),
                "is 0; allowed: 32 and more, where tensor 'a' ends: tensors may not overlap"),
    "data cut": (build([], [ONE])[:-1], "the end of tensor 'a'"),
    "table cut": (build([], [ONE])[:-60], "the size of"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named(name: str) -> None:
    """Each broken file is refused as malformed, with the place, what was found and what is allowed."""
    data, message = BROKEN[name]
    with pytest.raises(FormatError) as caught:
        gguf.parse(data)
    assert message in str(caught.value)


# what is not run -> (file, what the error says)
UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    "version 1": (build(version=1), "byte 4: the file is GGUF version 1; supported: 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte 4: the file is big-endian"),
    "nested array": (build([string("a") + struct.pack("<IIQIQI", ARRAY, ARRAY, 1, U32, 1, 7)]),
                     "byte 37: 'a' is an array of arrays; supported: arrays of numbers"),
    "GGJT": (build(magic=b"tjgg"), "format from before GGUF"),
    "IQ2_XXS": (build([], [Tensor("a", 16, (256,), bytes(66))]), "tensor 'a': block format IQ2_XXS is not supported"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_files_are_named(name: str) -> None:
    """What is well formed and not run here is refused by its name."""
    data, message = UNSUPPORTED[name]
    with pytest.raises(UnsupportedError) as caught:
        gguf.parse(data)
    assert message in str(caught.value)


def test_every_prefix_is_refused() -> None:
    """A file cut anywhere is refused, never misread and never a Python error."""
    keys = [kv("general.alignment", U32, 32), kv("t", STRING, "text"), kv_array("s", STRING, ["ab", "c"]),
            kv_array("n", I16, [1, 2])]
    whole = build(keys, [ONE, Tensor("b", 2, (32,), bytes(18))])
    end = len(whole) - (-18 % 32)  # padding after the last tensor may be missing
    for length in range(end):
        with pytest.raises(FormatError):
            gguf.parse(whole[:length])
    assert 2 == len(gguf.parse(whole[:end]).tensors)


def test_tensors_may_lie_in_any_order_with_gaps() -> None:
    """Offsets need not follow the table, and unused bytes between tensors are allowed."""
    tensors = [Tensor("a", 0, (4,), bytes(16), offset=64), Tensor("b", 0, (4,), bytes(112), offset=0)]
    found = gguf.parse(build([], tensors))
    assert [("a", 64), ("b", 0)] == [(t.name, t.offset - found.data_offset) for t in found.tensors.values()]


def test_no_tensors_is_a_vocabulary() -> None:
    """A file with metadata only, as vocabularies are shipped, parses."""
    assert 0 == len(gguf.parse(build([kv("a", U8, 1)])).tensors)


def test_strings_are_counted_over_all_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a header may cost to read is bounded for all of its arrays together: each string takes time."""
    monkeypatch.setattr(gguf, "MAX_STRINGS", 5)
    good = [kv_array("a", STRING, ["x"] * 3), kv_array("b", U8, [1] * 9), kv_array("c", STRING, ["x"] * 2)]
    assert 4 == len(gguf.parse(build([*good, kv("d", STRING, "x")])).metadata)
    with pytest.raises(FormatError, match="the length of 'd' is 1; allowed: at most 0 strings"):
        gguf.parse(build([*good, kv_array("d", STRING, ["x"])]))


HOSTILE = {
    "many empty strings": build([kv_array("a", STRING, [b""] * 60000)]),
    "many bytes": build([kv_array("a", U8, [0] * 300000)]),
    "many keys": build([kv(f"{i:x}", U8, 0) for i in range(20000)]),
    "many tensors": build([], [Tensor(f"{i:x}", 1, (1,), b"\0\0") for i in range(8000)]),
    "one text": build([kv("a", STRING, b"x" * 500000)]),
    "lying counts": build(key_count=2**40) + bytes(100000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_memory_is_in_proportion_to_the_file(name: str) -> None:
    """The most wasteful files we can think of cost at most 16 times their size, and 256 KiB."""
    data = HOSTILE[name]
    tracemalloc.start()
    try:
        kept = gguf.parse(data)
    except FormatError:
        kept = None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    assert peak <= 16 * len(data) + (256 << 10)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_values = st.one_of(
    st.tuples(st.just(U8), st.integers(0, 255)), st.tuples(st.just(I64), st.integers(-2**63, 2**63 - 1)),
    st.tuples(st.just(F64), st.floats(allow_nan=False)), st.tuples(st.just(BOOL), st.booleans()),
    st.tuples(st.just(STRING), _texts),
)
_arrays = st.one_of(
    st.tuples(st.just(I32), st.lists(st.integers(-2**31, 2**31 - 1), max_size=9)),
    st.tuples(st.just(STRING), st.lists(_texts, max_size=9)), st.tuples(st.just(BOOL), st.lists(st.booleans())),
)
_keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).map(lambda key: "x." + key)


@settings(max_examples=60, deadline=None)
@given(scalars=st.dictionaries(_keys, _values, max_size=6), arrays=st.dictionaries(_keys, _arrays, max_size=6),
       rows=st.lists(st.integers(1, 4), max_size=5), alignment=st.sampled_from([8, 32, 256]))
def test_round_trip(scalars: dict, arrays: dict, rows: list[int], alignment: int) -> None:
    """What the writer wrote is what the parser reads, for generated metadata, tensors and alignments."""
    scalars = {key: item for key, item in scalars.items() if key not in arrays}
    keys = [kv("general.alignment", U32, alignment)]
    keys += [kv(key, *item) for key, item in scalars.items()]
    keys += [kv_array(key, *item) for key, item in arrays.items()]
    tensors = [Tensor(f"t{i}", 8, (32, n), bytes([i]) * (34 * n)) for i, n in enumerate(rows)]
    data = build(keys, tensors, alignment=alignment)
    found = gguf.parse(data)
    assert {key: value for key, (_, value) in scalars.items()} == {key: found.metadata[key] for key in scalars}
    assert {key: value for key, (_, value) in arrays.items()} == {key: list(found.metadata[key]) for key in arrays}
    assert [t.data for t in tensors] == [
        data[info.offset:info.offset + info.nbytes] for info in found.tensors.values()]


def test_entry_helper_matches_the_specification() -> None:
    """The writer's own tensor entry, spelled out by hand once."""
    by_hand = (b"\1\0\0\0\0\0\0\0a" b"\2\0\0\0" b"\4\0\0\0\0\0\0\0" b"\2\0\0\0\0\0\0\0" b"\0\0\0\0" + bytes(8))
    assert by_hand == tensor_entry(ONE, 0)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 100])
def test_noise_is_refused(size: int) -> None:
    """Random bytes are no GGUF."""
    with pytest.raises(ModelError):
        gguf.parse(np.random.default_rng(size).bytes(size))


def test_errors_do_not_keep_the_file_alive() -> None:
    """A refused file held in a memory map can be unmapped at once."""
    import mmap
    with tempfile.TemporaryFile() as file:
        file.write(BROKEN["overlap"][0])
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        message = ""
        try:
            gguf.parse(mapped)
        except FormatError as error:
            message = error.summary
        mapped.close()
    assert "where tensor 'a' ends" in message
