"""Writes GGUF files, well formed or broken on purpose. Shares no code with the parser under test.

A file is put together from pieces, so that a test can bend any one of them:

    build([kv("general.architecture", STRING, "llama")], [Tensor("a", 0, (32, 2), data)])
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}


@dataclass(frozen=True)
class Tensor:
    """A tensor to write: `dimensions` in the order of the file, fastest first; `offset` None = where it falls."""

    name: str
    ggml_id: int
    dimensions: tuple[int, ...]
    data: bytes
    offset: int | None = None


def string(text: str | bytes) -> bytes:
    """A length and that many bytes."""
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: object) -> bytes:
    """One value without its type."""
    if kind == STRING:
        return string(value)  # type: ignore[arg-type]
    return struct.pack("<" + _CODES[kind], value)


def kv(key: str | bytes, kind: int, value: object) -> bytes:
    """A key with a scalar or string value."""
    return string(key) + struct.pack("<I", kind) + scalar(kind, value)


def kv_array(key: str | bytes, kind: int, values: Sequence[object]) -> bytes:
    """A key with an array of scalars or strings."""
    head = string(key) + struct.pack("<IIQ", ARRAY, kind, len(values))
    if kind == STRING:
        return head + b"".join(string(value) for value in values)  # type: ignore[arg-type]
    return head + struct.pack(f"<{len(values)}{_CODES[kind]}", *values)


def tensor_entry(tensor: Tensor, offset: int) -> bytes:
    """One row of the tensor table."""
    return (string(tensor.name) + struct.pack("<I", len(tensor.dimensions))
            + struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
            + struct.pack("<IQ", tensor.ggml_id, offset))


def build(keys: Iterable[bytes] = (), tensors: Sequence[Tensor] = (), *, version: int = 3, alignment: int = 32,
          magic: bytes = b"GGUF", key_count: int | None = None, tensor_count: int | None = None) -> bytes:
    """A whole file. `alignment` is used for the layout only: add its key where it is not 32."""
    keys = list(keys)
    table, data = bytearray(), bytearray()
    for tensor in tensors:
        data += bytes(-len(data) % alignment)
        table += tensor_entry(tensor, len(data) if tensor.offset is None else tensor.offset)
        data += tensor.data
    head = magic + struct.pack("<IQQ", version, len(tensors) if tensor_count is None else tensor_count,
                               len(keys) if key_count is None else key_count)
    head += b"".join(keys) + table
    return head + bytes(-len(head) % alignment if tensors else 0) + bytes(data) + bytes(-len(data) % alignment)
