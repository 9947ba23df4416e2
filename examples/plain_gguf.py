"""A reader of GGUF files, version 3, for the plain engine: metadata, and the blocks of tensors."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Metadata types by number; STRING and ARRAY apart.
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9

# ggml type -> name, and the fields of a block in the order of the file
D, M = ("d", "<f2"), ("m", "<f2")
LAYOUTS: dict[int, tuple[str, list[Any]]] = {
    0: ("F32", [("x", "<f4")]), 1: ("F16", [("x", "<f2")]), 30: ("BF16", [("x", "<u2")]),
    2: ("Q4_0", [D, ("qs", "u1", 16)]), 3: ("Q4_1", [D, M, ("qs", "u1", 16)]),
    6: ("Q5_0", [D, ("qh", "u1", 4), ("qs", "u1", 16)]), 7: ("Q5_1", [D, M, ("qh", "u1", 4), ("qs", "u1", 16)]),
    8: ("Q8_0", [D, ("qs", "i1", 32)]), 9: ("Q8_1", [D, ("s", "<f2"), ("qs", "i1", 32)]),
    10: ("Q2_K", [("scales", "u1", 16), ("qs", "u1", 64), D, M]),
    11: ("Q3_K", [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), D]),
    12: ("Q4_K", [D, M, ("scales", "u1", 12), ("qs", "u1", 128)]),
    13: ("Q5_K", [D, M, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]),
    14: ("Q6_K", [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), D]),
    20: ("IQ4_NL", [D, ("qs", "u1", 16)]), 39: ("MXFP4", [("e", "u1"), ("qs", "u1", 16)]),
    23: ("IQ4_XS", [D, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])}


class Gguf:
    """A file's metadata, and its tensors as (format, shape, blocks)."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4
        version, tensors, pairs = self.take("<IQQ")
        if self.data[:4] != b"GGUF" or version not in (2, 3):
            raise ValueError("no GGUF file of version 2 or 3")
        self.metadata = {self.text(): self.value(self.take("<I")[0]) for _ in range(pairs)}
        entries = [(self.text(), self.take(f"<{self.take('<I')[0]}Q"), *self.take("<IQ")) for _ in range(tensors)]
        align = self.metadata.get("general.alignment", 32)
        start = -(-self.at // align) * align
        self.tensors = {name: self.blocks(kind, shape[::-1], start + offset) for name, shape, kind, offset in entries}

    def take(self, form: str) -> tuple[Any, ...]:
        """The next fields, by a format of `struct`."""
        found = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return found

    def text(self) -> str:
        """The next string."""
        nbytes = self.take("<Q")[0]
        self.at += nbytes
        return self.data[self.at - nbytes:self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """The next value of metadata."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            kind, count = self.take("<IQ")
            return [self.value(kind) for _ in range(count)]
        return self.take(SCALARS[kind])[0]

    def blocks(self, kind: int, shape: tuple[int, ...], offset: int) -> tuple[str, tuple[int, ...], NDArray[Any]]:
        """A tensor."""
        if kind not in LAYOUTS:
            raise ValueError(f"a tensor is of ggml type {kind}; allowed: {sorted(LAYOUTS)}")
        name, fields = LAYOUTS[kind]
        elements = 1 if fields[0][0] == "x" else 256 if "K" in name or "XS" in name else 32
        count = math.prod(shape) // elements
        return name, shape, np.frombuffer(self.data, np.dtype(fields), count, offset)
