"""Fuzz target: the GGUF parser. Only errors of the model tree may come out, and memory stays near the input's size."""

from __future__ import annotations

from appliance.errors import ModelError
from appliance.models.file import gguf
from tests.support import sealed_models
from tests.support.ggufs import BOOL, F32, I32, STRING, U8, U32, U64, Tensor, build, kv, kv_array


def fuzz(data: bytes) -> None:
    """Parse `data`; walk what came out as a reader would."""
    try:
        found = gguf.parse(data)
    except ModelError as error:
        if not error.summary or len(str(error)) > 2000:
            raise AssertionError(f"a useless error: {len(str(error))} characters") from error
        return
    for info in found.tensors.values():
        if not found.data_offset <= info.offset <= info.offset + info.nbytes <= len(data):
            raise AssertionError(f"{info} lies outside of {len(data)} bytes")
        if info.rows * info.format.row_nbytes(info.columns) != info.nbytes:
            raise AssertionError(f"{info} has rows that do not add up")
    for value in found.metadata.values():
        if not isinstance(value, bool | int | float | str):
            list(value[:1000])


def seeds() -> list[bytes]:
    """Small files that together use every part of the format."""
    keys = [
        kv("general.architecture", STRING, "llama"), kv("general.alignment", U32, 64), kv("b", BOOL, True),
        kv("f", F32, 1.5), kv("u", U64, 2**64 - 1), kv_array("tokens", STRING, ["<s>", "a", "ü", ""]),
        kv_array("scores", F32, [0.0, -1.0]), kv_array("types", I32, [1, 2, 3]), kv_array("bytes", U8, [1, 2, 3]),
        kv_array("flags", BOOL, [True, False]),
    ]
    tensors = [
        Tensor("token_embd.weight", 8, (64, 3), bytes(3 * 68)), Tensor("output_norm.weight", 0, (64,), bytes(256)),
        Tensor("blk.0.attn_q.weight", 12, (256, 2), bytes(288)), Tensor("x", 1, (2, 2, 2, 2), bytes(32)),
    ]
    return [build(), build(keys, alignment=64), build([], tensors), build(keys, tensors, alignment=64),
            build([keys[0]], tensors[:1], version=2), build(version=1), sealed_models.mixture()]
